"""Inputs, references and comparison for the CPU kernels: pure functions over NumPy arrays.

A *case* is an operator, a shape, a kind of data and a seed. Kinds:

``normal``
    Zero-mean normal numbers, as in production; every element and every place differs.
``integers`` (matmul)
    Small random integers, whose products and sums are exact in single precision in any order:
    one wrong index gives a wrong integer.
``large`` (softmax)
    Rows far from zero in both directions: exponentials overflow, or all vanish, unless the
    maximum of the row is subtracted first.

Element-wise bound. With ``r`` the operator's relative bound (``Operator.error_bound``, that is
four standard deviations or more of honest rounding) and ``u`` the unit round-off:

* matmul: ``3 r ‖a_i‖ ‖b_j‖ / √k``. The products of norms over √k is the typical size of an
  element, so this is the relative bound where an element has typical size, and it does not
  vanish where terms cancel. A single lost term exceeds it.
* softmax: ``y (r + u (4 |x - max| + 16)) + 2⁻¹²⁶``. Rounding of ``x - max`` is multiplied by
  the exponential's slope; the last term lets numbers below the normal range become zero.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from croq_fsm.domain.operators import UNIT_ROUNDOFF, Operator, Shape

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

#: Kinds of data by operator. Timed launches have contents of their own (``fresh``).
KINDS: Final = {"matmul": ("normal", "integers"), "softmax": ("normal", "large")}

#: Pattern that the harness puts in every element of an output before a launch.
POISON: Final = 0x7FA5C3E1

_CHUNK: Final = 1 << 22
_SMALLEST_NORMAL: Final = 2.0**-126
_LARGEST_INTEGER: Final = 8
_LARGE_OFFSET, _LARGE_SCALE = 250.0, 20.0
_DTYPE: Final = "f32"


@dataclass(frozen=True)
class Comparison:
    """Result of comparing a whole output with its reference.

    Attributes:
        passed: No element outside its bound, and the whole inside the relative bound.
        rel_error: Relative Frobenius error; infinite when an element is no finite number.
        max_error: Largest absolute error, likewise.
        wrong: Elements outside the element-wise bound.
        unwritten: Elements that still hold the harness's pattern.
        total: Elements compared.
        detail: A sentence about the first wrong element, or the margin.
    """

    passed: bool
    rel_error: float
    max_error: float
    wrong: int
    unwritten: int
    total: int
    detail: str

    def as_answer(self) -> dict[str, object]:
        """For a JSON line, which knows no infinities: those become None."""
        answer = asdict(self)
        for name in ("rel_error", "max_error"):
            answer[name] = answer[name] if np.isfinite(answer[name]) else None
        return answer


def make_inputs(operator: Operator, shape: Shape, kind: str, seed: int) -> list[Float32]:
    """Inputs of a case, in argument order. The same on every machine."""
    sizes = operator.sizes(shape)
    tensors = operator.precision(_DTYPE).inputs
    rng = np.random.Generator(np.random.PCG64([seed, KINDS[operator.name].index(kind)]))
    shapes = [tensor.shape(sizes) for tensor in tensors]
    if kind == "integers":
        low, high = -_LARGEST_INTEGER, _LARGEST_INTEGER + 1
        return [rng.integers(low, high, size=dims).astype(np.float32) for dims in shapes]
    arrays = [rng.standard_normal(dims, dtype=np.float32) for dims in shapes]
    if kind == "large":
        offsets = rng.choice([-_LARGE_OFFSET, _LARGE_OFFSET], size=(sizes["rows"], 1))
        arrays = [(x * _LARGE_SCALE + offsets).astype(np.float32) for x in arrays]
    return arrays


def reference(operator: Operator, inputs: list[Float32]) -> Float64:
    """The whole output in double precision."""
    wide = [array.astype(np.float64) for array in inputs]
    if operator.name == "matmul":
        product: Float64 = wide[0] @ wide[1]
        return product
    return _softmax(wide[0])


def tolerance(
    operator: Operator, shape: Shape, inputs: list[Float32], expected: Float64, rows: slice
) -> Float64:
    """Largest absolute error of each element in some rows; the formula is above."""
    bound = operator.error_bound(shape, _DTYPE)
    if operator.name == "matmul":
        a, b = inputs
        left = np.linalg.norm(a[rows].astype(np.float64), axis=1)
        right = np.sqrt(np.einsum("pj,pj->j", b, b, dtype=np.float64))
        scale = 3.0 * bound / np.sqrt(a.shape[1])
        return np.asarray(scale * left[:, None] * right[None, :])
    x = inputs[0][rows].astype(np.float64)
    distance = x.max(axis=1, keepdims=True) - x
    relative = bound + UNIT_ROUNDOFF[_DTYPE] * (4.0 * distance + 16.0)
    return np.asarray(expected[rows] * relative + _SMALLEST_NORMAL)


def compare(
    operator: Operator,
    shape: Shape,
    inputs: list[Float32],
    expected: Float64,
    output: Float32,
    *,
    shift: tuple[int, int] = (0, 0),
) -> Comparison:
    """Compare a whole output, made from inputs that were rolled by ``shift``.

    Args:
        operator: What was computed.
        shape: Its sizes.
        inputs: Unrolled inputs.
        expected: Unrolled reference.
        output: What the kernel wrote.
        shift: Rows and columns by which inputs and output are rolled.
    """
    unrolled = np.roll(output, (-shift[0], -shift[1]), axis=(0, 1))
    tally = _Tally(shift, output.shape)
    step = max(1, _CHUNK // expected.shape[1])
    for start in range(0, expected.shape[0], step):
        rows = slice(start, start + step)
        allowed = tolerance(operator, shape, inputs, expected, rows)
        tally.add(start, unrolled[rows], expected[rows], allowed)
    unwritten = int(np.count_nonzero(output.view(np.uint32) == POISON))
    return tally.result(operator.error_bound(shape, _DTYPE), unwritten)


def constant_passes(
    operator: Operator, shape: Shape, inputs: list[Float32], expected: Float64
) -> bool:
    """Whether zeros, or the mean everywhere, would pass: then the case proves nothing."""
    fills = (0.0, float(expected.mean()))
    fakes = (np.full(expected.shape, fill, dtype=np.float32) for fill in fills)
    return any(compare(operator, shape, inputs, expected, fake).passed for fake in fakes)


def library(operator: Operator, inputs: list[Float32], out: Float32) -> None:
    """The operator by NumPy: BLAS for matmul, whole-array arithmetic for softmax."""
    if operator.name == "matmul":
        np.matmul(inputs[0], inputs[1], out=out)
        return
    x = inputs[0]
    np.subtract(x, x.max(axis=1, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=1, keepdims=True), out=out)


def _softmax(x: Float64) -> Float64:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


class _Tally:
    """Sums up the comparison of one output over chunks of rows."""

    def __init__(self, shift: tuple[int, int], shape: tuple[int, ...]) -> None:
        self._shift = shift
        self._shape = shape
        self._squares = self._expected_squares = self._max = 0.0
        self._wrong = self._total = 0
        self._first = ""

    def add(self, start: int, out: Float32, expected: Float64, allowed: Float64) -> None:
        """Take some rows."""
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(out.astype(np.float64) - expected)
            # Written this way round, so that a NaN is outside every bound.
            bad = ~(error <= allowed)
            self._squares += float(np.sum(error * error))
            largest = float(error.max())
        self._expected_squares += float(np.sum(expected * expected))
        self._max = largest if np.isnan(largest) else max(self._max, largest)
        self._wrong += int(np.count_nonzero(bad))
        self._total += bad.size
        if not self._first and bad.any():
            self._first = self._describe(start, bad, out, expected)

    def result(self, bound: float, unwritten: int) -> Comparison:
        """The comparison over everything that was taken."""
        relative = float(np.sqrt(self._squares / max(self._expected_squares, _SMALLEST_NORMAL)))
        is_inside = relative <= bound
        return Comparison(
            passed=self._wrong == 0 and is_inside,
            rel_error=relative if np.isfinite(relative) else float("inf"),
            max_error=self._max if np.isfinite(self._max) else float("inf"),
            wrong=self._wrong,
            unwritten=unwritten,
            total=self._total,
            detail=self._sentence(relative, bound, unwritten),
        )

    def _sentence(self, relative: float, bound: float, unwritten: int) -> str:
        if not self._wrong:
            word = "within" if relative <= bound else "beyond"
            return f"relative error {relative:.3g} is {word} the bound {bound:.3g}"
        text = f"{self._wrong} of {self._total} elements are wrong; {self._first}"
        return f"{text}; {unwritten} were never written" if unwritten else text

    def _describe(self, start: int, bad: NDArray[np.bool_], out: Float32, expected: Float64) -> str:
        """The first wrong element, at the place where the kernel wrote it."""
        i, j = (int(index) for index in np.unravel_index(int(np.argmax(bad)), bad.shape))
        row = (start + i + self._shift[0]) % self._shape[0]
        column = (j + self._shift[1]) % self._shape[1]
        return f"[{row}, {column}] is {float(out[i, j]):.8g}, must be {float(expected[i, j]):.8g}"
