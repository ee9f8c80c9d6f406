"""Settings of Choreo kernels outside of the GEMM family that rules can render.

8-bit, block-scaled, sparse and mixed-type kernels are changed by their own macros: consumers,
tile width, depth of the ring, and the order of the tiles. What does not fit is told by the
lints, so only settings that hold are proposed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain.ideas import Proposal, WholeSource
from croq_fsm.domain.names import clean_tag
from croq_fsm.domain.shapes import ceil_div
from croq_fsm.domain.source import macros, set_macros
from croq_fsm.domain.states import Category
from croq_fsm.domain.task import Task
from croq_fsm.errors import EditError
from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules.evidence import quote

#: What ``croqtile_config.Gemm`` describes; everything else is changed by settings.
FAMILY: Final = frozenset({("matmul", "f16"), ("matmul", "bf16")})

_WGMMA_M: Final = 64
_WIDTHS: Final = (64, 96, 128, 160, 192, 224, 256)
_CONSUMERS: Final = (1, 2, 3)
_DEPTHS: Final = range(8, 1, -1)
#: Operands that are read row by row without the copy engine, which would cut rows off.
_WHOLE_TILES: Final = frozenset({"blockscale_gemm", "gemm_sp"})
#: A scale of rhs belongs to a block as wide as this: the tile cannot be another.
_FIXED_WIDTH: Final = frozenset({"blockscale_gemm"})
_ORDER: Final = re.compile(r"\{block_m, block_n\} by \[(cdiv\([^()]*\)), (cdiv\([^()]*\))\]")
_WANTED: Final = (
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "launch__waves_per_multiprocessor",
)


@dataclass(frozen=True)
class Setting:
    """One choice of macros.

    Attributes:
        consumers: Consumer warpgroups; the tile has 64 rows for each.
        width: Columns of a tile.
        depth: Slots of the ring.
    """

    consumers: int
    width: int
    depth: int

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return _WGMMA_M * self.consumers


def settings(context: Context) -> Iterator[Proposal]:
    """Tiles that fill the device best first, each in both orders of tiles, at full depth."""
    source = context.base.candidate.source
    names = _names(source)
    if names is None:
        return
    for other_order in (False, True):
        for setting in _ranked(context, names):
            text = _with(source, names, setting, other_order=other_order)
            if text is not None and text != source:
                yield _proposal(context, setting, text, other_order=other_order)


def _names(source: str) -> dict[str, str] | None:
    """Macro of each choice, or None when the kernel has another form."""
    found = macros(source)
    prefix = "SPMM_" if "SPMM_TILE_M" in found else ""
    names = {
        "consumers": "CONSUMERS",
        "height": f"{prefix}TILE_M",
        "width": f"{prefix}TILE_N",
        "depth": f"{prefix}STAGES",
    }
    return names if all(name in found for name in names.values()) else None


def _ranked(context: Context, names: dict[str, str]) -> list[Setting]:
    """The deepest ring that fits for each tile; the best filled device first."""
    found = []
    for consumers in _CONSUMERS:
        for width in _widths(context, names):
            deepest = next(
                filter(None, (_fits(context, names, consumers, width, d) for d in _DEPTHS)), None
            )
            if deepest is not None:
                found.append(deepest)
    return sorted(found, key=lambda s: -_promise(context.task, context.device.limits, s))


def _widths(context: Context, names: dict[str, str]) -> tuple[int, ...]:
    present = macros(context.base.candidate.source)[names["width"]]
    if context.task.operator not in _FIXED_WIDTH:
        return _WIDTHS
    return (int(present),) if present.isdigit() else ()


def _fits(
    context: Context, names: dict[str, str], consumers: int, width: int, depth: int
) -> Setting | None:
    setting = Setting(consumers, width, depth)
    base, task = context.base.candidate, context.task
    if task.operator in _WHOLE_TILES and task.sizes["m"] % setting.height:
        return None
    text = _with(base.source, names, setting, other_order=False)
    if text is None or context.lint(base.model_copy(update={"source": text})):
        return None
    return setting


def _with(source: str, names: dict[str, str], setting: Setting, *, other_order: bool) -> str | None:
    values = {name: str(getattr(setting, choice)) for choice, name in names.items()}
    try:
        text = set_macros(source, values)
    except EditError:
        return None
    if not other_order:
        return text
    turned, count = _ORDER.subn(r"{block_n, block_m} by [\2, \1]", text)
    return turned if count == 1 else None


def _promise(task: Task, limits: dict[str, int], setting: Setting) -> float:
    """Share of the device's tensor cores that whole waves of tiles keep busy, less the traffic.

    A tile loads height + width for height x width products.
    """
    sms = limits.get("sms", 1)
    m, n = task.sizes["m"], task.sizes["n"]
    tiles = ceil_div(m, setting.height) * ceil_div(n, setting.width)
    rounds = ceil_div(tiles, sms)
    filled = m * n / (rounds * sms * setting.height * setting.width)
    traffic = (setting.height + setting.width) / (setting.height * setting.width)
    return filled / (1.0 + _WGMMA_M * traffic)


def _proposal(context: Context, setting: Setting, text: str, *, other_order: bool) -> Proposal:
    base = context.base
    evidence, metrics = quote(context.profile, _WANTED)
    order = "N" if other_order else "M"
    tile = f"{setting.height}x{setting.width}"
    return Proposal(
        tag=clean_tag(f"tile{tile}_s{setting.depth}_{order.lower()}"),
        base=base.iteration,
        edit=WholeSource(source=text),
        flags=base.candidate.flags,
        patches=base.candidate.patches,
        summary=f"Tiles of {tile} on {setting.consumers} consumers, a ring of {setting.depth} "
        f"slots, {order} fastest",
        hypothesis=f"{evidence}: whole waves of {tile} tiles keep more of the tensor cores busy, "
        "and as deep a ring as fits hides the loads",
        metrics=metrics,
        category=Category.MEMORY if other_order else Category.TILING,
        expected_gain=0.01,
        levers=("tile", "stages", "order"),
    )
