"""Numbers that the author of a CUDA kernel made adjustable, and what the device rules out.

A kernel is read by the names that people give to such macros. A limit is checked only when all
numbers that it needs are there; what remains is for ``static_assert`` and the compiler to say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain.operators import ELEMENT_BYTES
from croq_fsm.domain.source import macros
from croq_fsm.ideators.contract import Context
from croq_fsm.toolchain.cuda_structure import STAGE_NAMES, TILE_NAMES

#: Role → names that macros have for it.
_NAMES: Final = {
    **TILE_NAMES,
    "stages": STAGE_NAMES,
    "warps_m": ("WARPS_M", "WARP_ROWS", "WM"),
    "warps_n": ("WARPS_N", "WARP_COLS", "WN"),
    "group": ("GROUP_M", "GROUP", "SWIZZLE_M"),
}
#: Role → values worth trying.
_VALUES: Final = {
    "m": (64, 128, 192, 256),
    "n": (64, 96, 128, 192, 256),
    "k": (16, 32, 64, 128),
    "stages": (2, 3, 4, 5, 6),
    "warps_m": (1, 2, 4),
    "warps_n": (1, 2, 4),
    "group": (1, 2, 4, 8, 16, 32),
}
#: Levers of a tile and of its pipeline, which are turned together.
TILE: Final = ("m", "n", "warps_m", "warps_n")
PIPELINE: Final = ("k", "stages")
BAND: Final = ("group",)

#: Numbers that one idea turns; more of them say little about any of them.
_MOST_TURNED: Final = 3

_FRAGMENT: Final = 16  # rows, columns and depth of what a warp multiplies at a time
_WARP: Final = 32
_MOST_SUMS: Final = 192  # of 255 registers of a thread; the rest holds operands and addresses
_ENOUGH_REUSE: Final = 64.0  # products per loaded element beyond which loads hide


@dataclass(frozen=True)
class Tiling:
    """Adjustable numbers of a kernel.

    Attributes:
        names: Role → macro.
        values: Role → present value.
    """

    names: Mapping[str, str]
    values: Mapping[str, int]

    def changed(self, values: Mapping[str, int]) -> dict[str, str]:
        """Macros to set for other values."""
        return {self.names[r]: str(v) for r, v in values.items() if v != self.values[r]}

    def variants(self, roles: tuple[str, ...]) -> Iterator[dict[str, int]]:
        """Other values of some roles, those that change least first; not yet checked."""
        known = [role for role in roles if role in self.values]
        choices = [(self.values[r], *(v for v in _VALUES[r] if v != self.values[r])) for r in known]
        found = [dict(zip(known, picked, strict=True)) for picked in itertools.product(*choices)]
        found.sort(key=lambda values: len(self.changed(values)))
        for values in found:
            if 0 < len(self.changed(values)) <= _MOST_TURNED:
                yield {**self.values, **values}


def read(source: str) -> Tiling:
    """The adjustable numbers of a source; empty when there are none that are known."""
    numbers = macros(source)
    names = {
        role: name
        for role, aliases in _NAMES.items()
        if (name := next((a for a in aliases if numbers.get(a, "").isdecimal()), ""))
    }
    return Tiling(names, {role: int(numbers[name]) for role, name in names.items()})


def fits(values: Mapping[str, int], context: Context) -> bool:
    """Whether no static limit of the device rules the values out."""
    limits = context.device.limits
    size = ELEMENT_BYTES[context.task.precision.inputs[0].element]
    ok = values.get("stages", 2) >= 2  # noqa: PLR2004 - one is loaded, one is read
    if {"m", "n", "k", "stages"} <= values.keys():
        shared = values["stages"] * (values["m"] + values["n"]) * (values["k"] + 8) * size
        ok = ok and shared <= limits.get("smem_per_block", math.inf)
    if {"m", "n", "warps_m", "warps_n"} <= values.keys():
        ok = ok and _fits_warps(values, limits.get("threads_per_block", math.inf))
    return ok and values.get("k", _FRAGMENT) % _FRAGMENT == 0


def _fits_warps(values: Mapping[str, int], most_threads: float) -> bool:
    threads = values["warps_m"] * values["warps_n"] * _WARP
    whole = not values["m"] % (_FRAGMENT * values["warps_m"])
    whole = whole and not values["n"] % (_FRAGMENT * values["warps_n"])
    return whole and threads <= most_threads and values["m"] * values["n"] // threads <= _MOST_SUMS


def promise(values: Mapping[str, int], context: Context) -> float:
    """Figure of merit of a tile on the task: share of useful work times reuse of loads, 0 to 1."""
    if not {"m", "n"} <= values.keys() or len(context.task.shape) != 3:  # noqa: PLR2004 - m, n, k
        return 1.0
    rows, columns, _ = context.task.shape
    m, n = values["m"], values["n"]
    blocks = math.ceil(rows / m) * math.ceil(columns / n)
    sms = max(1, context.device.limits.get("sms", 1))
    useful = rows * columns / (math.ceil(blocks / sms) * sms * m * n)
    return useful * min(1.0, m * n / (m + n) / _ENOUGH_REUSE)
