#!/usr/bin/env python3
r"""Stress the real engine with simulated agents: what is each guard worth?

usage: scripts/mock_skill_ab_test.py --agents-per-dsl 24 --round-target 336 --seed 20260411 \
           --run-name strict_ab_20260411_336iters

Each session is a real one: state machine, SQLite with its usual pragmas, files, recovery, audit;
compilers, device and clock are simulated, so that a night takes seconds. Each agent works in every
variant: ``strict`` has all guards, each control has one switched off. Sessions are crashed at
fault points, killed with -9 and resumed, all by the seed. Writes config.json, summary.json,
summary.tsv, analysis.md, plots/ and runs/ below OUTPUT_ROOT/RUN_NAME; started again with the same
arguments it goes on with the sessions that are missing. The outcome depends on the arguments
alone, not on the number of workers and not on how often it was killed. Exit status 1 when strict
broke a rule or missed its target.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import structlog
from _stress_night import STRICT, VARIANTS, Job, probe_once, run
from _stress_report import write
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

#: DSLs that the simulator models.
_SIMULATED: Final = ("croqtile",)
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a random name below it
_PR_SET_PDEATHSIG: Final = 1


def main() -> int:
    """Run what is missing, then write the outcome."""
    asked = _arguments()
    folder = Path(asked.output_root) / asked.run_name
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    config = _config(asked)
    _same_or_new(folder / "config.json", config)
    scratch = tempfile.mkdtemp(prefix="stress-", dir=_scratch_root(asked.scratch))
    began = time.monotonic()
    try:
        results = _all(_jobs(asked, scratch), folder / "runs", asked.jobs)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    write(folder, results, config)
    sys.stdout.write((folder / "analysis.md").read_text(encoding="utf-8"))
    sys.stderr.write(f"{time.monotonic() - began:.0f} s; written to {folder}\n")
    strict = [r for r in results if r["variant"] == STRICT]
    good = all(
        r["reached_target"] and not r["violations"] and not r["validate_problems"]
        and not r["checkpoint_problems"] for r in strict
    )  # fmt: skip
    return 0 if good else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dsls", default=",".join(_SIMULATED))
    parser.add_argument("--agents-per-dsl", type=int, default=32)
    parser.add_argument("--round-target", type=int, default=220)
    parser.add_argument("--seed", type=int, default=20260409)
    parser.add_argument("--output-root", default="stress")
    parser.add_argument("--run-name", default="strict_ab")
    parser.add_argument("--variants", default="all", help="all, or names joined by commas")
    parser.add_argument(
        "--control-rounds",
        type=int,
        default=96,
        help="rounds after which a control that nothing got through ends",
    )
    parser.add_argument("--check-every", type=int, default=16, help="rounds between checkpoints")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--git", action="store_true", help="commit KEEPs, too")
    parser.add_argument("--scratch", default="", help="where sessions live while they run")
    asked = parser.parse_args()
    asked.dsls = [name for name in asked.dsls.split(",") if name]
    asked.variants = list(VARIANTS) if asked.variants == "all" else asked.variants.split(",")
    unknown = [d for d in asked.dsls if d not in _SIMULATED]
    if unknown:
        parser.error(f"{', '.join(unknown)}: only {', '.join(_SIMULATED)} can be simulated")
    if set(asked.variants) - set(VARIANTS):
        parser.error(f"variants are {', '.join(VARIANTS)}")
    return asked


def _config(asked: argparse.Namespace) -> dict[str, Any]:
    """All that the outcome depends on."""
    return {
        "run_name": asked.run_name,
        "dsls": asked.dsls,
        "agents_per_dsl": asked.agents_per_dsl,
        "round_target": asked.round_target,
        "seed": asked.seed,
        "variants": asked.variants,
        "control_rounds": asked.control_rounds,
        "check_every": asked.check_every,
        "git": asked.git,
    }


def _same_or_new(path: Path, config: dict[str, Any]) -> None:
    if path.is_file() and json.loads(path.read_text(encoding="utf-8")) != config:
        sys.exit(f"{path} is of another run; give this one another --run-name")
    _put(path, config)


def _scratch_root(asked: str) -> Path | None:
    """Memory, where it can be had: files and database are real, the disk is not what is tried."""
    if asked:
        return Path(asked)
    usable = _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK)
    return _SHARED_MEMORY if usable else None


def _jobs(asked: argparse.Namespace, scratch: str) -> list[Job]:
    """The long ones first."""
    long, short = asked.round_target, min(asked.round_target, asked.control_rounds)
    return [
        Job(
            variant=variant,
            dsl=dsl,
            agent=agent,
            rounds=long,
            limit=long if variant == STRICT else short,
            seed=asked.seed,
            check_every=asked.check_every,
            git=asked.git,
            scratch=scratch,
        )
        for variant in asked.variants
        for dsl in asked.dsls
        for agent in range(asked.agents_per_dsl)
    ]


def _all(jobs: list[Job], folder: Path, workers: int) -> list[dict[str, Any]]:
    """Results of all jobs; those that are there already are not run again."""
    missing = [job for job in jobs if not (folder / f"{job.name}.json").is_file()]
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, console=Console(stderr=True)) as progress,
        ProcessPoolExecutor(workers, get_context("spawn"), _begin, (os.getpid(),)) as pool,
    ):
        shown = progress.add_task("sessions", total=len(jobs), completed=len(jobs) - len(missing))
        waiting = {pool.submit(run, job): job for job in missing}
        for done in as_completed(waiting):
            _put(folder / f"{waiting[done].name}.json", done.result())
            progress.advance(shown)
    return [json.loads((folder / f"{j.name}.json").read_text(encoding="utf-8")) for j in jobs]


def _begin(parent: int) -> None:
    """Make a worker quiet, and mortal with its parent."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    probe_once()


def _put(path: Path, value: dict[str, Any]) -> None:
    """Whole or not at all."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    sys.exit(main())
