"""Lints and structure of DSL ``cuda``, and what it registers."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuda_support import shipped, task, workbench

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Replace
from croq_fsm.domain.operators import SUPPORTED
from croq_fsm.errors import UsageError
from croq_fsm.ideators.rules.moves import moves_for
from croq_fsm.toolchain.cuda_rules import flag_problem, lint
from croq_fsm.toolchain.cuda_structure import structure
from croq_fsm.toolchain.registry import SUFFIXES, WORKBENCHES


def problems(source: str, **changes: object) -> str:
    """Findings on a source."""
    candidate = Candidate(source=source).model_copy(update=changes)
    return "\n".join(lint(candidate, task()))


@pytest.mark.parametrize("name", ["f16_plain", "bf16_plain"])
def test_shipped_kernels_are_clean(name: str) -> None:
    """Nothing is wrong with what ships."""
    assert problems(shipped(name)) == ""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cublasHandle_t handle;", "cublas"),
        ("cudnnCreate(&x);", "cudnn"),
        ("using G = cutlass::gemm::device::Gemm;", "library calls"),
        ("cub::DeviceReduce::Sum();", "library calls"),
        ("cudaMallocManaged(&p, 8);", "hang the device"),
        ("cudaStreamCreate(&s);", "the harness's"),
        ("cudaEventRecord(e);", "the harness's"),
        ("cudaGraphLaunch(g, s);", "the harness's"),
        ("std::thread worker(f);", "host thread"),
        ("pthread_create(&t, 0, f, 0);", "host thread"),
        ("fork();", "host thread"),
        ('system("true");', "nothing of the system"),
        ('execve("/bin/true", 0, 0);', "nothing of the system"),
        ('dlopen("x", 1);', "nothing of the system"),
        ('asm("syscall");', "nothing of the system"),
        ("__attribute__((constructor)) void f() {}", "nothing may run before"),
        ('asm(".incbin \\"x\\"");', "embedded"),
        ("cudaDeviceSynchronize();", "does not wait"),
        ("cudaDeviceReset();", "the device's state"),
        ("namespace croq { int x; }", "the harness's"),
        ("#define GLUE(a, b) a##b", "no rule can see"),
        ('#include "/etc/passwd"', "only headers for device code"),
        ("#include <cublas_v2.h>", "only headers for device code"),
        ("#include <thread>", "only headers for device code"),
        ("#inc\\\nlude <fstream>", "only headers for device code"),
        ("#pragma comment(lib, x)", "only unroll"),
    ],
)
def test_what_a_kernel_has_no_need_of_is_refused(line: str, says: str) -> None:
    """Libraries, streams, threads, the system, other headers; in a comment they are harmless."""
    assert says in problems(f"{line}\n{shipped()}")
    assert problems(f"/* {line} */\n{shipped()}") == ""


def test_the_launcher_must_be_there() -> None:
    """Its name is the operator's, and it is no C++ function."""
    assert "launch_matmul" in problems(shipped().replace("launch_matmul", "launch_other"))
    assert 'extern "C"' in problems(shipped().replace('extern "C" ', ""))
    assert "__global__" in problems(shipped().replace("__global__", ""))


def test_patches_and_other_compilers_flags_are_refused() -> None:
    """There is nothing to patch; only nvcc takes flags."""
    patch = Replace(search="a", replace="b")
    assert "no generated source" in problems(shipped(), patches=(patch,))
    assert "nvcc:" in problems(shipped(), flags=("choreo:--stmatrix",))
    assert flag_problem("nvcc:-maxrregcount=128") == ""
    for flag in ("-O3", "nvcc:-Xcompiler=-fplugin=x", "nvcc:-I/", "nvcc:-maxrregcount=5"):
        assert flag_problem(flag)


def test_structure_of_the_shipped_kernel() -> None:
    """Tile, depth, kind of multiplication and copies, schedule."""
    assert structure(Candidate(source=shipped())) == {
        "tile": "128x128x32",
        "stages": "2",
        "math": "mma",
        "memory": "cp.async, ldmatrix",
        "schedule": "one tile per block",
    }


@pytest.mark.parametrize(
    ("text", "feature", "value"),
    [
        ("wmma::mma_sync(c, a, b, c);", "math", "wmma"),
        ('asm("wgmma.mma_async.sync");', "math", "wgmma"),
        ("c += a * b;", "math", "scalar"),
        ('asm("cp.async.bulk.tensor.2d");', "memory", "tma"),
        ("for (int t = blockIdx.x; t < n; t += gridDim.x) f(t);", "schedule", "persistent"),
        ("#define BM 64\n#define BN 128\n#define BK 16\n", "tile", "64x128x16"),
        ("__cluster_dims__(2, 1, 1)", "extras", "clusters"),
        ("// wgmma.mma_async\n", "math", "scalar"),
    ],
)
def test_structure_is_read_from_code(text: str, feature: str, value: str) -> None:
    """Each way to multiply, copy and schedule; comments say nothing."""
    assert structure(Candidate(source=text))[feature] == value


def test_the_dsl_is_registered_everywhere() -> None:
    """Workbench, suffix, operators, moves."""
    assert WORKBENCHES["cuda"][1] == "CudaWorkbench"
    assert SUFFIXES[".cu"] == "cuda"
    assert {("matmul", "f16"), ("gemm_sp", "e4m3f16")} <= SUPPORTED["cuda"]
    assert moves_for("cuda") is not None


def test_tasks_and_start_kernels(tmp_path: Path) -> None:
    """K in steps of 8, any m and n; the plain kernel of the dtype is the default."""
    bench = workbench(tmp_path)
    bench.supports(task(shape=(7, 9, 8)))
    with pytest.raises(UsageError, match="size k = 12"):
        bench.supports(task(shape=(8, 8, 12)))
    with pytest.raises(UsageError, match="it can run"):
        bench.supports(task("f32"))
    assert bench.start_kernel(task("bf16")).source == shipped("bf16_plain")
    with pytest.raises(UsageError, match="matmul_f16_plain"):
        bench.start_kernel(task().model_copy(update={"kernel": "builtin:none"}))
