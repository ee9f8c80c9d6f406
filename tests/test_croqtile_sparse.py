"""Static checks of sparse kernels. No compiler is needed."""

from __future__ import annotations

from importlib.resources import files

import pytest

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.source import set_macros
from croq_fsm.domain.task import Task
from croq_fsm.toolchain.croqtile_lint import lint
from croq_fsm.toolchain.croqtile_sparse import cuda_problem

FOLDER = files("croq_fsm.kernels").joinpath("croqtile", "gemm_sp")


def shipped(dtype: str) -> str:
    """A start kernel."""
    return FOLDER.joinpath(f"gemm_sp_{dtype}_plain.co").read_text(encoding="utf-8")


def problems(source: str, dtype: str = "f16", operator: str = "gemm_sp") -> str:
    """All lints of a source as one text."""
    task = Task(
        dsl="croqtile",
        operator=operator,
        dtype=dtype,
        shape=(4096, 4096, 4096),
        kernel="",
        model="test",
    )
    return "\n".join(lint(Candidate(source=source), task))


@pytest.mark.parametrize(
    ("dtype", "changed", "says"),
    [
        ("f16", {"SPMM_WARP_M": "128"}, "SPMM_WARP_M is 128; a WGMMA has 64 rows"),
        ("f16", {"SPMM_WARP_K": "16"}, "sparse WGMMA of f16 has k = 32"),
        ("e4m3f16", {"SPMM_WARP_K": "32"}, "sparse WGMMA of f8_e4m3 has k = 64"),
        ("f16", {"SPMM_PACKED_TILE_K": "64"}, "must be twice SPMM_PACKED_TILE_K"),
        ("f16", {"SPMM_META_TILE_COLS": "4"}, "it must be SPMM_TILE_K / 32"),
    ],
)
def test_the_protocols_constants_are_held(dtype: str, changed: dict[str, str], says: str) -> None:
    """Each fixed relation between the macros speaks when it is broken, and only then."""
    assert problems(shipped(dtype), dtype) == ""
    assert says in problems(set_macros(shipped(dtype), changed), dtype)


def test_a_stage_is_not_given_back_right_after_a_sparse_multiplication() -> None:
    """The compiler would wait only after the loop; the shipped branch makes it wait before."""
    early = shipped("f16").replace("if (wg > 0) {\n            trigger empty.at(k);\n          }",
                                   "trigger empty.at(k);")  # fmt: skip
    assert early != shipped("f16")
    assert "H2: `trigger empty.at(k);`" in problems(early)


def test_other_operators_are_left_alone() -> None:
    """The rules are about sparse kernels."""
    changed = set_macros(shipped("f16"), {"SPMM_WARP_K": "16"})
    assert "SPMM" not in problems(changed, operator="matmul")


@pytest.mark.parametrize(
    ("version", "refused"),
    [("12.8.93", True), ("12.9.41", False), ("13.0.88", False), ("11.8", True), ("", False)],
)
def test_old_toolkits_cannot_build_sparse_kernels(version: str, refused: bool) -> None:
    """CUDA 12.9 is the first that can; what is unknown is not refused."""
    assert ("12.9" in cuda_problem(version)) is refused
