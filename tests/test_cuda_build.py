"""Builds of DSL ``cuda`` with the real compiler, and its environment report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from croqtile_support import need_nvcc, real_runner
from cuda_support import shipped, task, workbench

from croq_fsm.config import Config
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Replace
from croq_fsm.errors import CompileFailed, EnvironmentMissing
from croq_fsm.toolchain.croqtile_object import read_symbols, symbol_problems
from croq_fsm.toolchain.croqtile_probe import Probe
from croq_fsm.toolchain.croqtile_tools import Tools
from croq_fsm.toolchain.cuda_build import CudaBuilder

NOTHING = Tools(*(None if name != "choreo_version" else "" for name in Tools.__annotations__))


def test_doctor_speaks_of_cuda_alone(tmp_path: Path) -> None:
    """What is missing forbids something and has a cure; no Choreo is asked for."""
    bench = workbench(tmp_path)
    bench._tools = NOTHING
    bench._probe = Probe(real_runner(), NOTHING, tmp_path / "probes", 5.0)
    findings = {finding.name: finding for finding in bench.doctor()}
    for name in ("nvcc", "nm", "device", "cublas", "ncu"):
        assert not findings[name].ok
        assert findings[name].forbids
        assert findings[name].cure
    assert not {"choreo", "dialect", "choreo_headers", "cute_headers"} & findings.keys()


def test_missing_compiler_is_the_environments_fault(tmp_path: Path) -> None:
    """No candidate is blamed for an absent tool."""
    bench = workbench(tmp_path)
    probe = Probe(real_runner(), NOTHING, tmp_path, 5.0)
    bench._builder = CudaBuilder(
        real_runner(), Config(), tools=NOTHING, probe=probe, cache=bench._cache, work=tmp_path
    )
    with pytest.raises(EnvironmentMissing, match="CUDA_HOME"):
        bench.build(Candidate(source=shipped()), task())


def test_flags_and_patches_are_checked_before_any_compiler(tmp_path: Path) -> None:
    """A candidate that may not be built costs nothing."""
    need_nvcc()
    bench = workbench(tmp_path)
    bench._builder.__dict__["harness"] = lambda: None  # not reached
    with pytest.raises(CompileFailed, match="list of allowed"):
        bench.build(Candidate(source=shipped(), flags=("nvcc:-I/",)), task())
    patched = Candidate(source=shipped(), patches=(Replace(search="a", replace="b"),))
    with pytest.raises(CompileFailed, match="no generated source"):
        bench.build(patched, task())


@pytest.mark.parametrize(
    ("stub", "name"),
    [
        ("_ZL51__device_stub__Z13matmul_kernelPK6__halfS1_PS_iiiii t 1 1", "matmul_kernel"),
        ("_Z30__device_stub__Z6kernel14CUtensorMap_st14CUtensorMap_st T 1 1", "kernel"),
        ("_ZN3own12_GLOBAL__N_1L20__device_stub__ZN3own6kernelILi4EEEvPf t 1 1", "kernel"),
    ],
)
def test_kernels_are_found_by_their_own_names(stub: str, name: str) -> None:
    """Internal linkage, arguments of class type, namespaces and templates hide no kernel."""
    assert read_symbols(stub).kernels == (name,)


def test_only_the_launcher_may_be_exported() -> None:
    """The harness's own entry is not the candidate's to define."""
    good = "launch_matmul T 1 1\n_Z22__device_stub__Z1kvv t 1 1\ncudaGetLastError U\n"
    assert symbol_problems(read_symbols(good), "launch_matmul") == []
    for line, says in (
        ("croq_candidate T 1 1", "belongs to the harness"),
        ("main T 1 1", "belongs to the harness"),
        ("cublasGemmEx U", "calls a library"),
        ("cudaStreamCreate U", "no need of"),
    ):
        assert says in "\n".join(symbol_problems(read_symbols(good + line), "launch_matmul"))
    assert symbol_problems(read_symbols(good), "launch_other")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kernels_are_built_checked_and_cached(tmp_path: Path) -> None:
    """Both start kernels without a warning; comments change no code; library calls are refused."""
    need_nvcc()
    bench = workbench(tmp_path)
    plain = Candidate(source=shipped())
    for dtype in ("f16", "bf16"):
        made = bench.build(bench.start_kernel(task(dtype)), task(dtype))
        assert made.resources["spill_bytes"] == 0
        assert 0 < made.resources["registers"] <= 128
        assert made.generated == ""
        assert json.loads(bench.read(f"{made.key}/kernels.json")) == ["matmul_kernel"]
        assert "warning" not in bench.read(made.log).decode()
        assert not bench._uses_atomics(made)
    made = bench.build(plain, task())
    assert made.cached

    commented = bench.build(Candidate(source=plain.source + "// atomicAdd\n"), task())
    assert commented.key != made.key
    assert commented.device_code == made.device_code
    assert not bench._uses_atomics(commented)

    smuggled = plain.source + 'extern "C" void cublasX();\nvoid f() { cublasX(); }\n'
    with pytest.raises(CompileFailed, match="calls a library"):
        bench.build(Candidate(source=smuggled), task())
    with pytest.raises(CompileFailed, match="no_such_thing"):
        bench.build(Candidate(source=plain.source + "int x = no_such_thing;\n"), task())
    wrong = plain.source.replace("#define TILE_M 128", "#define TILE_M 120")
    with pytest.raises(CompileFailed, match="TILE_M must be"):
        bench.build(Candidate(source=wrong), task())
