"""What an object file may refer to and define."""

from __future__ import annotations

import pytest

from croq_fsm.toolchain.croqtile_object import device_code, read_symbols, symbol_problems

GOOD = """\
croq_candidate T 10 20
_Z6matmulRKN6choreo12spanned_viewI6__halfLm2EEES4_S4_ T 3e0 a00
_Z22__choreo_device_matmulP6__halfS0_S0_jjj T c0 30
_Z79__device_stub__Z22__choreo_device_matmulP6__halfS0_S0_jjjP6__halfS0_S0_jjj T 250 100
_ZN4cute5helperEv W 0 1
__cudaRegisterFatBinary U
__cudaLaunchKernel U
cuTensorMapEncodeTiled U
cudaFuncSetAttribute U
_ZSt4cerr U
_ZNSo3putEc U
memcpy U
"""


def problems(*lines: str) -> str:
    """Findings on the good symbols and some more."""
    return "\n".join(symbol_problems(read_symbols(GOOD + "\n".join(lines))))


def test_an_honest_object_passes() -> None:
    """The symbols of a generated wrapper are all allowed."""
    assert problems() == ""
    assert read_symbols(GOOD).kernels == ("__choreo_device_matmul",)


@pytest.mark.parametrize(
    "name",
    [
        "cublasGemmEx",
        "cudnnCreate",
        "cudaStreamCreateWithFlags",
        "cudaEventElapsedTime",
        "cudaLaunchHostFunc",
        "pthread_create",
        "_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateE",
        "_ZNSt13basic_filebufIcSt11char_traitsIcEE4openEPKcSt13_Ios_Openmode",
        "open",
        "write",
        "system",
        "dlopen",
        "syscall",
        "getenv",
        "_ZN4croq5Timer3runERKNS_13TimingRequestE",
    ],
)
def test_libraries_streams_threads_and_files_are_refused(name: str) -> None:
    """Whatever a wrapper has no need of cannot be linked."""
    assert name in problems(f"{name} U")


@pytest.mark.parametrize(
    "name",
    [
        "cudaEventElapsedTime",
        "cudaDeviceSynchronize",
        "memcpy",
        "main",
        "_ZN4croq5Timer3runERKNS_13TimingRequestE",
        "_ZNK4croq6Answer4lineEv",
        "_Znwm",
        "_ZNSt6vectorIdE9push_backEd",
    ],
)
def test_symbols_of_the_harness_and_the_system_cannot_be_replaced(name: str) -> None:
    """A strong definition would win over the harness's own code in the link."""
    assert "belongs to the harness or the system" in problems(f"{name} T 0 1")


def test_an_object_without_kernel_or_entry_is_refused() -> None:
    """There must be something to run, and a way to call it."""
    text = "\n".join(symbol_problems(read_symbols("memcpy U\n")))
    assert "does not define croq_candidate" in text
    assert "no device kernel" in text


def test_only_elf_files_are_read() -> None:
    """Something else is an error, not an empty identity."""
    with pytest.raises(ValueError, match="ELF"):
        device_code(b"not an object", "")
