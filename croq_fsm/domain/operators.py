"""Registry of operators: signature, layouts, work, traffic and error bounds.

An operator is known when croq_fsm can make its inputs, compute a reference for its whole
output and say how much work and traffic a shape means. All tensors are row-major.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from croq_fsm.errors import UsageError

Shape = tuple[int, ...]

#: Bytes of one element, by element type.
ELEMENT_BYTES: Final = {"f8_e4m3": 1, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}

#: Unit round-off of the accumulation type (half the spacing at 1).
UNIT_ROUNDOFF: Final = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}


@dataclass(frozen=True)
class Tensor:
    """One operand.

    Attributes:
        name: Argument name.
        dims: Names of its dimensions, row-major.
        element: Element type, a key of ``ELEMENT_BYTES``.
        is_output: Whether the kernel writes it.
    """

    name: str
    dims: tuple[str, ...]
    element: str
    is_output: bool = False

    def shape(self, sizes: dict[str, int]) -> Shape:
        """Concrete shape for the operator's named sizes."""
        return tuple(sizes[dim] for dim in self.dims)

    def nbytes(self, sizes: dict[str, int]) -> int:
        """Size in bytes."""
        return math.prod(self.shape(sizes)) * ELEMENT_BYTES[self.element]


@dataclass(frozen=True)
class Precision:
    """Meaning of a dtype word for one operator.

    Attributes:
        tensors: Operands in argument order.
        accumulate: Element type of the accumulation.
    """

    tensors: tuple[Tensor, ...]
    accumulate: str

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Operands that the kernel only reads."""
        return tuple(t for t in self.tensors if not t.is_output)

    @property
    def output(self) -> Tensor:
        """The operand that the kernel writes."""
        return next(t for t in self.tensors if t.is_output)


@dataclass(frozen=True)
class Operator:
    """A problem family.

    Attributes:
        name: Also the name of the exported function of a kernel.
        dims: Names of the sizes in a shape, in order.
        precisions: Dtype word → meaning.
        flops: Floating-point operations of one call for named sizes.
        judged_by_time: True for memory-bound operators, whose TFLOPS say little.
        reduction: Name of the dimension that sums run over (error grows with its root).
        safety: Factor of the error bound. Sums of terms of one sign, added in order, drift
            further than a random walk, since the partial sum soon dwarfs what is added.
    """

    name: str
    dims: tuple[str, ...]
    precisions: dict[str, Precision]
    flops: Callable[[dict[str, int]], int]
    judged_by_time: bool
    reduction: str
    safety: float = 4.0

    def precision(self, dtype: str) -> Precision:
        """Meaning of a dtype word; UsageError lists the known ones."""
        if dtype not in self.precisions:
            known = ", ".join(sorted(self.precisions))
            raise UsageError(f"operator {self.name} has no dtype {dtype!r}; known: {known}")
        return self.precisions[dtype]

    def sizes(self, shape: Shape) -> dict[str, int]:
        """Named sizes of a shape."""
        return dict(zip(self.dims, shape, strict=True))

    def nbytes(self, shape: Shape, dtype: str) -> int:
        """Compulsory traffic of one call in bytes: every operand moved once."""
        sizes = self.sizes(shape)
        return sum(t.nbytes(sizes) for t in self.precision(dtype).tensors)

    def flop_count(self, shape: Shape) -> int:
        """Floating-point operations of one call."""
        return self.flops(self.sizes(shape))

    def error_bound(self, shape: Shape, dtype: str) -> float:
        """Largest relative Frobenius error ‖out − ref‖ / ‖ref‖ that an honest kernel shows.

        Random-walk growth of rounding in the accumulation type over the reduction, plus the
        rounding of the output type, times the operator's safety factor.
        """
        precision = self.precision(dtype)
        steps = self.sizes(shape)[self.reduction]
        accumulated = UNIT_ROUNDOFF[precision.accumulate] * math.sqrt(steps)
        output = UNIT_ROUNDOFF.get(precision.output.element, 2.0**-4)
        return self.safety * (accumulated + output)


def _matmul(in_: str, accumulate: str, out: str) -> Precision:
    return Precision(
        tensors=(
            Tensor("lhs", ("m", "k"), in_),
            Tensor("rhs", ("n", "k"), in_),
            Tensor("output", ("m", "n"), out, is_output=True),
        ),
        accumulate=accumulate,
    )


MATMUL: Final = Operator(
    name="matmul",
    dims=("m", "n", "k"),
    precisions={
        # For DSL c: a[m, k] and b[k, n] as a C programmer writes it.
        "f32": Precision(
            tensors=(
                Tensor("a", ("m", "k"), "f32"),
                Tensor("b", ("k", "n"), "f32"),
                Tensor("c", ("m", "n"), "f32", is_output=True),
            ),
            accumulate="f32",
        ),
        # Tensor-core GEMM in the layout of the reference kernels: rhs is [N, K].
        "f16": _matmul("f16", "f32", "f16"),
        "bf16": _matmul("bf16", "f32", "bf16"),
    },
    flops=lambda s: 2 * s["m"] * s["n"] * s["k"],
    judged_by_time=False,
    reduction="k",
)

SOFTMAX: Final = Operator(
    name="softmax",
    dims=("rows", "cols"),
    precisions={
        "f32": Precision(
            tensors=(
                Tensor("x", ("rows", "cols"), "f32"),
                Tensor("y", ("rows", "cols"), "f32", is_output=True),
            ),
            accumulate="f32",
        ),
    },
    # max, subtract, exponential (counted as one), sum, divide
    flops=lambda s: 5 * s["rows"] * s["cols"],
    judged_by_time=True,
    reduction="cols",
    safety=16.0,
)

OPERATORS: Final = {op.name: op for op in (MATMUL, SOFTMAX)}

#: Which (operator, dtype) pairs each DSL can run.
SUPPORTED: Final = {
    "c": {("matmul", "f32"), ("softmax", "f32")},
    "croqtile": {("matmul", "f16"), ("matmul", "bf16")},
    "cuda": {("matmul", "f16"), ("matmul", "bf16")},
}


def operator(name: str) -> Operator:
    """Look an operator up; UsageError lists the known ones."""
    if name not in OPERATORS:
        raise UsageError(f"unknown operator {name!r}; known: {', '.join(sorted(OPERATORS))}")
    return OPERATORS[name]


def operator_of(name: str) -> str | None:
    """Operator named in a kernel's file or folder name, or None."""
    lowered = name.lower()
    return next((op for op in OPERATORS if op in lowered), None)
