"""A/A trial: how often does a candidate that is the best itself win? Goal 0, bound 1 in 300.

Usage: ``PYTHONPATH=. python3 scripts/aa_trial.py --dsl c --dtype f32 --shape 256x256x256``

Each candidate differs from the best by a comment only, so it has the same machine code. It goes
through the same measurements and the same rule as in a session: screen, pairs, confirmation, each
in fresh processes. The past of a session would refuse such a candidate; that is left out here on
purpose. Prints one line per verdict that is no DISCARD, and a table; exit status 1 above the bound.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from croq_fsm.config import load
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.operators import operator
from croq_fsm.domain.shapes import parse_shape
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.measure.trial import Trial
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.registry import open_workbench
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.workbench import Workbench

_BOUND = 300


def twin(source: Candidate, number: int) -> Candidate:
    """The same kernel with a comment of its own."""
    return source.model_copy(update={"source": f"{source.source}/* twin {number} */\n"})


@dataclass
class Rounds:
    """The rounds of a trial, and the table of what was decided until now.

    Attributes:
        trial: Judges candidates.
        bench: Builds them.
        source: The kernel.
        out: File that holds the table after each round; None keeps it in memory.
    """

    trial: Trial
    bench: Workbench
    source: Candidate
    out: Path | None
    began: float = field(default_factory=time.monotonic)

    def run(self, numbers: range, until: float) -> None:
        """All rounds, or those for which there is time; each candidate has its own source."""
        best = self.bench.build(self.source, self.trial.task)
        for number in numbers:
            if time.monotonic() > until:
                print("the time is up; the table counts what was decided until now")
                return
            candidate = self.bench.build(twin(self.source, number), self.trial.task)
            if candidate.device_code != best.device_code:
                raise SystemExit("a comment changed the machine code; this is no A/A trial")
            done = self.trial.decide(candidate, 1000 * number)
            if done.decision is not Decision.DISCARD:
                print(f"round {number}: {done.decision} {done.estimate} {done.reason}", flush=True)
            self.store()

    def table(self) -> dict[str, object]:
        """What was decided."""
        return {
            "task": f"{self.trial.task.dsl} {self.trial.task.shape_key}",
            "device": self.bench.device().name,
            "rounds": self.trial.verdicts.total(),
            "false KEEP": self.trial.verdicts[str(Decision.KEEP)],
            "decided in a confirmation": self.trial.phases["confirm"],
            "pairs": self.trial.pairs,
            "noise floor at the start": round(self.trial.noise, 5),
            "minutes": round((time.monotonic() - self.began) / 60, 1),
        }

    def store(self) -> None:
        """Write the table, so that it outlives whatever ends the trial."""
        if self.out is not None:
            temporary = self.out.with_suffix(".tmp")
            temporary.write_text(json.dumps(self.table(), indent=1) + "\n", encoding="utf-8")
            temporary.replace(self.out)


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
    parser.add_argument("--first", type=int, default=1, help="number of the first twin")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--cache", type=Path, help="build cache to use and to fill")
    parser.add_argument("--jobs", type=int, default=1, help="builds at one time, before the rounds")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    config = load(None)
    runner = LocalRunner("aa-trial", NullJournal(), threading.Event(), config.deadlines)
    folder = Path(tempfile.mkdtemp(prefix="croq-aa-"))
    cache = options.cache or folder / "cache"
    bench = open_workbench(options.dsl, runner, config, cache, folder / "work")
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
    trial = Trial(bench, task, config.measure, bench.build(source, task))
    numbers = range(options.first, options.first + options.rounds)
    if options.jobs > 1:
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda n: bench.build(twin(source, n), task), numbers))
    trial.measure_noise()
    rounds = Rounds(trial, bench, source, options.out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        rounds.run(numbers, rounds.began + 60.0 * options.minutes)
    except KeyboardInterrupt:
        print("interrupted; the table counts what was decided until now")
    for name, value in rounds.table().items():
        print(f"{name:26} {value}")
    rounds.store()
    kept = trial.verdicts[str(Decision.KEEP)]
    return 0 if kept * _BOUND <= trial.verdicts.total() else 1


if __name__ == "__main__":
    sys.exit(main())
