"""What an operator is: signature, layouts, work, traffic and error bounds.

An operator is known when croq_fsm can make its inputs, compute a reference for its whole
output and say how much work and traffic a shape means. All tensors are row-major.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from croq_fsm.domain.dtypes import parse_dtype
from croq_fsm.errors import UsageError

Shape = tuple[int, ...]

#: Bytes of one element, by element type.
ELEMENT_BYTES: Final = {"f8_e4m3": 1, "u8": 1, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}

#: Unit round-off of the accumulation type (half the spacing at 1).
UNIT_ROUNDOFF: Final = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}


@dataclass(frozen=True)
class Tensor:
    """One operand.

    Attributes:
        name: Argument name.
        dims: Names of its dimensions, row-major; ``k/128`` is a size divided and rounded up.
        element: Element type, a key of ``ELEMENT_BYTES``.
        is_output: Whether the kernel writes it.
    """

    name: str
    dims: tuple[str, ...]
    element: str
    is_output: bool = False

    def shape(self, sizes: dict[str, int]) -> Shape:
        """Concrete shape for the operator's named sizes."""
        return tuple(_extent(dim, sizes) for dim in self.dims)

    def nbytes(self, sizes: dict[str, int]) -> int:
        """Size in bytes."""
        return math.prod(self.shape(sizes)) * ELEMENT_BYTES[self.element]


@dataclass(frozen=True)
class Tolerance:
    """An element-wise tolerance: |out - ref| may be ``absolute + relative * |ref|``."""

    absolute: float
    relative: float


@dataclass(frozen=True)
class Precision:
    """Meaning of a dtype word for one operator.

    Attributes:
        tensors: Operands in argument order.
        accumulate: Element type of the accumulation.
        multiples: Size name → what it must be a multiple of.
        roundoff: Unit round-off of the sums where the hardware's differs from the type's.
        depth: Terms that are added for one rounding.
        span: Sums longer than this are carried on in f32; 0 means that they are not.
        density: Share of the reduction that has terms; 0.5 for 2:4 sparse operands.
        magnitude: Typical size of one term, for the inputs that croq_fsm makes.
        tolerance: Element-wise tolerance beside the bound of the whole output, or None.
        library: What iter000 is; "" where the DSL's own library stands for it.
    """

    tensors: tuple[Tensor, ...]
    accumulate: str
    multiples: dict[str, int] = field(default_factory=dict)
    roundoff: float = 0.0
    depth: int = 1
    span: int = 0
    density: float = 1.0
    magnitude: float = 1.0
    tolerance: Tolerance | None = None
    library: str = ""

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

    def dtype(self, word: str) -> str:
        """Canonical form of a dtype word; UsageError lists the known ones."""
        types = parse_dtype(word)
        found = word if word in self.precisions or types is None else types.word
        if found not in self.precisions:
            known = ", ".join(sorted(self.precisions))
            raise UsageError(
                f"operator {self.name} has no dtype {word!r}; known: {known} "
                "(input, output if it is another type, accumulation if it is not f32)"
            )
        return found

    def precision(self, dtype: str) -> Precision:
        """Meaning of a dtype word; UsageError lists the known ones."""
        return self.precisions[self.dtype(dtype)]

    def check_shape(self, shape: Shape, dtype: str) -> None:
        """Raises UsageError for a size that this operator cannot have."""
        sizes = self.sizes(shape)
        for name, step in self.precision(dtype).multiples.items():
            if sizes[name] % step:
                raise UsageError(
                    f"{self.name} {self.dtype(dtype)}: size {name} = {sizes[name]} must be a "
                    f"multiple of {step}"
                )

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
        return self.safety * self.honest_error(shape, dtype)

    def honest_error(self, shape: Shape, dtype: str) -> float:
        """The bound without its safety factor: what a good kernel's error is about."""
        precision = self.precision(dtype)
        terms = self.sizes(shape)[self.reduction] * precision.density
        chained = min(terms, precision.span or terms) / precision.depth
        roundoff = precision.roundoff or UNIT_ROUNDOFF[precision.accumulate]
        output = UNIT_ROUNDOFF.get(precision.output.element, 2.0**-4)
        return roundoff * math.sqrt(max(chained, 1.0)) + output

    def typical(self, shape: Shape, dtype: str) -> float:
        """Typical size of an output element on zero-mean inputs of croq_fsm's making."""
        precision = self.precision(dtype)
        terms = self.sizes(shape)[self.reduction] * precision.density
        return precision.magnitude * math.sqrt(terms)


def _extent(dim: str, sizes: dict[str, int]) -> int:
    name, _, divisor = dim.partition("/")
    return -(-sizes[name] // int(divisor or 1))
