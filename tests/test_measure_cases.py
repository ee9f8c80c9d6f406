"""Cases and comparison: honest results pass, everything else fails, on the whole output."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from croq_fsm.domain.operators import operator
from croq_fsm.measure import cases
from croq_fsm.measure.cases import Float32, Float64

SHAPES = {"matmul": (96, 64, 80), "softmax": (96, 64)}
ALL = [(name, kind) for name, kinds in cases.KINDS.items() for kind in kinds]

Case = tuple[list[Float32], Float64]


def case(name: str, kind: str, seed: int = 1, shape: tuple[int, ...] | None = None) -> Case:
    """Inputs and reference."""
    inputs = cases.make_inputs(operator(name), shape or SHAPES[name], kind, seed)
    return inputs, cases.reference(operator(name), inputs)


def judge(
    name: str, made: Case, output: Float32, shift: tuple[int, int] = (0, 0)
) -> cases.Comparison:
    """Compare an output."""
    return cases.compare(operator(name), SHAPES[name], *made, output, shift=shift)


def one_by_one(name: str, inputs: list[Float32]) -> Float32:
    """The operator in single precision, summed in order: the least exact honest way."""
    if name == "matmul":
        a, b = inputs
        out = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for p in range(a.shape[1]):
            out += a[:, p : p + 1] * b[p : p + 1]
        return out
    x = inputs[0]
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    total = np.zeros((x.shape[0], 1), np.float32)
    for j in range(x.shape[1]):
        total += powers[:, j : j + 1]
    return np.asarray(powers / total)


@pytest.mark.parametrize(("name", "kind"), ALL)
def test_honest_results_pass(name: str, kind: str) -> None:
    """The library and the plain order of summation are inside the bounds, with room to spare."""
    made = case(name, kind)
    out = np.empty(made[1].shape, np.float32)
    cases.library(operator(name), made[0], out)
    for honest in (out, one_by_one(name, made[0]), made[1].astype(np.float32)):
        result = judge(name, made, honest)
        assert result.passed, result.detail
        allowed = cases.tolerance(operator(name), SHAPES[name], *made, slice(None))
        assert np.max(np.abs(honest - made[1]) / allowed) < 0.7


@pytest.mark.parametrize("kind", ["normal", "integers"])
@pytest.mark.parametrize("k", [1, 17, 1024, 8192])
def test_bound_grows_with_the_sum(kind: str, k: int) -> None:
    """Long sums in plain order stay inside the bound, and a lost term falls outside of it."""
    shape = (24, 32, k)
    made = case("matmul", kind, shape=shape)
    out = one_by_one("matmul", made[0])
    assert cases.compare(operator("matmul"), shape, *made, out).passed
    if k > 1:
        lost = out - made[0][0][:, 5:6] * made[0][1][5:6]
        assert not cases.compare(operator("matmul"), shape, *made, lost).passed


def _half(array: Float32) -> Float32:
    result = array.copy()
    result.view(np.uint32)[len(array) // 2 :] = cases.POISON
    return result


def _tile_off(array: Float32) -> Float32:
    result = array.copy()
    result[:, 16:32], result[:, 32:48] = array[:, 32:48], array[:, 16:32]
    return result


def _one_off(array: Float32) -> Float32:
    result = array.copy()
    result[7, 9] = result[7, 9] * 1.01 + 1e-3
    return result


def _one_nan(array: Float32) -> Float32:
    result = array.copy()
    result[3, 4] = np.nan
    return result


def _low_precision(array: Float32) -> Float32:
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


FAULTS: dict[str, Callable[[Float32], Float32]] = {
    "zeros": np.zeros_like,
    "ones": np.ones_like,
    "mean": lambda x: np.full_like(x, x.mean()),
    "half computed": _half,
    "never written": lambda x: np.full_like(x, np.nan),
    "transposed": lambda x: np.ascontiguousarray(x.T).reshape(x.shape),
    "off by one row": lambda x: np.roll(x, 1, axis=0),
    "off by one column": lambda x: np.roll(x, 1, axis=1),
    "two tiles exchanged": _tile_off,
    "negative": lambda x: -x,
    "one element wrong": _one_off,
    "one element no number": _one_nan,
    "infinite": lambda x: x * np.float32(np.inf),
    "ten bits of mantissa": _low_precision,
    "scaled by 1.0001": lambda x: x * np.float32(1.0001),
}


@pytest.mark.parametrize("name", list(cases.KINDS))
@pytest.mark.parametrize("fault", list(FAULTS))
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_faults_are_found(name: str, fault: str) -> None:
    """Every known way to be wrong is found on every operator, with finite words about it."""
    made = case(name, "normal")
    result = judge(name, made, FAULTS[fault](made[1].astype(np.float32)))
    assert not result.passed
    assert result.wrong > 0
    assert "must be" in result.detail
    assert result.total == made[1].size
    assert all(not isinstance(v, float) or np.isfinite(v) for v in result.as_answer().values())


@pytest.mark.parametrize("name", list(cases.KINDS))
def test_copy_of_an_input_fails(name: str) -> None:
    """The first input, cut to the shape of the output, does not pass for the result."""
    made = case(name, "normal")
    copied = np.resize(made[0][0], made[1].shape).astype(np.float32)
    assert not judge(name, made, copied).passed


def test_unwritten_elements_and_first_place_are_told() -> None:
    """The text leads to the place where the kernel went wrong."""
    made = case("matmul", "normal")
    result = judge("matmul", made, _half(made[1].astype(np.float32)))
    assert result.unwritten == 48 * 64
    assert "[48, 0] is nan" in result.detail
    assert "3072 were never written" in result.detail


@given(st.integers(0, 95), st.integers(0, 63), st.sampled_from(ALL))
@settings(max_examples=40, deadline=None)
def test_rolled_inputs_give_the_rolled_output(
    down: int, right: int, which: tuple[str, str]
) -> None:
    """Both operators commute with rolling: one reference serves all contents."""
    name, kind = which
    made = case(name, kind)
    shifts = ((down, 0), (0, right)) if name == "matmul" else ((down, right),)
    work = [np.roll(x, by, axis=(0, 1)) for x, by in zip(made[0], shifts, strict=True)]
    out = np.empty(made[1].shape, np.float32)
    cases.library(operator(name), work, out)
    assert judge(name, made, out, (down, right)).passed
    if (down, right) != (0, 0):
        assert not judge(name, made, out).passed


def test_wrong_place_is_told_where_the_kernel_wrote_it() -> None:
    """Under a shift the place in the text is the place in the output file."""
    made = case("matmul", "normal")
    out = np.roll(made[1].astype(np.float32), (5, 9), axis=(0, 1))
    out[40, 50] += 1
    assert "[40, 50] is" in judge("matmul", made, out, (5, 9)).detail


def test_inputs_depend_on_seed_and_kind_alone() -> None:
    """The same seed gives the same bits, another one other bits."""
    for name, kind in ALL:
        first, again, other = (case(name, kind, seed)[0][0] for seed in (1, 1, 2))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)
        assert first.dtype == np.float32


def test_softmax_of_large_numbers_needs_the_maximum() -> None:
    """Without subtracting the maximum the second kind of data gives no numbers."""
    made = case("softmax", "large")
    with np.errstate(all="ignore"):
        naive = np.exp(made[0][0]) / np.exp(made[0][0]).sum(axis=1, keepdims=True)
    assert not judge("softmax", made, naive.astype(np.float32)).passed


def test_degenerate_cases_are_known() -> None:
    """A shape on which a constant would pass is told apart from one that proves something."""
    for name, shape, passes in (
        ("softmax", (8, 1), True),
        ("matmul", (1, 1, 1), True),
        ("softmax", (8, 16), False),
        ("matmul", (4, 4, 4), False),
    ):
        made = case(name, "normal", shape=shape)
        assert cases.constant_passes(operator(name), shape, *made) is passes
