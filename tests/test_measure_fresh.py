"""Contents of timed launches and the proofs of their outputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from c_kernels import needs_cc

from croq_fsm.domain.operators import operator
from croq_fsm.domain.shapes import parse_shape
from croq_fsm.measure import cases, fresh
from croq_fsm.measure.cases import Float32, Float64
from croq_fsm.measure.fresh import Helper
from croq_fsm.measure.judge_cpu import CaseStore, Judge

SHAPES = {"matmul": "96x80x112", "softmax": "72x120"}
#: Rows beyond the longest proof, so that they are folded.
TALL = {"matmul": "5000x24x32", "softmax": "9001x24"}

pytestmark = needs_cc


def made(helper: Helper, name: str, shape: str, number: int) -> list[Float32]:
    """Inputs of a content."""
    op = operator(name)
    inputs = fresh.blank_inputs(op, parse_shape(shape, op.dims))
    helper.fill(inputs, number)
    return inputs


def problem(helper: Helper, name: str, shape: str, output: Float32) -> str:
    """What the proof of an output for content 5 says, made as the harness makes it."""
    op, vector = operator(name), 99
    inputs = made(helper, name, shape, 5)
    right = fresh.expected(helper, op, parse_shape(shape, op.dims), inputs, vector)
    weights = helper.weights(output.shape[1], vector)
    return right.problem(helper.fold(helper.project(output, weights), vector))


def answer(helper: Helper, name: str, shape: str) -> Float32:
    """An honest output for content 5, in single precision."""
    inputs = made(helper, name, shape, 5)
    reference = cases.reference(operator(name), inputs)
    out = np.empty(reference.shape, np.float32)
    cases.library(operator(name), inputs, out)
    return out


def splitmix(stream: int, count: int) -> list[int]:
    """The random words behind an array, by the formula."""
    return [fresh.mix(stream + i * 0x9E3779B97F4A7C15 & (1 << 64) - 1) for i in range(count)]


def test_random_words_are_splitmix64() -> None:
    """The first value for a well-known state is the published one."""
    assert fresh.mix(1234567) == 6457827717110365317


def test_contents_are_what_the_formula_says(helper: Helper) -> None:
    """The helper's bits follow from the content's number alone, by integers."""
    _, b = made(helper, "matmul", "4x5x6", 77)
    stream = fresh.mix((fresh.mix(77) + 0xD1B54A32D192ED03) & (1 << 64) - 1)
    words = splitmix(stream, 30)
    sums = [sum(w >> s & 0xFFFF for s in (0, 16, 32, 48)) - 131070 for w in words]
    wanted = np.array(sums, np.float32) * np.float32(float.fromhex("0x1.bb67aep-16"))
    assert np.array_equal(b.reshape(-1), wanted)


def test_contents_are_bell_shaped_and_differ(helper: Helper) -> None:
    """Mean 0, variance 1, and nothing in common between operands or contents."""
    a, b = made(helper, "matmul", "200x200x200", 1)
    other, _ = made(helper, "matmul", "200x200x200", 2)
    assert abs(a.mean()) < 0.02
    assert abs(a.std() - 1) < 0.02
    for x, y in ((a, b), (a, other)):
        assert abs(np.corrcoef(x.reshape(-1), y.reshape(-1))[0, 1]) < 0.02
    assert np.unique(a).size > 20_000


@pytest.mark.parametrize("shapes", [SHAPES, TALL], ids=["all rows", "folded"])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_honest_outputs_have_right_proofs(
    helper: Helper, name: str, shapes: dict[str, str]
) -> None:
    """Rounding in single precision stays far inside the bound, on each of many contents."""
    op, shape = operator(name), parse_shape(shapes[name], operator(name).dims)
    worst = 0.0
    for number in range(8):
        inputs = made(helper, name, shapes[name], number)
        out: Float32 = np.empty_like(cases.reference(op, inputs), dtype=np.float32)
        cases.library(op, inputs, out)
        right = fresh.expected(helper, op, shape, inputs, number)
        proof = helper.fold(helper.project(out, helper.weights(out.shape[1], number)), number)
        assert not right.problem(proof)
        worst = max(worst, float(np.max(np.abs(proof - right.proof) / right.bound)))
    assert 0 < worst < 0.25


def _one_element(out: Float32) -> None:
    out[17, 11] *= np.float32(1.5)


def _one_row(out: Float32) -> None:
    out[40] = out[41]


def _nan(out: Float32) -> None:
    out[3, 3] = np.nan


def _poisoned(out: Float32) -> None:
    out.view(np.uint32)[-1] = cases.POISON


def _infinite(out: Float32) -> None:
    out[5, 5] = np.inf


def _swapped(out: Float32) -> None:
    out[7, [2, 9]] = out[7, [9, 2]]


def _half(out: Float32) -> None:
    out[...] = out.astype(np.float16)


FAULTS = (_one_element, _one_row, _nan, _poisoned, _infinite, _swapped, _half)


@pytest.mark.parametrize("shapes", [SHAPES, TALL], ids=["all rows", "folded"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_faults_show_in_the_proof(
    helper: Helper, name: str, fault: object, shapes: dict[str, str]
) -> None:
    """One wrong element, a copied row, no number or a lower precision: each is seen."""
    out = answer(helper, name, shapes[name])
    assert not problem(helper, name, shapes[name], out)
    fault(out)  # type: ignore[operator]
    assert "random projections of its output are wrong" in problem(helper, name, shapes[name], out)


def test_a_lost_term_shows(helper: Helper) -> None:
    """A product that leaves out the last term of each sum has a wrong proof."""
    a, b = made(helper, "matmul", SHAPES["matmul"], 5)
    out: Float32 = a[:, :-1] @ b[:-1]
    assert problem(helper, "matmul", SHAPES["matmul"], out)


def proofs(helper: Helper, name: str, numbers: list[int], wrong: int | None) -> list[Float64]:
    """Proofs of launches, one of which computed another content."""
    found = []
    for launch, number in enumerate(numbers):
        inputs = made(helper, name, SHAPES[name], number + (launch == wrong))
        out = cases.reference(operator(name), inputs).astype(np.float32)
        weights = helper.weights(out.shape[1], number)
        found.append(helper.fold(helper.project(out, weights), number))
    return found


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_the_judge_looks_at_every_launch(helper: Helper, tmp_path: Path, name: str) -> None:
    """Whichever launch of a block is wrong, the judge names it."""
    judge = Judge(CaseStore(tmp_path, name, SHAPES[name]), helper)
    numbers, path = [10, 20, 30, 40], tmp_path / "proofs"
    request = {"cmd": "prove", "contents": numbers, "vectors": numbers, "proofs": str(path)}
    for wrong in (None, *range(len(numbers))):
        np.concatenate(proofs(helper, name, numbers, wrong)).tofile(path)
        text = "" if wrong is None else f"launch {wrong + 1} of 4: "
        found = judge.serve(request)
        assert found["ok"] is True
        assert str(found["problem"]).startswith(text)
        assert bool(found["problem"]) == bool(text)


def test_without_the_helper_nothing_is_proved(tmp_path: Path) -> None:
    """A judge that cannot make contents says so instead of passing anything."""
    judge = Judge(CaseStore(tmp_path, "matmul", SHAPES["matmul"]))
    path = tmp_path / "proofs"
    np.zeros(96).tofile(path)
    request = {"cmd": "prove", "contents": [1], "vectors": [1], "proofs": str(path)}
    assert "without the harness's own code" in str(judge.serve(request)["error"])
