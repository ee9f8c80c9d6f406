"""Evidence from an SM90 device for every operator and dtype: right, fast, wrong ones refused.

Usage: ``PYTHONPATH=. python3 scripts/gpu_operators.py --out DIR [--cache DIR] [--build-only]``
with ``[--only WORD]`` for the rows whose name has a word in it (``--exact``: is that word).
``--list`` prints the names, so that several processes can build at once. Each kernel is built,
verified on three seeds and timed against the library; kernels that are wrong on purpose must be
refused. Prints one table and writes ``operators.json``; the exit status is 0 only if everything
held. With all builds in the cache it takes less than three minutes of the device.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from croq_fsm.config import Config, Deadlines
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.operators import SUPPORTED
from croq_fsm.domain.task import Task
from croq_fsm.errors import CroqError
from croq_fsm.measure.stats import block_seconds, estimate
from croq_fsm.toolchain import croqtile_bench as benches
from croq_fsm.toolchain.croqtile import CroqtileWorkbench
from croq_fsm.toolchain.cuda import CudaWorkbench
from croq_fsm.toolchain.operator_twins import WrongKernel, wrong_kernels
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.workbench import TimingPlan

Workbench = CroqtileWorkbench | CudaWorkbench

SHAPE = (4096, 4096, 4096)
#: Kernels in plain CUDA C++ are a start and no more; they are verified on less.
SMALLER = (1024, 1024, 2048)
SEEDS = (1, 2, 3)
ANSWER_S = 60.0


@dataclass
class Evidence:
    """Workbenches by DSL, lines of the table, facts for the JSON file."""

    benches: dict[str, Workbench]
    only: str
    exact: bool = False
    names: list[str] | None = None
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def attempt(self, name: str, action: Callable[[], dict[str, Any]]) -> None:
        """One row of the table; a failure of it is a row, not the end."""
        if self.names is not None:
            self.names.append(name)
            return
        if self.only not in name or (self.exact and self.only != name):
            return
        began = time.monotonic()
        try:
            row = action()
        except Exception as exc:  # noqa: BLE001 - every failure belongs in the table
            log = getattr(exc, "log", "") if isinstance(exc, CroqError) else traceback.format_exc()
            row = {"ok": False, "text": f"{type(exc).__name__}: {exc}", "log": log[-1500:]}
        row["seconds"] = round(time.monotonic() - began, 2)
        self.facts[name] = row
        print(f"{'ok  ' if row['ok'] else 'FAIL'} {name}: {row['text']}", flush=True)
        if row.get("log"):
            print(row["log"], flush=True)

    def start(self, dsl: str, operator: str, dtype: str) -> Candidate:
        """The start kernel that ships."""
        return self.benches[dsl].start_kernel(task_for(dsl, operator, dtype))

    @property
    def wrong(self) -> dict[str, WrongKernel]:
        """The kernels that must be refused."""
        return wrong_kernels(self.start)


def task_for(dsl: str, operator: str, dtype: str) -> Task:
    """The task of a row."""
    shape = SHAPE if dsl == "croqtile" else SMALLER
    return Task(dsl=dsl, operator=operator, dtype=dtype, shape=shape, kernel="", model="check")


def built(bench: Workbench, candidate: Candidate, task: Task) -> Build:
    """The build; a start kernel that a lint objects to is an error."""
    problems = bench.lint(candidate, task)
    if problems:
        raise RuntimeError(f"lint: {problems}")
    return bench.build(candidate, task)


def build_row(evidence: Evidence, dsl: str, operator: str, dtype: str) -> dict[str, Any]:
    """Build one start kernel."""
    task = task_for(dsl, operator, dtype)
    made = built(evidence.benches[dsl], evidence.start(dsl, operator, dtype), task)
    text = f"{made.resources}, {made.seconds:.1f} s"
    return {"ok": True, "text": text, "remarks": list(made.remarks)}


def measure_row(evidence: Evidence, dsl: str, operator: str, dtype: str) -> dict[str, Any]:
    """Build, verify and time one start kernel."""
    task, bench = task_for(dsl, operator, dtype), evidence.benches[dsl]
    made = built(bench, evidence.start(dsl, operator, dtype), task)
    found = bench.verify(made, task, SEEDS)
    errors = [check.rel_error for check in found.checks]
    row: dict[str, Any] = {"errors": errors, "bound": task.op.error_bound(task.shape, task.dtype)}
    failure = found.first_failure
    if failure:
        return {**row, "ok": False, "text": f"{failure.name}: {failure.detail}"}
    try:
        row |= library_facts(bench, task)
        row |= timed(bench, made, task)
    except CroqError as exc:
        text = f"right (errors {errors}), but not measured: {type(exc).__name__}: {exc}"
        return {**row, "ok": False, "text": text}
    expected = task.precision.library
    text = (
        f"error {errors[1]:.2g} of {row['bound']:.2g}, {row['kind']} {row['library_error']}, "
        f"{row['tflops']:.0f} TFLOPS, {row['kind']} {row['library_tflops']:.0f}, "
        f"ratio {row['ratio']:.3f}"
    )
    return {**row, "ok": str(row["kind"]).startswith(expected), "text": text}


def library_facts(bench: Workbench, task: Task) -> dict[str, Any]:
    """Which library call stands for the task, and how far it is from the reference itself."""
    programs = bench._programs(ANSWER_S)  # noqa: SLF001 - evidence looks inside
    with tempfile.TemporaryDirectory() as name, programs.trusted(task, Path(name)) as judge:
        info = judge.ask({"cmd": "library"}, ANSWER_S)
        case = benches.cases(task, SEEDS)[1]
        request: dict[str, object] = {"cmd": "library_error", "seed": case.seed, "dist": case.dist}
        error = judge.ask(request, ANSWER_S)
    return {
        "kind": info["kind"],
        "cublas": info["cublas"],
        "library_error": error.get("rel_error", error.get("absent")),
    }


def timed(bench: Workbench, made: Build, task: Task) -> dict[str, Any]:
    """A short interleaved measurement against the library."""
    plan = TimingPlan(purpose="baseline", pairs=5, block_s=0.02, warmup_s=0.03)
    samples = bench.time({"candidate": made, "library": "library"}, task, plan)
    return {
        "tflops": task.tflops(block_seconds(samples, "candidate")),
        "library_tflops": task.tflops(block_seconds(samples, "library")),
        "ratio": estimate(samples, "library", "candidate", 1).ratio,
    }


def refuse_row(evidence: Evidence, wrong: WrongKernel, *, build_only: bool) -> dict[str, Any]:
    """A wrong kernel must be refused, and for the right reason."""
    task, bench = task_for(wrong.dsl, wrong.operator, wrong.dtype), evidence.benches[wrong.dsl]
    made = bench.build(wrong.candidate, task)
    if build_only:
        return {"ok": True, "text": f"{made.seconds:.1f} s"}
    failure = bench.verify(made, task, SEEDS[:1]).first_failure
    if failure is None:
        return {"ok": False, "text": "passed, though it is wrong"}
    return {"ok": wrong.says in failure.detail, "text": f"{failure.name}: {failure.detail[:200]}"}


def run(evidence: Evidence, *, build_only: bool) -> None:
    """All rows."""
    row = build_row if build_only else measure_row
    for dsl in evidence.benches:
        for operator, dtype in sorted(SUPPORTED[dsl]):
            evidence.attempt(
                f"{dsl} {operator} {dtype}",
                lambda d=dsl, o=operator, t=dtype: row(evidence, d, o, t),  # type: ignore[misc]
            )
    for name, wrong in evidence.wrong.items():
        evidence.attempt(
            f"refuse {name}",
            lambda w=wrong: refuse_row(evidence, w, build_only=build_only),  # type: ignore[misc]
        )


def main() -> int:
    """Run all rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--only", default="", help="rows whose name has this in it")
    parser.add_argument("--exact", action="store_true", help="--only is a complete name")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    config = Config(deadlines=Deadlines(verify_s=30.0))
    runner = LocalRunner("operators", NullJournal(), threading.Event(), config.deadlines)
    work = Path(tempfile.mkdtemp(prefix="croq-operators-"))
    cache = options.cache or work / "cache"
    found: dict[str, Workbench] = {
        "croqtile": CroqtileWorkbench(runner, config, cache, work),
        "cuda": CudaWorkbench(runner, config, cache, work),
    }
    evidence = Evidence(found, options.only, options.exact, [] if options.list else None)
    began = time.monotonic()
    run(evidence, build_only=options.build_only)
    if evidence.names is not None:
        print("\n".join(evidence.names))
        return 0
    print(f"\n{'row':44} {'ok':5} {'seconds':>8}")
    for name, row in evidence.facts.items():
        said = "ok" if row["ok"] else "FAIL"
        print(f"{name:44} {said:5} {row['seconds']:8.1f}  {row['text'][:110]}")
    print(f"{len(evidence.facts)} rows, {time.monotonic() - began:.0f} s")
    target = options.out / "operators.json"
    target.write_text(json.dumps(evidence.facts, indent=1), encoding="utf-8")
    return 0 if evidence.facts and all(row["ok"] for row in evidence.facts.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
