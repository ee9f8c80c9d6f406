"""Problem shapes: ``4096x8192x4096`` as a tuple of positive integers."""

from __future__ import annotations

import math
import re
from typing import Final

from croq_fsm.errors import UsageError

_SHAPE: Final = re.compile(r"[0-9]+(x[0-9]+)*")
_MAX_DIM: Final = 1 << 31


def parse_shape(text: str, dims: tuple[str, ...]) -> tuple[int, ...]:
    """Read a shape such as ``4096x8192x4096``.

    Args:
        text: Sizes joined by ``x``.
        dims: Names of the dimensions that the operator wants, in order.

    Raises:
        UsageError: Wrong syntax, wrong number of sizes, or a size of zero or above 2^31.
    """
    wanted = "x".join(name.upper() for name in dims)
    if not _SHAPE.fullmatch(text):
        raise UsageError(f"shape {text!r} is not of the form {wanted} (for example 512x512x512)")
    sizes = tuple(int(part) for part in text.split("x"))
    if len(sizes) != len(dims):
        raise UsageError(f"shape {text!r} has {len(sizes)} sizes; this operator wants {wanted}")
    if any(not 0 < size < _MAX_DIM for size in sizes):
        raise UsageError(f"shape {text!r}: each size must be between 1 and {_MAX_DIM - 1}")
    return sizes


def format_shape(shape: tuple[int, ...]) -> str:
    """``(4096, 8192, 4096)`` → ``4096x8192x4096``."""
    return "x".join(str(size) for size in shape)


def ceil_div(a: int, b: int) -> int:
    """Smallest integer not below a / b."""
    return math.ceil(a / b) if a < 1 << 52 else -(-a // b)
