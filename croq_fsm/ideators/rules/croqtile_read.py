"""Reading a ``.co`` GEMM back: our own kernels exactly, hand-written ones of the same form nearly.

What a text does not show keeps the family's default; ``exact`` says whether rendering the
configuration gives the same structure again, so nothing is claimed of a text that was guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from croq_fsm.domain.source import structure_hash
from croq_fsm.ideators.rules.croqtile_config import (
    WGMMA_M,
    Gemm,
    Keep,
    Layout,
    Order,
    Release,
    canonical,
)
from croq_fsm.ideators.rules.croqtile_render import macros_of, render
from croq_fsm.toolchain.croqtile_text import KernelText

#: Choices that macros hold → the names under which hand-written kernels keep them.
ALIASES: Final = {
    "tile_m": ("TILE_M", "BLOCK_M", "BM", "MATMUL_TILE_M"),
    "tile_n": ("TILE_N", "BLOCK_N", "BN", "MATMUL_TILE_N", "MATMUL_WARP_N"),
    "tile_k": ("TILE_K", "BLOCK_K", "BK", "MATMUL_TILE_K"),
    "stages": ("STAGES", "NUM_STAGES", "MATMUL_STAGES"),
    "ctas": ("NUM_SMS", "NUM_PERSISTENT_CTAS", "NUM_CTAS"),
    "group": ("GROUP", "GROUP_M", "GROUP_N", "BAND"),
}
_ELEMENT: Final = re.compile(r"\bglobal\s+(f16|bf16)\s*\[")
_ENTRY: Final = re.compile(r"__co__\s+void\s+matmul\s*\(")
_SETREG: Final = re.compile(r"\bsetreg_(dec|inc)\s*\(([^()]*)\)")
_UNROLL: Final = re.compile(r"\]\s*:\s*unroll\s*\(\s*(\w+)\s*\)")
_KEPT: Final = re.compile(r"\.evict_last\S*\s+(\w+)")
_RELEASED: Final = re.compile(r"\binthreads\s*\(\s*t\s*(%\s*32)?\s*==\s*0\s*\)\s*\{\s*trigger\b")
_ELECTED: Final = re.compile(
    r"\binthreads(?:\.async)?\s*\([^{]*\bt\s*==\s*0\s*\)\s*\{(?!\s*trigger)"
)
_OUTPUT_TURNS: Final = re.compile(r"\btma\.copy\S*\s+out_s\b")
_COUNT: Final = re.compile(r"\b(\w+)\s*=\s*cdiv\(\s*([MN])\s*,")
_NUMBER: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class Reading:
    """What a source says about itself.

    Attributes:
        config: The nearest member of the family.
        exact: Whether the source is that member, apart from comments.
        macros: Choice → name of the macro that holds it in this source.
        direct: Whether the output goes from registers straight to global memory.
    """

    config: Gemm
    exact: bool
    macros: dict[str, str] = field(default_factory=dict)
    direct: bool = False


def read(source: str) -> Reading | None:
    """Read a kernel; None for a text that is no GEMM of this form."""
    kernel = KernelText(source)
    if not _ENTRY.search(kernel.text) or not kernel.mmas:
        return None
    named = _named(kernel)
    if not {"tile_m", "tile_n", "stages"} <= named.keys():
        return None
    config = _config(kernel, {choice: _value(kernel, name) for choice, name in named.items()})
    if config.rows < 1 or config.parts != config.rows * config.consumers:
        return None
    exact = _is_exactly(config, source)
    return Reading(config, exact, named, direct=kernel.output_copy is None)


def _is_exactly(config: Gemm, source: str) -> bool:
    written = render(config)
    if structure_hash(written) != structure_hash(source):
        return False
    found = KernelText(source)
    return all(found.value(name) == value for name, value in macros_of(config).items())


def _named(kernel: KernelText) -> dict[str, str]:
    """Choice → macro of this source that holds a number and is used."""
    named: dict[str, str] = {}
    for choice, names in ALIASES.items():
        for name in names:
            if name in kernel.macros and kernel.value(name) is not None:
                named.setdefault(choice, name)
    return named


def _value(kernel: KernelText, text: str) -> int:
    return kernel.value(text) or 0


def _config(kernel: KernelText, numbers: dict[str, int]) -> Gemm:
    element = _ELEMENT.search(kernel.text)
    layout = _layout(kernel)
    config = Gemm(
        tile_m=numbers["tile_m"],
        tile_n=numbers["tile_n"],
        tile_k=numbers.get("tile_k", 64),
        stages=numbers["stages"],
        consumers=_consumers(kernel, numbers["tile_m"]),
        ctas=_ctas(kernel),
        registers=_registers(kernel),
        order=_order(kernel),
        group=numbers.get("group", 0),
        elected=bool(_ELECTED.search(kernel.text)),
        release=_release(kernel),
        uniform="warp_uniform" in kernel.text,
        staging="tile" if "out_s" in kernel.tiles or kernel.output_copy is None else "stage",
        layout=layout,
        turns=max(1, len(_OUTPUT_TURNS.findall(kernel.text))) if layout == "panels" else 1,
        guard="event" if re.search(r"\bevent\s+drained\b", kernel.text) else "barrier",
        keep=_keep(kernel),
        unroll=_unroll(kernel),
        element=element[1] if element else "f16",
    )
    return canonical(config)


def _consumers(kernel: KernelText, tile_m: int) -> int:
    if kernel.consumer_ids:
        return len(kernel.consumer_ids)
    groups = kernel.warpgroups[1] if kernel.warpgroups else tile_m // WGMMA_M + 1
    return max(1, groups - 1)


def _ctas(kernel: KernelText) -> int:
    grid = kernel.block_grid
    return (kernel.value(grid[1]) or 0) if grid else 0


def _registers(kernel: KernelText) -> tuple[int, int] | None:
    found = {kind: kernel.value(text) for kind, text in _SETREG.findall(kernel.text)}
    low, high = found.get("dec"), found.get("inc")
    return (low, high) if low and high else None


def _layout(kernel: KernelText) -> Layout:
    return (
        "panels" if re.search(r"\btma\.copy\.swiz<", kernel.text) and _swizzled(kernel) else "rows"
    )


def _swizzled(kernel: KernelText) -> bool:
    """Whether a swizzled copy goes out, and not in (older texts load with ``tma.copy`` too)."""
    copies = re.findall(r"\btma\.copy(\S*)[^;]*?=>\s*(\w+)", kernel.text)
    return any(".swiz<" in how and to not in kernel.tiles for how, to in copies)


def _order(kernel: KernelText) -> Order:
    grid = kernel.block_grid
    if grid and "," in grid[0]:
        first = grid[1].strip("[] ").split(",")[0]
        return "m" if re.search(r"\bM\b", first) else "n"
    names = {name: dim.lower() for name, dim in _COUNT.findall(kernel.text)}
    banded = re.search(r"/\s*\(\s*\w+\s*\*\s*(\w+)\s*\)", kernel.text)
    if banded and banded[1] in names:
        return "gm" if names[banded[1]] == "n" else "gn"
    turned = re.search(r"=\s*tile\s*%\s*(\w+)", kernel.text)
    return "n" if turned and names.get(turned[1]) == "n" else "m"


def _release(kernel: KernelText) -> Release:
    match = _RELEASED.search(kernel.text)
    if match is None:
        return "thread"
    return "warp" if match[1] else "group"


def _keep(kernel: KernelText) -> Keep:
    match = _KEPT.search(kernel.text)
    if match and match[1] == "lhs":
        return "lhs"
    return "rhs" if match and match[1] == "rhs" else "none"


def _unroll(kernel: KernelText) -> int:
    match = _UNROLL.search(kernel.text)
    return (kernel.value(match[1]) or 1) if match else 1
