"""A/A trial: how often does a candidate that is the best itself win? Goal 0, bound 1 in 300.

Usage: ``python3 scripts/aa_trial.py --dsl c --dtype f32 --shape 256x256x256 --rounds 300``

Each candidate differs from the best by a comment only, so it has the same machine code. It goes
through the same measurements and the same rule as in a session: screen, pairs, confirmation, each
in fresh processes. The past of a session would refuse such a candidate; that is left out here on
purpose. Prints one line per verdict that is no DISCARD, and a table; exit status 1 above the bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from croq_fsm.config import Config, load
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.decision import Ruling, rule
from croq_fsm.domain.measurement import Estimate, Samples, merge
from croq_fsm.domain.operators import operator
from croq_fsm.domain.shapes import parse_shape
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.domain.work import Phase
from croq_fsm.measure import sets, stats
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.registry import open_workbench
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.workbench import Contestant, TimingPlan, Workbench

_BOUND = 300


@dataclass
class Trial:
    """One trial on one workbench."""

    bench: Workbench
    task: Task
    config: Config
    best: Build
    noise: float = 0.0
    verdicts: Counter[str] = field(default_factory=Counter)
    pairs: int = 0
    confirmations: int = 0

    def time(self, names: dict[str, Contestant], phase: Phase, pairs: int, seed: int) -> Samples:
        """Interleaved samples with the plan of a session."""
        settings = self.config.measure
        plan = TimingPlan(
            purpose=phase,
            pairs=pairs,
            block_s=settings.block_s,
            max_launches=settings.max_launches,
            warmup_s=settings.warmup_s,
            regime=settings.regime,
            l2=settings.l2,
            seed=seed,
        )
        self.pairs += pairs
        if phase == "screen":
            return self.bench.time(names, self.task, plan)
        return sets.timed(self.bench, names, self.task, plan, settings.pairs_per_process)

    def decide(self, candidate: Build, number: int) -> tuple[Ruling, Estimate]:
        """Measure as MEASURE does and rule as DECIDE does, until there is a decision."""
        settings = self.config.measure
        phase: Phase = "screen"
        pairs, taken = settings.screen_pairs, list[Samples]()
        while True:
            names: dict[str, Contestant] = {"candidate": candidate, "best": self.best}
            if phase == "confirm":
                names["twin"] = candidate
                self.confirmations += 1
            taken.append(self.time(names, phase, pairs, 1000 * number + len(taken)))
            merged = merge([s for s in taken if s.purpose == phase])
            estimate = stats.estimate(merged, "best", "candidate", seed=1)
            fresh = stats.twin_noise(merged)
            noise = self.noise if fresh is None else fresh
            ruling = rule(phase, estimate, settings.decision_policy(noise))
            if ruling.decision is not None:
                return ruling, estimate
            phase, pairs = ruling.next_phase, ruling.next_pairs


def run(trial: Trial, source: Candidate, rounds: int) -> None:
    """All rounds; each candidate is built from a source of its own."""
    for number in range(1, rounds + 1):
        text = f"{source.source}/* twin {number} */\n"
        candidate = trial.bench.build(source.model_copy(update={"source": text}), trial.task)
        if candidate.device_code != trial.best.device_code:
            raise SystemExit("a comment changed the machine code; this is no A/A trial")
        ruling, estimate = trial.decide(candidate, number)
        verdict = str(ruling.decision)
        trial.verdicts[verdict] += 1
        if ruling.decision is not Decision.DISCARD:
            print(f"round {number}: {verdict} {estimate} {ruling.reason}", flush=True)


def main() -> int:
    """Build the kernel, measure its noise floor, run the rounds, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsl", default="c")
    parser.add_argument("--operator", default="matmul")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--shape", default="256x256x256")
    parser.add_argument("--kernel", type=Path)
    parser.add_argument("--flag", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=_BOUND)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = load(None)
    runner = LocalRunner("aa-trial", NullJournal(), threading.Event(), config.deadlines)
    folder = Path(tempfile.mkdtemp(prefix="croq-aa-"))
    bench = open_workbench(options.dsl, runner, config, folder / "cache", folder / "work")
    shape = parse_shape(options.shape, operator(options.operator).dims)
    task = Task(
        dsl=options.dsl,
        operator=options.operator,
        dtype=options.dtype,
        shape=shape,
        kernel=f"builtin:{options.operator}",
        model="aa",
    )
    source = bench.start_kernel(task)
    if options.kernel:
        source = Candidate(source=options.kernel.read_text(encoding="utf-8"))
    source = source.model_copy(update={"flags": tuple(options.flag)})
    trial = Trial(bench, task, config, bench.build(source, task))
    began = time.monotonic()
    aa: dict[str, Contestant] = {"a": trial.best, "b": trial.best}
    plan = TimingPlan(purpose="noise", pairs=config.measure.pairs)
    per_process = config.measure.pairs_per_process
    trial.noise = stats.noise_floor(sets.timed(bench, aa, task, plan, per_process))
    try:
        run(trial, source, options.rounds)
    except KeyboardInterrupt:
        print("interrupted; the table counts what was decided until now")
    kept = trial.verdicts[str(Decision.KEEP)]
    table = {
        "task": f"{task.dsl} {task.shape_key}",
        "device": bench.device().name,
        "rounds": trial.verdicts.total(),
        "false KEEP": kept,
        "confirmations asked for": trial.confirmations,
        "pairs": trial.pairs,
        "noise floor at the start": round(trial.noise, 5),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    for name, value in table.items():
        print(f"{name:26} {value}")
    if options.out:
        options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0 if kept * _BOUND <= trial.verdicts.total() else 1


if __name__ == "__main__":
    sys.exit(main())
