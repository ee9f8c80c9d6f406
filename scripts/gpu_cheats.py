"""Cheating CUDA kernels on an SM90 device: each must be stopped, on its rung; honest ones pass.

Usage: ``PYTHONPATH=. python3 scripts/gpu_cheats.py --out DIR [--cache DIR] [--build-only]
[--no-sanitizer] [--only NAME …]``. Needs the CUDA toolkit and one H100 or H200. Prints a table and
writes ``cheats.json``; stored as ``docs/evidence/cheats-sm90.json`` it is what docs/cheats.md
tells. The exit status is 0 only if no cheat passed and no honest kernel was refused.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from croq_fsm.config import Config, Deadlines
from croq_fsm.domain.build import Build
from croq_fsm.domain.hidden import hidden_tasks
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateError,
    CandidateHung,
    CompileFailed,
    CroqError,
)
from croq_fsm.measure.stats import estimate
from croq_fsm.toolchain.cuda import CudaWorkbench
from croq_fsm.toolchain.cuda_twins import twins
from croq_fsm.toolchain.cuda_twins_text import SHAPE, CudaTwin
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.workbench import TimingPlan

SEEDS: Final = (1, 2)
PLAN: Final = TimingPlan(
    purpose="pairs", pairs=5, block_s=0.005, max_launches=20, warmup_s=0.01, seed=3
)
#: A cache that works, or a timer that was stopped, gives far more than this.
NO_GAIN: Final = 1.1
TASK: Final = Task(
    dsl="cuda", operator="matmul", dtype="f16", shape=SHAPE, kernel="builtin:", model="check"
)
#: Wrong, but not seen by every check: what sanitizers say of it is told beside the table.
TOLD: Final = "unsynchronised"


@dataclass(frozen=True)
class Result:
    """How far a kernel came.

    Attributes:
        rung: Where it was stopped; ``nothing`` when it passed everything.
        outcome: The round's decision.
        reason: A sentence.
        holds: Whether that is what must come of it.
        seconds: How long it took.
    """

    rung: str
    outcome: str
    reason: str
    holds: bool = False
    seconds: float = 0.0


class Ladder:
    """Sends kernels up the rungs, as the states do.

    Args:
        bench: The workbench.
        sanitizers: Whether honest kernels are run under sanitizers as well.
    """

    def __init__(self, bench: CudaWorkbench, *, sanitizers: bool) -> None:
        self.bench = bench
        self.sanitizers = sanitizers
        self._plain = bench.start_kernel(TASK)

    def climb(self, twin: CudaTwin, *, build_only: bool) -> Result:
        """How far the kernel comes, and whether it had to come so far."""
        began = time.monotonic()
        found = self._climb(twin, build_only=build_only)
        if build_only and twin.is_built:
            holds = found.rung == "nothing"
        else:
            holds = (found.rung, found.outcome) == (twin.rung, twin.outcome)
        seconds = round(time.monotonic() - began, 1)
        return Result(found.rung, found.outcome, found.reason, holds, seconds)

    def _climb(self, twin: CudaTwin, *, build_only: bool) -> Result:
        problems = [] if twin.unseen else self.bench.lint(twin.candidate, TASK)
        if problems:
            return Result("lint", Decision.COMPILE_FAIL.name, problems[0])
        try:
            build = self.bench.build(twin.candidate, TASK)
        except CompileFailed as exc:
            return Result("build", Decision.COMPILE_FAIL.name, str(exc))
        if build_only:
            return Result("nothing", "", "built")
        return self._run(twin, build)

    def _run(self, twin: CudaTwin, build: Build) -> Result:
        rung = "verify"
        try:
            if problem := self._wrong(build, TASK, SEEDS):
                return Result(rung, Decision.VERIFY_FAIL.name, problem)
            rung = "time"
            ratio, told = self._ratio(build)
            if twin.rung == rung and ratio < NO_GAIN:
                return Result(rung, Decision.DISCARD.name, told)
            rung = "hidden-shape"
            for task in hidden_tasks(TASK, PLAN.seed, 2):
                if problem := self._wrong(build, task, SEEDS[:1]):
                    return Result(rung, Decision.VERIFY_FAIL.name, problem)
            rung = "sanitizer"
            return self._sanitized(twin, told)
        except CandidateError as exc:
            return Result(rung, _kind(exc).name, str(exc))

    def _sanitized(self, twin: CudaTwin, told: str) -> Result:
        if not self.sanitizers:
            return Result("nothing", "", told)
        checks = self.bench.sanitize(twin.candidate, TASK)
        for check in checks:
            if check.objects:
                text = f"{check.name}: {check.detail}"
                return Result("sanitizer", Decision.VERIFY_FAIL.name, text)
        words = (f"{c.name} {'clean' if c.passed else c.skipped}" for c in checks)
        return Result("nothing", "", "; ".join([told, *words]))

    def _wrong(self, build: Build, task: Task, seeds: tuple[int, ...]) -> str:
        failure = self.bench.verify(build, task, seeds).first_failure
        return f"{failure.name}: {failure.detail}" if failure else ""

    def _ratio(self, build: Build) -> tuple[float, str]:
        plain = self.bench.build(self._plain, TASK)
        samples = self.bench.time({"candidate": build, "best": plain}, TASK, PLAN)
        ratio = estimate(samples, "best", "candidate", PLAN.seed).ratio
        return ratio, f"measured as {ratio:.2f} times as fast as the start kernel"

    def tell(self, twin: CudaTwin) -> list[str]:
        """What the sanitizers say of a kernel that is wrong; it decides nothing here."""
        checks = self.bench.sanitize(twin.candidate, TASK)
        return [f"{c.name}: {c.detail or c.skipped}"[:400] for c in checks]


def _kind(exc: CandidateError) -> Decision:
    if isinstance(exc, CandidateCrashed):
        return Decision.SEGFAULT
    return Decision.HANG if isinstance(exc, CandidateHung) else Decision.RUN_FAIL


def _line(twin: CudaTwin, result: Result) -> str:
    mark = "ok  " if result.holds else "FAIL"
    ends = f"{result.rung} {result.outcome}".strip()
    wanted = "" if result.holds else f" (must be {twin.rung} {twin.outcome})"
    return f"{mark} {twin.name:24} {ends:26} {result.seconds:5.1f} s{wanted} {result.reason[:160]}"


def run(ladder: Ladder, chosen: list[CudaTwin], *, build_only: bool) -> dict[str, Result]:
    """All kernels, one after the other; trouble of the machine is a result that does not hold."""
    results = {}
    for twin in chosen:
        try:
            results[twin.name] = ladder.climb(twin, build_only=build_only)
        except CroqError as exc:
            results[twin.name] = Result("none", type(exc).__name__, str(exc))
        print(_line(twin, results[twin.name]), flush=True)
    return results


def main() -> int:
    """Try them all, print the table, write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--no-sanitizer", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--list", action="store_true", help="print the names of the kernels")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    config = Config(deadlines=Deadlines(verify_s=12.0, block_s=12.0, profile_s=40.0))
    runner = LocalRunner("cheats", NullJournal(), threading.Event(), config.deadlines)
    work = Path(tempfile.mkdtemp(prefix="croq-cheats-"))
    bench = CudaWorkbench(runner, config, options.cache or work / "cache", work)
    ladder = Ladder(bench, sanitizers=not options.no_sanitizer)
    known = twins(bench.start_kernel(TASK))
    if options.list:
        print("\n".join(known))
        return 0
    chosen = [t for t in known.values() if not options.only or t.name in options.only]
    began = time.monotonic()
    results = run(ladder, chosen, build_only=options.build_only)
    bad = [name for name, result in results.items() if not result.holds]
    seconds = time.monotonic() - began
    print(f"\n{len(results)} kernels, {len(bad)} not as they must be, {seconds:.0f} s")
    if options.build_only:
        return bool(bad)
    told = ladder.tell(known[TOLD]) if ladder.sanitizers else []
    print("\n".join(f"  {TOLD}, {line}" for line in told))
    device = bench.device()
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": device.name,
        "harness": bench.build(bench.start_kernel(TASK), TASK).harness,
        "kernels": {name: asdict(result) for name, result in results.items()},
        "told": told,
    }
    (options.out / "cheats.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
