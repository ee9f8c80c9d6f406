"""Decision trial: false KEEPs and missed gains over synthetic samples with known truth.

Usage: ``PYTHONPATH=. python3 scripts/decision_trial.py --out decision-trial.json``

10,000 candidates that are no better than the best and 10,000 that are 2 % faster, under 3 % noise
and 3 % drift, and shorter trials of other gains and other kinds of noise, through the statistics
and the rule that a session uses. The same seed gives the same figures on any number of processes.
Exit status 1 when more than 0.1 % false KEEPs or more than 5 % missed gains of 2 % are seen.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from croq_fsm.config import load
from croq_fsm.toolchain.simulated import decisions

_NICE = 10


def main() -> int:
    """Run all scenarios, print a line for each as it ends, write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decisions", type=int, default=10_000)
    parser.add_argument(
        "--others", type=int, default=2_000, help="of the scenarios that are no goal"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--config", type=Path, help="other settings of [measure]")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    settings = load(options.config).measure
    parts = list(decisions.chunks(options.decisions, options.others, options.seed))
    lengths: dict[tuple[str, float], int] = {}
    for part in parts:
        key = (part.noise, part.gain)
        lengths[key] = lengths.get(key, 0) + part.decisions
    began, tallies = time.monotonic(), {k: decisions.Tally(*k) for k in lengths}
    with ProcessPoolExecutor(options.processes, initializer=os.nice, initargs=(_NICE,)) as pool:
        for tally in pool.map(partial(decisions.run, settings=settings), parts):
            key = (tally.noise, tally.gain)
            tallies[key].add(tally)
            if tallies[key].decisions == lengths[key]:
                print(_line(tallies[key]), flush=True)
    table = decisions.summary(tallies, settings)
    table["seed"] = options.seed
    table["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, {_processor()}"
    table["minutes"] = round((time.monotonic() - began) / 60, 1)
    if options.out:
        options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(table["goal"]))
    return 0 if table["goal"]["met"] else 1


def _line(tally: decisions.Tally) -> str:
    wrong = "false KEEP" if tally.gain == 0 else "missed    "
    share = tally.kept if tally.gain == 0 else 1.0 - tally.kept
    return (
        f"{tally.noise:24} gain {tally.gain:5.1%}  {wrong} {share:8.3%} of {tally.decisions:6}  "
        f"{tally.pairs / tally.decisions:6.1f} pairs, {tally.blocks / tally.decisions:6.1f} blocks"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


if __name__ == "__main__":
    sys.exit(main())
