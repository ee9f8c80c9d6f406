"""Sanitizers before a KEEP: real ones for C, replayed reports for the device, and what follows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from c_dsl_support import GOOD, MATMUL, TASKS, matmul, workbench
from c_kernels import needs_cc
from croqtile_support import ScriptedRunner
from croqtile_support import real_runner as runner
from cuda_support import workbench as cuda_workbench
from rules_croqtile_support import MAIN
from test_rules_c_matmul import structures

from croq_fsm.config import Config, Measure
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.hidden import small_task
from croq_fsm.domain.measurement import Check, Verification, demanded
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompileFailed, EnvironmentMissing
from croq_fsm.ideators.rules.c_matmul_text import render
from croq_fsm.report import facts
from croq_fsm.storage.inspection import archive
from croq_fsm.toolchain import c_compile, sanitizing
from croq_fsm.toolchain.c import CWorkbench
from croq_fsm.toolchain.compute_sanitizer import ComputeSanitizer, read
from croq_fsm.toolchain.process import Completed, Ending
from croq_fsm.toolchain.workbench import Sanitizing
from support.bench import TASK as SCRIPTED
from support.bench import Bench
from support.scripted import ScriptedIdeator, ScriptedWorkbench

CLEAN = {
    "memcheck": "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n",
    "racecheck": "========= COMPUTE-SANITIZER\n"
    "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n",
}
OUT_OF_BOUNDS = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at matmul_kernel(const __half *, const __half *, __half *, int, int, int)+0x1a30
=========     by thread (31,0,0) in block (3,0,0)
=========     Access at 0x7f2b3a200200 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f2b3a200000 of size 512 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: launch_matmul [0x9b40] in bench
=========
========= ERROR SUMMARY: 2 errors
"""
RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at matmul_kernel(int *)+0x100
=========     and Read access at matmul_kernel(int *)+0x2e0 [96 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
WARNED = """\
========= COMPUTE-SANITIZER
========= Warning: Race reported between Read access at matmul_kernel(int *)+0x40
=========     and Write access at matmul_kernel(int *)+0x90 [8 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
WGMMA = """\
========= COMPUTE-SANITIZER
========= Invalid __shared__ ? of size 2048 bytes
=========     at matmul_kernel+0x2570
=========     by thread (224,0,0) in block (4,0,0)
=========     Address 0x1bc20 is out of bounds
========= ERROR SUMMARY: 1 error
"""
LOST = """\
========= COMPUTE-SANITIZER
========= Error: No attachable process found. compute-sanitizer timed-out.
========= Default timeout can be adjusted with --launch-timeout. Awaiting target completion.
"""
INTERNAL = """\
========= COMPUTE-SANITIZER
========= Internal Sanitizer Error: The Sanitizer encountered an internal error.
========= ERROR SUMMARY: 0 errors
"""
FORGED = OUT_OF_BOUNDS + "\n========= ERROR SUMMARY: 0 errors\n"


def completed(text: str, status: int = 0, ending: Ending = Ending.EXITED) -> Completed:
    """What a run of the tool came to."""
    return Completed(ending, status, text, "", 2.0)


@pytest.mark.parametrize(
    ("tool", "text", "status", "count", "says"),
    [
        ("memcheck", CLEAN["memcheck"], 0, 0, ""),
        ("racecheck", CLEAN["racecheck"], 0, 0, ""),
        ("memcheck", OUT_OF_BOUNDS, 86, 2, "Invalid __global__ write of size 2 bytes; at matmul"),
        ("racecheck", RACE, 86, 1, "Error: Race reported between Write access at matmul_kernel"),
        ("racecheck", WARNED, 0, 0, ""),
        ("memcheck", FORGED, 86, 2, "Invalid __global__ write"),
        ("memcheck", LOST, 255, None, "No attachable process found"),
        ("memcheck", INTERNAL, 1, None, "Internal Sanitizer Error"),
        ("memcheck", "", 127, None, "status 127 and no summary"),
        ("memcheck", CLEAN["memcheck"], 1, None, "status 1"),
        ("racecheck", CLEAN["memcheck"], 0, None, "no summary"),
        ("memcheck", OUT_OF_BOUNDS.partition("========= ERROR")[0], -11, 1, "Invalid __global__"),
    ],
)
def test_reports_are_read(tool: str, text: str, status: int, count: int | None, says: str) -> None:
    """Findings count, warnings do not, and a tool without its own summary says nothing."""
    report = read(tool, completed(text, status))
    assert report.count == count
    assert says in (report.finding or report.trouble)


def test_a_tool_that_does_not_end_says_nothing() -> None:
    """The deadline is no finding and no pass, whatever was printed before."""
    report = read("racecheck", completed(CLEAN["racecheck"], 0, Ending.DEADLINE))
    assert report.count is None
    assert "no end after 2 s" in report.trouble


def fake(folder: Path, reports: dict[str, tuple[str, int]]) -> Path:
    """A compute-sanitizer that replays a report for each application, and notes its calls."""
    program = folder / "compute-sanitizer"
    cases = ""
    for number, (word, (text, status)) in enumerate(reports.items()):
        (folder / f"{number}.txt").write_text(text)
        cases += f"*{word}*) cat {folder}/{number}.txt; exit {status} ;;\n"
    program.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}*) exit 3 ;;\nesac\n')
    program.chmod(0o755)
    for name in ("candidate", "control"):
        (folder / name).touch()
    return program


def sanitized(folder: Path, candidate: tuple[str, int], control: tuple[str, int]) -> Check:
    """The check that a replayed memcheck comes to."""
    reports = {"/candidate": candidate, "/control": control}
    tool = ComputeSanitizer(runner(), fake(folder, reports), 20.0)
    return tool.check("memcheck", (f"{folder}/candidate",), lambda: (f"{folder}/control",), folder)


def test_silence_is_a_pass(tmp_path: Path) -> None:
    """A tool that ran to its end without a finding is evidence, and needs no control."""
    check = sanitized(tmp_path, (CLEAN["memcheck"], 0), ("", 3))
    assert (check.passed, check.rung, check.skipped) == (True, "sanitizer", "")


def test_a_finding_counts_when_the_control_has_none(tmp_path: Path) -> None:
    """The kernel is wrong, and the text says where."""
    check = sanitized(tmp_path, (OUT_OF_BOUNDS, 86), (CLEAN["memcheck"], 0))
    assert check.objects
    assert "2 findings, first Invalid __global__ write of size 2 bytes" in check.detail


def test_a_finding_that_the_control_shares_is_the_tools(tmp_path: Path) -> None:
    """A tool that objects to a kernel which is known to be right refutes nobody."""
    check = sanitized(tmp_path, (WGMMA, 86), (WGMMA, 86))
    assert not check.passed
    assert not check.objects
    assert "objects to a kernel that is known to be right as well" in check.skipped


def test_a_tool_that_fails_on_the_control_says_nothing(tmp_path: Path) -> None:
    """Neither a lost connection nor a control that cannot be built blames the candidate."""
    assert "to no end on a kernel" in sanitized(tmp_path, (WGMMA, 86), (LOST, 255)).skipped

    def unbuildable() -> tuple[str, ...]:
        raise CompileFailed("no such kernel")

    tool = ComputeSanitizer(runner(), fake(tmp_path, {"/candidate": (RACE, 86)}), 20.0)
    check = tool.check("racecheck", (f"{tmp_path}/candidate",), unbuildable, tmp_path)
    assert "no such kernel" in check.skipped


def test_a_program_that_cannot_be_started_says_nothing(tmp_path: Path) -> None:
    """An absent tool is no finding."""
    tool = ComputeSanitizer(runner(), tmp_path / "absent", 5.0)
    checks = tool.checks(("/bin/true",), lambda: ("/bin/true",), tmp_path)
    assert [check.name for check in checks] == ["memcheck", "racecheck"]
    assert all(check.skipped.startswith("not run: ") for check in checks)


def test_absent_tool_of_the_device(tmp_path: Path) -> None:
    """Without compute-sanitizer both checks are recorded as not run, with the cure."""
    bench = cuda_workbench(tmp_path)
    bench._tools = replace(bench._tools, sanitizer=None)
    task = Task(dsl="cuda", operator="matmul", dtype="f16", shape=MAIN, kernel="", model="x")
    checks = bench.sanitize(Candidate(source=""), task)
    assert {check.skipped.partition(";")[0] for check in checks} == {
        "not run: install the CUDA toolkit's compute-sanitizer"
    }


def test_the_device_runs_both_tools_on_a_small_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line names the tool, the program and one launch; the control is what ships."""
    scripted = ScriptedRunner(("racecheck", RACE, 86), ("memcheck", CLEAN["memcheck"], 0))
    bench = cuda_workbench(tmp_path)
    bench._tools = replace(bench._tools, sanitizer=Path("/cuda/bin/compute-sanitizer"))
    bench._runner = scripted  # type: ignore[assignment]
    built: list[str] = []

    def build(candidate: Candidate, _task: Task) -> Build:
        built.append(candidate.source)
        binary = "candidate" if candidate.source == "mine" else "control"
        return Build(key="k", binary=f"../{binary}", binary_sha256="", device_code="")

    monkeypatch.setattr(bench, "build", build)
    monkeypatch.setattr(bench, "_must_be_alone", lambda: None)
    monkeypatch.setattr(bench, "_programs", lambda _seconds: _Programs())
    task = Task(dsl="cuda", operator="matmul", dtype="f16", shape=MAIN, kernel="", model="x")
    memory, race = bench.sanitize(Candidate(source="mine"), task)
    assert memory.passed
    assert "known to be right as well" in race.skipped
    lines = [" ".join(command.argv[1:]) for command in scripted.seen]
    assert all('matmul 512 512 512 {"cmd": "launch", "launches": 1}' in line for line in lines)
    assert [line.split()[1] for line in lines] == ["memcheck", "racecheck", "racecheck"]
    assert all(command.untrusted and command.device for command in scripted.seen)
    assert len(built) == 2
    assert "launch_matmul" in built[1]


class _Programs:
    """Only what names the problem."""

    def problem(self, task: Task) -> tuple[str, ...]:
        """Operator and sizes."""
        return (task.operator, *map(str, task.shape))


@pytest.fixture(scope="module")
def bench() -> Iterator[CWorkbench]:
    """One workbench for all C kernels here."""
    with workbench() as opened:
        yield opened


#: What a kernel does → what the sanitizers say.
FAULTS = {
    "a read behind an input": (
        "volatile float x = a[m * k]; c[0] = 0 * x;",
        "heap-buffer-overflow kernel.c:",
    ),
    "a write behind the output": ("c[m * n] = 0;", "heap-buffer-overflow kernel.c:4"),
    "memory that was given back": (
        "float *x = malloc(4); free(x); c[0] = ((volatile float *)x)[0];",
        "heap-use-after-free",
    ),
    "an overflowing integer": ("c[0] = 2147483647 + k;", "signed integer overflow"),
    "a shift too far": ("c[0] = 1 << (k - 8);", "shift exponent 32 is too large"),
    "an index out of bounds": ("int x[4] = {0}; c[0] = x[k / 8];", "index 5 out of bounds"),
    "a misaligned access": ("c[0] = *(const int *)((const char *)a + 1);", "misaligned address"),
}


@needs_cc
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_faults_of_c_kernels_are_found(bench: CWorkbench, fault: str) -> None:
    """Bad accesses and undefined behaviour object, in words that name the line."""
    body, says = FAULTS[fault]
    (check,) = bench.sanitize(matmul(body, "#include <stdlib.h>"), MATMUL)
    assert check.objects
    assert says in check.detail
    assert "kernel.c:" in check.detail
    assert "/" not in check.detail.partition("kernel.c")[0]


@needs_cc
@pytest.mark.parametrize("operator", sorted(GOOD))
def test_good_c_kernels_pass(bench: CWorkbench, operator: str) -> None:
    """Kernels that ship, and those that are right, are clean, also at full optimisation."""
    flags = ("-O3", "-march=native", "-ffast-math")
    shipped = bench.start_kernel(TASKS[operator])
    for candidate in (GOOD[operator], shipped, shipped.model_copy(update={"flags": flags})):
        (check,) = bench.sanitize(candidate, TASKS[operator])
        assert check.passed, check


@needs_cc
@pytest.mark.slow
def test_generated_c_kernels_pass(bench: CWorkbench) -> None:
    """What the rule ideator writes is clean on shapes with remainders."""
    task = MATMUL.model_copy(update={"shape": (45, 83, 37)})
    for config in random.Random(5).sample(structures(), 12):
        candidate = Candidate(source=render(config), flags=("-O3", "-march=native"))
        (check,) = bench.sanitize(candidate, task)
        assert check.passed, (config, check)


@needs_cc
def test_a_kernel_that_hangs_or_ends_early_has_not_passed(bench: CWorkbench) -> None:
    """What does not come to its own end is recorded as not run."""
    (hung,) = bench.sanitize(matmul("for (volatile int i = 1; i;) {}"), MATMUL)
    assert hung.skipped
    (left,) = bench.sanitize(
        matmul('puts("done"); exit(0);', "#include <stdio.h>\n#include <stdlib.h>"), MATMUL
    )
    assert left.passed is True or left.skipped


@needs_cc
def test_a_compiler_without_sanitizers(bench: CWorkbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is recorded as not run, and doctor says what that forbids."""
    monkeypatch.setattr(c_compile, "_SANITIZED", ("-fsanitize=nothing",))
    (check,) = bench.sanitize(GOOD["matmul"], MATMUL)
    assert check.skipped.startswith("not run: ")
    finding = next(f for f in bench.doctor() if f.name == "sanitizers")
    assert (finding.ok, finding.required, bool(finding.forbids)) == (False, False, True)


def test_what_was_not_run_objects_when_it_is_required() -> None:
    """What was skipped is no evidence either way, unless it is demanded."""
    skipped = sanitizing.not_run("memcheck", "no tool")
    for required in (False, True):
        found = demanded((skipped, sanitizing.clean("racecheck", "fine")), required=required)
        assert found is not None
        assert found.passed is not required
    assert not skipped.passed
    assert demanded((), required=True) is None


def test_a_skipped_check_alone_is_no_failure_but_a_failed_one_is() -> None:
    """A verification passes when nothing objects, and its first failure is one that was run."""
    skipped, bad = sanitizing.not_run("racecheck", "slow"), sanitizing.faulty("memcheck", "x")
    assert Verification(checks=(skipped,)).passed
    assert not Verification(checks=(skipped, bad)).passed
    assert Verification(checks=(skipped, bad)).first_failure == bad


@pytest.mark.parametrize(
    ("shape", "small"),
    [
        ((4096, 8192, 4096), (512, 512, 512)),
        ((96, 100, 4), (96, 100, 4)),
        ((1001, 1003, 2050), (511, 511, 512)),
        ((16384, 24, 520), (512, 24, 512)),
    ],
)
def test_small_shapes_keep_their_divisibility(
    shape: tuple[int, ...], small: tuple[int, ...]
) -> None:
    """Never larger than the task's own, about the wanted size, with remainders where they were."""
    task = Task(dsl="croqtile", operator="matmul", dtype="f16", shape=shape, kernel="", model="x")
    assert small_task(task, 512).shape == small


class SanitizingWorkbench(ScriptedWorkbench):
    """The scripted workbench with a sanitizer that says what it is told."""

    found: tuple[Check, ...] = ()
    fails = False

    def sanitize(self, candidate: Candidate, task: Task) -> tuple[Check, ...]:
        """What was told."""
        del candidate, task
        self.calls.append("sanitize")
        if self.fails:
            raise EnvironmentMissing("the device is gone")
        return self.found


def night(path: Path, *found: Check, mode: str = "auto", fails: bool = False) -> Bench:
    """A night with one clear winner, and what the sanitizer says of it."""
    settings = Config(measure=Measure(sanitizer=mode))  # type: ignore[arg-type]
    ideator = ScriptedIdeator([{"TIME_US": "500"}])
    task = SCRIPTED.model_copy(update={"rounds": 1})
    bench = Bench(path, ideator, config=settings, task=task)
    bench.workbench = SanitizingWorkbench(bench.root.cache)
    bench.workbench.found, bench.workbench.fails = found, fails
    return bench


@pytest.mark.parametrize(
    ("check", "mode", "decision"),
    [
        (sanitizing.clean("memcheck", "fine"), "auto", Decision.KEEP),
        (sanitizing.faulty("memcheck", "a write beside"), "auto", Decision.VERIFY_FAIL),
        (sanitizing.not_run("memcheck", "slow"), "auto", Decision.KEEP),
        (sanitizing.not_run("memcheck", "slow"), "required", Decision.VERIFY_FAIL),
        (sanitizing.faulty("memcheck", "a write beside"), "off", Decision.KEEP),
    ],
)
def test_a_winner_is_sanitized_before_it_is_kept(
    tmp_path: Path, check: Check, mode: str, decision: Decision
) -> None:
    """A finding refuses a winner; what was not run does so only when it is required."""
    bench = night(tmp_path, check, mode=mode)
    assert bench.run().counts == {decision: 1}
    assert bench.workbench.calls.count("sanitize") == (mode != "off")
    with bench.repository.read() as reader:
        (row,) = reader.rounds(bench.session_id)
    assert ("sanitizer" in row.reason) == (decision is Decision.VERIFY_FAIL)


def test_what_a_sanitizer_said_is_stored(tmp_path: Path) -> None:
    """The check is evidence: it lies with the round's measurements, passed or not run."""
    told = (sanitizing.clean("memcheck", "fine"), sanitizing.not_run("racecheck", "too slow"))
    bench = night(tmp_path, *told)
    bench.run()
    with bench.repository.read() as reader:
        stored = reader.measurements_of_round(bench.session_id, 1)
    found = [m.verification for m in stored if m.verification is not None]
    assert Verification(checks=told) in found


def test_a_loser_is_not_sanitized(tmp_path: Path) -> None:
    """Sanitizers cost time, and only winners are worth it."""
    bench = night(tmp_path, sanitizing.faulty("memcheck", "x"))
    bench.ideator = ScriptedIdeator([{"TIME_US": "1100"}])
    assert bench.run().counts == {Decision.DISCARD: 1}
    assert "sanitize" not in bench.workbench.calls


def test_workbenches_without_sanitizers_are_known(tmp_path: Path) -> None:
    """Having some is a property that a workbench shows."""
    assert not isinstance(ScriptedWorkbench(tmp_path), Sanitizing)
    assert isinstance(cuda_workbench(tmp_path), Sanitizing)


def test_the_report_tells_what_the_sanitizers_said(tmp_path: Path) -> None:
    """In the morning it is seen which of them were run on the best kernel."""
    told = (sanitizing.clean("memcheck", "fine"), sanitizing.not_run("racecheck", "too slow"))
    bench = night(tmp_path, *told)
    bench.run()
    session = bench.session()
    with archive(bench.root.database) as opened, opened.look() as inspector:
        best = inspector.iterations(session.id)[-1]
        checks = facts._checks(inspector, session, best)
    assert checks is not None
    assert checks.checks[-2:] == told
    assert {check.rung for check in checks.checks[:-2]} == {"verify"}
