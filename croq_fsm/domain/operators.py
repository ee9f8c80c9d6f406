"""Registry of operators, and which of them each DSL can run."""

from __future__ import annotations

from typing import Final

from croq_fsm.domain import device_operators as device
from croq_fsm.domain.operator_model import (
    ELEMENT_BYTES,
    UNIT_ROUNDOFF,
    Operator,
    Precision,
    Shape,
    Tensor,
    Tolerance,
)
from croq_fsm.errors import UsageError

__all__ = [
    "ELEMENT_BYTES",
    "MATMUL",
    "OPERATORS",
    "SOFTMAX",
    "SUPPORTED",
    "UNIT_ROUNDOFF",
    "Operator",
    "Precision",
    "Shape",
    "Tensor",
    "Tolerance",
    "operator",
    "operator_of",
]

#: For DSL c: a[m, k] and b[k, n] as a C programmer writes it.
_C_MATMUL: Final = Precision(
    tensors=(
        Tensor("a", ("m", "k"), "f32"),
        Tensor("b", ("k", "n"), "f32"),
        Tensor("c", ("m", "n"), "f32", is_output=True),
    ),
    accumulate="f32",
)

MATMUL: Final = Operator(
    name="matmul",
    dims=("m", "n", "k"),
    precisions={"f32": _C_MATMUL, **device.MATMUL},
    flops=device.gemm_flops,
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

OPERATORS: Final = {op.name: op for op in (MATMUL, SOFTMAX, device.BLOCKSCALE_GEMM, device.GEMM_SP)}

_DEVICE: Final = {
    (op.name, dtype)
    for op, precisions in (
        (MATMUL, device.MATMUL),
        (device.BLOCKSCALE_GEMM, device.BLOCKSCALE_GEMM.precisions),
        (device.GEMM_SP, device.GEMM_SP.precisions),
    )
    for dtype in precisions
}
#: Which (operator, dtype) pairs each DSL can run.
SUPPORTED: Final = {
    "c": {("matmul", "f32"), ("softmax", "f32")},
    "croqtile": _DEVICE,
    "cuda": _DEVICE,
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
