"""Builds with the real compilers; probes; the environment report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from croqtile_support import (
    need_choreo,
    need_nvcc,
    real_runner,
    shipped,
    task,
    workbench,
)

from croq_fsm.config import Config, CroqtileOptions
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Replace
from croq_fsm.errors import CompileFailed, EnvironmentMissing, UsageError
from croq_fsm.toolchain import croqtile_object as objects
from croq_fsm.toolchain.croqtile_build import Builder
from croq_fsm.toolchain.croqtile_generated import prepare
from croq_fsm.toolchain.croqtile_probe import Probe
from croq_fsm.toolchain.croqtile_tools import Tools, find_tools
from croq_fsm.toolchain.croqtile_twins import twins
from croq_fsm.toolchain.process import Command

NOTHING = Tools(*(None if name != "choreo_version" else "" for name in Tools.__annotations__))


def test_doctor_reports_absence_without_raising(tmp_path: Path) -> None:
    """Every missing part is a finding that says what it forbids and how to cure it."""
    bench = workbench(tmp_path)
    bench._tools = NOTHING
    bench._probe = Probe(real_runner(), NOTHING, tmp_path / "probes", 5.0)
    findings = {finding.name: finding for finding in bench.doctor()}
    for name in ("choreo", "dialect", "cute_headers", "nvcc", "device", "cublas", "ncu"):
        assert not findings[name].ok
        assert findings[name].forbids
        assert findings[name].cure


def test_missing_compiler_is_the_environments_fault(tmp_path: Path) -> None:
    """No candidate is blamed for an absent tool."""
    bench = workbench(tmp_path)
    probe = Probe(real_runner(), NOTHING, tmp_path, 5.0)
    bench._builder = Builder(
        real_runner(), Config(), tools=NOTHING, probe=probe, cache=bench._cache, work=tmp_path
    )
    with pytest.raises(EnvironmentMissing, match="CHOREO_HOME"):
        bench.build(Candidate(source=shipped("f16_plain")), task())


def test_unknown_tasks_are_refused(tmp_path: Path) -> None:
    """Operator, dtype and row lengths are checked before anything runs."""
    bench = workbench(tmp_path)
    bench.supports(task(shape=(7, 8, 8)))
    with pytest.raises(UsageError, match="size k = 12"):
        bench.supports(task(shape=(8, 8, 12)))
    with pytest.raises(UsageError, match="it can run"):
        bench.supports(task().model_copy(update={"dtype": "f32"}))


def test_start_kernels_are_found_by_task_and_by_name(tmp_path: Path) -> None:
    """The plain kernel of the dtype is the default; an unknown name lists the known ones."""
    bench = workbench(tmp_path)
    assert bench.start_kernel(task("bf16")).source == shipped("bf16_plain")
    named = task().model_copy(update={"kernel": "builtin:matmul_f16_warpspec"})
    assert bench.start_kernel(named).source == shipped("f16_warpspec")
    with pytest.raises(UsageError, match="matmul_f16_warpspec"):
        bench.start_kernel(task().model_copy(update={"kernel": "builtin:none"}))


def test_reading_stays_inside_the_cache(tmp_path: Path) -> None:
    """A path that leaves the cache is refused."""
    with pytest.raises(UsageError, match="not in the build cache"):
        workbench(tmp_path).read("../../etc/passwd")


@pytest.mark.choreo
def test_the_dialect_is_probed(tmp_path: Path) -> None:
    """The compiler at hand is asked; its flags and version are recorded."""
    need_choreo()
    facts = workbench(tmp_path).dialect()
    assert facts["dialect"] in {"head", "spring"}
    assert len(facts["choreo_sha256"]) == 64
    assert "--help" not in facts["flags"].split()
    for flag in facts["flags"].split():
        assert f"choreo:{flag}" in facts["candidate_flags"].split()


def generate(folder: Path, source: str) -> str:
    """What the Choreo compiler makes of a source, or its complaint."""
    tools = find_tools(CroqtileOptions())
    (folder / "k.co").write_text(source, encoding="utf-8")
    argv = (str(tools.need("choreo")), "-es", "-t", "cute", "-arch=sm_90a", "--suppress-main")
    command = Command((*argv, "k.co", "-o", "k.cu"), folder, 30.0, "choreo")
    completed = real_runner().run(command)
    path = folder / "k.cu"
    return path.read_text(encoding="utf-8") if completed.ok else completed.output


@pytest.mark.choreo
@pytest.mark.parametrize("name", ["f16_plain", "f16_warpspec", "bf16_plain", "bf16_warpspec"])
def test_shipped_kernels_are_accepted_and_repaired(tmp_path: Path, name: str) -> None:
    """Each start kernel compiles to target source on which both repairs take hold."""
    need_choreo()
    made = prepare(generate(tmp_path, shipped(name)), (), task(name.partition("_")[0]))
    assert len(made.notes) == 2
    assert made.kernels == ("__choreo_device_matmul",)
    assert "wait<0>" in made.text


@pytest.mark.choreo
def test_all_twins_apply(tmp_path: Path) -> None:
    """The wrong kernels can be made from what this compiler generates."""
    need_choreo()
    plain = Candidate(source=shipped("f16_plain"))
    for name, twin in twins(plain).items():
        folder = tmp_path / name
        folder.mkdir()
        text = generate(folder, twin.candidate.source)
        honest = generate(folder, plain.source)
        assert prepare(text, twin.candidate.patches, task()).text != honest, name


@pytest.mark.choreo
def test_the_racy_twin_really_gives_the_stage_back_early(tmp_path: Path) -> None:
    """In its generated code the arrival comes before the wait."""
    need_choreo()
    racy = twins(Candidate(source=shipped("f16_plain")))["racy_early"].candidate
    text = generate(tmp_path, racy.source)
    assert text.index(".arrive();") < text.index("warpgroup_wait<0>")
    honest = generate(tmp_path, shipped("f16_plain"))
    assert honest.index("warpgroup_wait<0>") < honest.index(".arrive();")


@pytest.mark.choreo
def test_compiler_complaints_are_compile_failures(tmp_path: Path) -> None:
    """The compiler's own words reach the error and its log."""
    need_choreo()
    need_nvcc()
    bench = workbench(tmp_path)
    bench._builder.__dict__["harness"] = lambda: None  # not reached: the source fails first
    source = shipped("f16_plain").replace("          wait op;\n", "")
    with pytest.raises(CompileFailed, match="asyncs are not explicitly waited") as failure:
        bench.build(Candidate(source=source), task())
    assert "kernel.co" in failure.value.log


@pytest.mark.choreo
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_kernel_is_built_checked_and_cached(tmp_path: Path) -> None:
    """Resources are read, comments change no code, library calls are refused, builds are kept."""
    need_choreo()
    need_nvcc()
    bench = workbench(tmp_path)
    plain = Candidate(source=shipped("f16_plain"))
    made = bench.build(plain, task())
    assert made.resources["registers"] > 100
    assert made.resources["spill_bytes"] == 0
    assert made.resources["smem_dynamic"] == 212992
    assert json.loads(bench.read(f"{made.key}/kernels.json")) == ["__choreo_device_matmul"]
    assert bench.build(plain, task()).cached

    commented = bench.build(Candidate(source=plain.source + "// more\n"), task())
    assert commented.key != made.key
    assert commented.device_code == made.device_code

    smuggled = plain.source + "\nextern void cublasGemmEx();\nvoid f() { cublasGemmEx(); }\n"
    with pytest.raises(CompileFailed, match="calls a library"):
        bench.build(Candidate(source=smuggled), task())

    broken = Replace(search="warpgroup_wait<0>();", replace="no_such_thing();")
    with pytest.raises(CompileFailed, match="no_such_thing"):
        bench.build(Candidate(source=plain.source, patches=(broken,)), task())
    cubin = bench.read(f"{made.key}/kernel.cubin")
    assert objects.device_code(cubin, "a") != objects.device_code(cubin, "b")
