"""The allow-list of compiler flags."""

from __future__ import annotations

import pytest

from croq_fsm.errors import CompileFailed
from croq_fsm.toolchain.croqtile_flags import allowed_flags, split_flags

KNOWN = frozenset({"--stmatrix", "-zero-cost", "--help", "-o"})


def test_flags_are_sorted_by_compiler_in_order() -> None:
    """Each compiler gets its own flags."""
    flags = split_flags(("nvcc:-maxrregcount=168", "choreo:--stmatrix=false", "nvcc:-O2"), KNOWN)
    assert flags.choreo == ("--stmatrix=false",)
    assert flags.nvcc == ("-maxrregcount=168", "-O2")


@pytest.mark.parametrize(
    "flag",
    [
        "-maxrregcount=168",
        "gcc:-O3",
        "nvcc:-maxrregcount=5",
        "nvcc:-Xcompiler=-fplugin=x",
        "nvcc:-include=/etc/passwd",
        "nvcc:@file",
        "nvcc:-O2 -o /tmp/x",
        "nvcc:--use_fast_math\n-o x",
        "nvcc:-DcudaDeviceSynchronize=0",
        "choreo:-o",
        "choreo:--help",
        "choreo:--stmatrix=../x",
        "choreo:--use-warpspec",
    ],
)
def test_other_flags_are_refused(flag: str) -> None:
    """Unknown compilers, files, plug-ins, outputs and flags that the compiler lacks."""
    with pytest.raises(CompileFailed):
        split_flags((flag,), KNOWN)


def test_only_known_flags_are_offered() -> None:
    """What ideators are told is the list cut down to the compiler at hand."""
    assert allowed_flags(KNOWN) == ["choreo:--stmatrix", "choreo:-zero-cost"]
