"""Evidence from an SM90 device: build, verify, time, profile, and show that a wrong kernel fails.

Usage: ``PYTHONPATH=. python3 scripts/gpu_check.py --out DIR [--cache DIR] [--build-only]``.
Needs the Choreo compiler (CHOREO_HOME), CUTE headers, the CUDA toolkit and one H100 or H200.
Prints one table and writes ``gpu_check.json``; the exit status is 0 only if everything held.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from croq_fsm.config import Config, Deadlines
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateError, CroqError
from croq_fsm.measure.stats import block_seconds, estimate, noise_floor
from croq_fsm.toolchain import croqtile_bench as benches
from croq_fsm.toolchain.croqtile import CroqtileWorkbench
from croq_fsm.toolchain.croqtile_twins import Twin, twins
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.workbench import TimingPlan

SHAPE = (4096, 8192, 4096)
SEEDS = (1, 2, 3)


def task_for(dtype: str, shape: tuple[int, ...] = SHAPE) -> Task:
    """The matmul task of this check."""
    return Task(
        dsl="croqtile", operator="matmul", dtype=dtype, shape=shape, kernel="", model="check"
    )


@dataclass
class Check:
    """Collects lines of the table and facts for the JSON file."""

    bench: CroqtileWorkbench
    jobs: int = 1
    rows: list[tuple[str, bool, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def line(self, what: str, holds: bool, text: str) -> None:
        """One line of the table."""
        self.rows.append((what, holds, text))
        print(f"{'ok  ' if holds else 'FAIL'} {what}: {text}", flush=True)

    def attempt(self, what: str, action: Callable[[], None]) -> None:
        """Run a part; a failure of it is a line, not the end."""
        began = time.monotonic()
        try:
            action()
        except Exception as exc:  # noqa: BLE001 - every failure belongs in the table
            log = getattr(exc, "log", "") if isinstance(exc, CroqError) else traceback.format_exc()
            self.line(what, False, f"{type(exc).__name__}: {exc}\n{log[-1500:]}")
        print(f"     ({what}: {time.monotonic() - began:.1f} s)", flush=True)


def kernels(bench: CroqtileWorkbench) -> dict[str, Candidate]:
    """The start kernels that ship."""
    return {
        name: bench.start_kernel(
            task_for(name.split("_")[0]).model_copy(update={"kernel": f"builtin:matmul_{name}"})
        )
        for name in ("f16_plain", "f16_warpspec", "bf16_plain", "bf16_warpspec")
    }


def wrong_kernels(bench: CroqtileWorkbench) -> dict[str, Twin]:
    """The kernels that must fail."""
    return twins(bench.start_kernel(task_for("f16")))


def dtype_of(name: str) -> str:
    """Element type of a kernel of this check."""
    return "bf16" if name.startswith("bf16") else "f16"


def build_all(check: Check) -> dict[str, Build]:
    """Build every kernel; lints must be silent on ours and speak on the early release."""
    builds = {}
    wrong = {name: twin.candidate for name, twin in wrong_kernels(check.bench).items()}
    check.bench.build(check.bench.start_kernel(task_for("f16")), task_for("f16"))
    with ThreadPoolExecutor(check.jobs) as pool:  # what fails here fails again below, and is told
        for name, candidate in {**kernels(check.bench), **wrong}.items():
            pool.submit(check.bench.build, candidate, task_for(dtype_of(name)))
    for name, candidate in {**kernels(check.bench), **wrong}.items():
        task = task_for(dtype_of(name))
        builds[name] = check.bench.build(candidate, task)
        lints = check.bench.lint(candidate, task)
        fine = bool(lints) == (name == "racy_early")
        made = builds[name]
        text = f"{made.resources}, {made.seconds:.1f} s, remarks {made.remarks}, lint {lints}"
        check.line(f"build {name}", fine, text)
    return builds


def build_fresh(check: Check, builds: dict[str, Build]) -> None:
    """A comment makes another build, but no other code."""
    plain = check.bench.start_kernel(task_for("f16"))
    commented = plain.model_copy(update={"source": f"{plain.source}// {secrets.token_hex(8)}\n"})
    made = check.bench.build(commented, task_for("f16"))
    same = made.device_code == builds["f16_plain"].device_code and not made.cached
    check.line("build anew, comment added", same, f"{made.seconds:.1f} s, same code: {same}")


def verify_all(check: Check, builds: dict[str, Build]) -> None:
    """Right kernels pass on three seeds."""
    for name in kernels(check.bench):
        found = check.bench.verify(builds[name], task_for(dtype_of(name)), SEEDS)
        errors = [c.rel_error for c in found.checks]
        failure = found.first_failure
        text = failure.detail if failure else f"relative errors {errors}"
        check.line(f"verify {name}", found.passed, text)
        check.facts[f"verify {name}"] = found.model_dump(mode="json")


def refuse_all(check: Check, builds: dict[str, Build]) -> None:
    """Each wrong kernel fails in the way that it must."""
    task = task_for("f16")
    for name, twin in wrong_kernels(check.bench).items():
        began = time.monotonic()
        try:
            found = check.bench.verify(builds[name], task, SEEDS)
            how, text = ("passed" if found.passed else "wrong"), str(found.first_failure)
            if found.passed and twin.fails == "timed":
                plan = TimingPlan(purpose="confirm", pairs=2)
                check.bench.time({"candidate": builds[name], "library": "library"}, task, plan)
        except CandidateError as exc:
            how, text = type(exc).__name__, str(exc)
            how = "timed" if twin.fails == "timed" else how
        holds = how == twin.fails and twin.says in text
        seconds = time.monotonic() - began
        check.line(f"refuse {name}", holds, f"{how}: {text[:300]} ({seconds:.1f} s)")


def judge_case(check: Check, build: Build, case: benches.Case) -> dict[str, object]:
    """What the judge says of one case."""
    task = task_for("f16")
    programs = check.bench._programs(120.0)  # noqa: SLF001 - evidence looks inside
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        binary = check.bench._cache.folder / build.binary  # noqa: SLF001 - evidence looks inside
        with programs.bench(binary, task, folder, case.name) as bench:
            benches.run_case(case, bench, folder / "out", 120.0)
        with programs.trusted(task, folder) as judge:
            return benches.judge_output(case, judge, folder / "out", 120.0)


def weak_check(check: Check, build: Build, name: str) -> None:
    """A racy kernel before a 5 % check on inputs uniform in [0, 2), and before ours."""
    weak = judge_case(check, build, benches.Case("uniform02", "weak", "uniform02", 1, 0.05, 0.0))
    text = f"relative error {weak['rel_error']}, {weak['wrong']} elements off by over 5 %"
    check.line(f"weak check passes {name}", weak["wrong"] == 0, text)
    normal = judge_case(check, build, benches.cases(task_for("f16"), (1,))[-1])
    text = f"relative error {normal['rel_error']}, {normal['wrong']} of {normal['total']} wrong"
    check.line(f"normal inputs refute {name}", bool(normal["wrong"]), text)


def verify_large(check: Check, builds: dict[str, Build]) -> None:
    """How long a large shape takes to be judged."""
    task = task_for("f16", (16384, 16384, 16384))
    began = time.monotonic()
    found = check.bench.verify(builds["f16_warpspec"], task, (1,))
    text = f"{time.monotonic() - began:.1f} s, {[c.rel_error for c in found.checks]}"
    check.line("verify 16384x16384x16384", found.passed, text)


def noise(check: Check, builds: dict[str, Build]) -> None:
    """One kernel against itself."""
    plan = TimingPlan(purpose="noise", pairs=12)
    same = {"a": builds["f16_warpspec"], "b": builds["f16_warpspec"]}
    samples = check.bench.time(dict(same), task_for("f16"), plan)
    ratio = estimate(samples, "a", "b", 1)
    fine = abs(ratio.ratio - 1) < 0.005  # noqa: PLR2004 - the smallest effect that counts
    text = f"ratio {ratio.ratio:.4f} [{ratio.low:.4f}, {ratio.high:.4f}]"
    check.line("noise", fine, f"{text}, floor {noise_floor(samples):.4f}")


def library(check: Check) -> None:
    """The library's own output is judged like any other."""
    programs = check.bench._programs(120.0)  # noqa: SLF001 - evidence looks inside
    task = task_for("f16")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with programs.trusted(task, folder) as judge:
            info = judge.ask({"cmd": "library"}, 120.0)
            for case in benches.cases(task, (1,)):
                request: dict[str, object] = {"cmd": "verify", "seed": case.seed}
                request |= {"dist": case.dist, "out": str(folder / case.name)}
                judge.ask(request, 120.0)
                judged = benches.judge_output(case, judge, folder / case.name, 120.0)
                found = benches.verdict(case, {}, judged, task.shape[1], may_differ=False)
                said = f"cuBLAS {info['cublas']}, relative error {found.rel_error} {found.detail}"
                check.line(f"library {case.name}", found.passed, said)


def time_all(
    check: Check, builds: dict[str, Build], shape: tuple[int, ...], plan: TimingPlan
) -> None:
    """Interleaved with the library."""
    task = task_for("f16", shape)
    contestants: dict[str, Any] = {
        "plain": builds["f16_plain"],
        "warpspec": builds["f16_warpspec"],
        "library": "library",
    }
    samples = check.bench.time(contestants, task, plan)
    parts = []
    for name in contestants:
        tflops = task.tflops(block_seconds(samples, name))
        ratio = estimate(samples, "library", name, 1)
        parts.append(
            f"{name} {tflops:.0f} TFLOPS ({ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}])"
        )
    clocks = {b.contestant: b.clocks for b in samples.blocks}
    label = f"time {'x'.join(map(str, shape))} {plan.regime} {plan.l2}"
    check.line(label, True, f"{'; '.join(parts)}; dropped {samples.dropped}; clocks {clocks}")
    check.facts[label] = samples.model_dump(mode="json")


def profile(check: Check, build: Build, name: str, *, full: bool, out: Path) -> None:
    """One profile; its report and CSV are kept."""
    found = check.bench.profile(build, task_for("f16"), full=full)
    for kind, path in found.files.items():
        (out / f"{name}.{kind}").write_bytes(check.bench.read(path))
    text = f"{found.bottleneck} ({found.confidence}), {len(found.metrics)} counters, {found.tool}"
    check.line(
        f"profile {name}",
        bool(found.metrics),
        text + "".join(f"\n       {e}" for e in found.evidence),
    )


def environment(check: Check) -> None:
    """Doctor, device, dialect."""
    for finding in check.bench.doctor():
        text = f"{finding.found} {finding.forbids} {finding.cure}".strip()
        check.line(f"doctor {finding.name}", finding.ok or not finding.required, text)
    check.line("device", True, check.bench.device().model_dump_json())
    check.line("dialect", True, json.dumps(check.bench.dialect()))


def run(check: Check, out: Path, *, build_only: bool) -> None:
    """All parts in order."""
    builds: dict[str, Build] = {}
    if build_only:
        build_all(check)
        return
    check.attempt("environment", lambda: environment(check))
    check.attempt("build", lambda: builds.update(build_all(check)))
    check.attempt("build anew", lambda: build_fresh(check, builds))
    check.attempt("verify", lambda: verify_all(check, builds))
    check.attempt("refuse", lambda: refuse_all(check, builds))
    check.attempt("library", lambda: library(check))
    for name in ("racy_early", "racy_wait1", "racy_wait2"):
        check.attempt(f"weak {name}", lambda n=name: weak_check(check, builds[n], n))  # type: ignore[misc]
    for regime, pairs in (("isolated", 10), ("burst", 6), ("sustained", 3)):
        plan = TimingPlan(purpose="pairs", pairs=pairs, regime=regime)  # type: ignore[arg-type]
        check.attempt(f"time {regime}", lambda p=plan: time_all(check, builds, SHAPE, p))  # type: ignore[misc]
    check.attempt("noise", lambda: noise(check, builds))
    check.attempt("verify large", lambda: verify_large(check, builds))
    small = TimingPlan(purpose="pairs", pairs=6)
    check.attempt("time small", lambda: time_all(check, builds, (1024, 1024, 1024), small))
    check.attempt(
        "profile small",
        lambda: profile(check, builds["f16_warpspec"], "warpspec", full=False, out=out),
    )
    check.attempt(
        "profile full", lambda: profile(check, builds["f16_plain"], "plain", full=True, out=out)
    )


def main() -> int:
    """Run all parts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="builds at one time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    config = Config(deadlines=Deadlines(verify_s=20.0))
    runner = LocalRunner("check", NullJournal(), threading.Event(), config.deadlines)
    work = Path(tempfile.mkdtemp(prefix="croq-check-"))
    cache = options.cache or work / "cache"
    check = Check(CroqtileWorkbench(runner, config, cache, work), options.jobs)
    run(check, options.out, build_only=options.build_only)
    print("\nsummary")
    for what, holds, text in check.rows:
        print(f"  {'ok  ' if holds else 'FAIL'} {what:28} {text.splitlines()[0][:150]}")
    facts = {"rows": check.rows, **check.facts}
    (options.out / "gpu_check.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return 0 if all(holds for _, holds, _ in check.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
