"""Reading compiler output."""

from __future__ import annotations

import pytest

from croq_fsm.errors import (
    CompileFailed,
    CompilerCrashed,
    CompileTimeout,
    CroqError,
    EnvironmentMissing,
)
from croq_fsm.toolchain.croqtile_log import (
    compile_error,
    fatal_remark,
    read_dynamic_smem,
    read_ptxas,
)
from croq_fsm.toolchain.process import Completed, Ending

PTXAS = """\
ptxas info    : (C7519) warpgroup.arrive is injected in around line 460 by compiler in function 'f'
ptxas info    : (C7519) warpgroup.arrive is injected in around line 580 by compiler in function 'f'
ptxas info    : (C7520) Potential Performance Loss: wgmma is serialized in function 'f'
ptxas info    : Function properties for f
    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 154 registers, used 16 barriers, 64 bytes smem
ptxas info    : Function properties for g
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers
"""


def completed(text: str, status: int | None = 1, ending: Ending = Ending.EXITED) -> Completed:
    """A failed compiler run."""
    return Completed(ending, status, "", text, 3.0)


def test_resources_are_the_largest_over_all_kernels() -> None:
    """Registers, spills, stack, shared memory and barriers are read."""
    assert read_ptxas(PTXAS).resources == {
        "registers": 154,
        "spill_bytes": 40,
        "stack_bytes": 8,
        "smem_static": 64,
        "barriers": 16,
    }


def test_remarks_are_counted_without_positions() -> None:
    """Equal remarks at different lines are one."""
    remarks = read_ptxas(PTXAS).remarks
    assert remarks[0] == "C7519 x2: warpgroup.arrive is injected"
    assert remarks[1].startswith("C7520 x1: Potential Performance Loss")


def test_what_is_not_said_is_absent() -> None:
    """No output means no resources, not zeros."""
    assert read_ptxas("").resources == {}
    assert read_dynamic_smem("") is None


def test_dynamic_shared_memory_is_read_from_the_choreo_compiler() -> None:
    """The size that the wrapper asks for."""
    assert read_dynamic_smem("MaxDynamicSharedMemorySize is set to `212992` bytes, cause") == 212992


@pytest.mark.parametrize(
    ("run", "error", "says"),
    [
        (completed("k.co:6.1: error: some asyncs are not waited\n"), CompileFailed, "asyncs"),
        (completed("Assertion `x' failed", 134), CompilerCrashed, "134"),
        (completed("", -6, Ending.SIGNALLED), CompilerCrashed, "crashed"),
        (completed("", 139), CompilerCrashed, "139"),
        (completed("", None, Ending.DEADLINE), CompileTimeout, "did not end"),
        (
            completed("k.cu:9:10: fatal error: choreo.h: No such file or directory"),
            EnvironmentMissing,
            "installation",
        ),
        (
            completed("undefined reference to `cudaGetDeviceProperties_v2'"),
            EnvironmentMissing,
            "installation",
        ),
        (completed("undefined reference to `helper'"), CompileFailed, "helper"),
    ],
)
def test_failures_are_told_apart(run: Completed, error: type[CroqError], says: str) -> None:
    """The candidate's fault, the compiler's crash, the deadline and the installation."""
    made = compile_error("nvcc", run)
    assert type(made) is error
    assert says in str(made)


def test_a_kernel_without_registers_for_wgmma_is_a_failure() -> None:
    """C7602 makes the kernel useless though nvcc may end well."""
    line = "ptxas error   : (C7602) Insufficient register resources for wgmma"
    assert "C7602" in fatal_remark(f"one\n{line}\ntwo")
    assert fatal_remark(PTXAS) == ""
