"""Dtype words, shapes, error bounds and start kernels of all operators."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from croq_fsm.config import Config
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.dtypes import Types, parse_dtype
from croq_fsm.domain.hidden import hidden_tasks
from croq_fsm.domain.operators import MATMUL, OPERATORS, SUPPORTED, operator
from croq_fsm.domain.task import Task
from croq_fsm.errors import UsageError
from croq_fsm.sessions import Request, make_task
from croq_fsm.toolchain import croqtile_lint, cuda_rules

DEVICE = sorted(SUPPORTED["croqtile"])
SHAPE = (4096, 4096, 4096)


def task(name: str, dtype: str, shape: tuple[int, ...] = SHAPE, dsl: str = "croqtile") -> Task:
    """A task on a device."""
    return Task(dsl=dsl, operator=name, dtype=dtype, shape=shape, kernel="", model="test")


@pytest.mark.parametrize(
    ("word", "canonical"),
    [
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("fp16fp32", "f16f32"),
        ("FP16FP32", "f16f32"),
        ("float16", "f16"),
        ("f16f16", "f16"),
        ("f16f16f32", "f16"),
        ("f16f16f16", "f16f16f16"),
        ("half_half_half", "f16f16f16"),
        ("bf16fp32", "bf16f32"),
        ("e4m3", "e4m3f16"),
        ("fp8", "e4m3f16"),
        ("e4m3fp16fp32", "e4m3f16"),
        ("e4m3fp16fp16", "e4m3f16f16"),
        ("f8_e4m3-f32", "e4m3f32"),
        ("f32", "f32"),
    ],
)
def test_spellings_of_a_dtype_are_one_word(word: str, canonical: str) -> None:
    """Aliases and what may be left out come to the same canonical word."""
    assert MATMUL.dtype(word) == canonical


@pytest.mark.parametrize("word", ["", "int8", "f16x", "f16f16f16f16", "e5m2", "f1 6"])
def test_an_unknown_dtype_lists_the_known_ones(word: str) -> None:
    """No guess is made about a word that is none."""
    with pytest.raises(UsageError, match="known: bf16, bf16f32, e4m3bf16"):
        MATMUL.dtype(word)


def test_canonical_words_are_their_own_meaning() -> None:
    """A word of the registry is read back as itself, whatever operator it belongs to."""
    for op in OPERATORS.values():
        for word in op.precisions:
            types = parse_dtype(word)
            assert types is not None
            assert types.word == word
            assert op.dtype(word) == word
    assert Types("f16", "f16", "f32").word == "f16"


def test_a_dtype_of_another_operator_is_refused() -> None:
    """Block scales belong to 8-bit operands."""
    with pytest.raises(UsageError, match="blockscale_gemm has no dtype 'f16'"):
        operator("blockscale_gemm").dtype("f16")


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "says"),
    [
        ("matmul", "fp8", "64x64x40", "size k = 40 must be a multiple of 16"),
        ("matmul", "e4m3", "64x72x64", "size n = 72 must be a multiple of 16"),
        ("blockscale_gemm", "e4m3", "128x128x64", "size k = 64 must be a multiple of 128"),
        ("blockscale_gemm", "e4m3", "64x128x128", "size m = 64 must be a multiple of 128"),
        ("gemm_sp", "f16", "128x128x32", "size k = 32 must be a multiple of 64"),
        ("gemm_sp", "f16", "64x128x64", "size m = 64 must be a multiple of 128"),
        ("gemm_sp", "e4m3", "128x8x128", "size n = 8 must be a multiple of 16"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_at_once(
    name: str, dtype: str, shape: str, says: str
) -> None:
    """Before a session, and so before any compile."""
    request = Request(dsl="croqtile", operator=name, dtype=dtype, shape=shape)
    with pytest.raises(UsageError, match=says):
        make_task(request, Config(), 0.0)


def test_a_task_has_the_canonical_dtype() -> None:
    """Paths and records never see an alias."""
    request = Request(dsl="cuda", operator="matmul", dtype="FP16FP32", shape="256x256x256")
    made = make_task(request, Config(), 0.0)
    assert made.shape_key == "matmul_f16f32_256x256x256"


def test_operands_have_the_shapes_of_their_layouts() -> None:
    """Compressed operands, metadata and scales are counted in the traffic as they are."""
    sparse, scaled = operator("gemm_sp"), operator("blockscale_gemm")
    shape = (256, 512, 1024)
    sizes = sparse.sizes(shape)
    shapes = [t.shape(sizes) for t in sparse.precision("f16").tensors]
    assert shapes == [(256, 512), (256, 128), (512, 1024), (256, 512)]
    assert sparse.nbytes(shape, "f16") == 256 * 1024 + 256 * 128 + 512 * 2048 + 256 * 1024
    shapes = [t.shape(sizes) for t in scaled.precision("e4m3").tensors]
    assert shapes == [(256, 1024), (256, 8), (512, 1024), (4, 8), (256, 512)]
    assert sparse.flop_count(shape) == scaled.flop_count(shape) == 2 * 256 * 512 * 1024


@pytest.mark.parametrize(("name", "dtype"), DEVICE)
def test_one_missing_step_is_beyond_the_bound(name: str, dtype: str) -> None:
    """A kernel that skips one tile step of 128 in 4096 is off by more than may be."""
    op = operator(name)
    skipped = (128 / 4096) ** 0.5
    assert op.error_bound(SHAPE, dtype) < skipped / 3
    assert op.honest_error(SHAPE, dtype) * op.safety == op.error_bound(SHAPE, dtype)


@pytest.mark.parametrize(("name", "dtype"), DEVICE)
def test_zeros_are_beyond_the_table(name: str, dtype: str) -> None:
    """The element-wise tolerance alone would find an output that is nowhere computed."""
    op = operator(name)
    table = op.precision(dtype).tolerance
    assert table is not None
    assert table.absolute < op.typical(SHAPE, dtype)


def test_bounds_without_tensor_cores_are_as_they_were() -> None:
    """f16 with f32 sums: rounding of the output and of a random walk."""
    bound = MATMUL.error_bound((64, 64, 4096), "f16")
    assert bound == pytest.approx(4 * (2**-24 * 64 + 2**-11))
    assert MATMUL.typical((64, 64, 4096), "f16") == 64.0


def test_block_scales_bound_the_length_of_a_sum() -> None:
    """Sums are carried on in f32 after each block, so the bound does not grow with k."""
    op = operator("blockscale_gemm")
    short, long = (op.error_bound((128, 128, k), "e4m3f16") for k in (1024, 16384))
    assert short == long < MATMUL.error_bound((128, 128, 1024), "e4m3f16")


@pytest.mark.parametrize("name", ["gemm_sp", "blockscale_gemm"])
def test_hidden_shapes_are_possible_shapes(name: str) -> None:
    """Other shapes keep what the operator demands."""
    mine = task(name, "e4m3f16", (128, 384, 1024))
    found = hidden_tasks(mine, 7, 4)
    assert found
    for other in found:
        other.op.check_shape(other.shape, other.dtype)


@pytest.mark.parametrize("dsl", ["croqtile", "cuda"])
@pytest.mark.parametrize(("name", "dtype"), DEVICE)
def test_a_start_kernel_ships_and_no_lint_objects(dsl: str, name: str, dtype: str) -> None:
    """Whatever a DSL claims to run, it has a kernel of its own to start with."""
    suffix = {"croqtile": ".co", "cuda": ".cu"}[dsl]
    path = files("croq_fsm.kernels").joinpath(dsl, name, f"{name}_{dtype}_plain{suffix}")
    candidate = Candidate(source=path.read_text(encoding="utf-8"))
    lint = {"croqtile": croqtile_lint.lint, "cuda": cuda_rules.lint}[dsl]
    assert lint(candidate, task(name, dtype, dsl=dsl)) == []
    assert SUPPORTED["cuda"] == SUPPORTED["croqtile"]


def test_the_page_of_operators_is_the_registry() -> None:
    """docs/operators.md lists each operator and dtype with its tolerance and its library."""
    page = Path(__file__).resolve().parent.parent / "docs" / "operators.md"
    text = page.read_text(encoding="utf-8").partition("## Table")[2]
    rows = re.findall(r"\| `(\w+)` \| `(\w+)` \| ([\d.]+) \+ ([\d.]+) \S+ \| `(\w+)` \|", text)
    found = []
    for name, dtype in DEVICE:
        precision = operator(name).precision(dtype)
        assert precision.tolerance is not None
        limits = (f"{precision.tolerance.absolute:g}", f"{precision.tolerance.relative:g}")
        found.append((name, dtype, *limits, precision.library))
    assert rows == found
