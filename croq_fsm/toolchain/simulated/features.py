"""What a GEMM kernel is, as the model sees it, and how that is read from ``.co`` text.

Only the text speaks: the macros, tiles, warpgroups and statements that compiler and lints see.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.operators import ELEMENT_BYTES
from croq_fsm.toolchain.croqtile_text import KernelText

Order = Literal["m", "n", "gm", "gn"]
Epilogue = Literal["rows", "panels", "direct"]
Arrivals = Literal["all", "warp", "group"]
Descriptors = Literal["made", "stepped", "stepped32"]

WARPGROUP: Final = 128
_SETREG: Final = re.compile(r"\bsetreg_(dec|inc)\s*\(([^()]*)\)")
_COUNT: Final = re.compile(r"\b(\w+)\s*=\s*cdiv\(\s*([MN])\s*,")
_BAND: Final = re.compile(r"/\s*\(\s*\w+\s*\*\s*(\w+)\s*\)")
_ELECTED: Final = re.compile(
    r"\binthreads(?:\.async)?\s*\([^{]*\bt\s*==\s*0\s*\)\s*\{(?!\s*trigger)"
)
_ARRIVAL: Final = re.compile(r"\binthreads\s*\(\s*t\s*(%\s*32)?\s*==\s*0\s*\)\s*\{\s*trigger\b")
_PANEL_COPY: Final = re.compile(r"\btma\.copy\.swiz<[^;]*?=>\s*(\w+)")
_UNROLL: Final = re.compile(r"\]\s*:\s*unroll\s*\(\s*(\w+)\s*\)")
_UNIFORM_PATCH: Final = "__shfl_sync"
_PROMOTED: Final = "L2_PROMOTION_L2_256B"


@dataclass(frozen=True)
class Features:
    """Everything about a kernel that the model's time depends on.

    Attributes:
        tile_m, tile_n, tile_k: Output tile of a block, and depth of a pipeline step.
        element: Bytes of an operand element.
        output: Bytes of an output element.
        stages: Depth of the ring.
        consumers: Warpgroups that multiply.
        ctas: Blocks of a persistent kernel; 0 for one block per tile.
        registers: Registers of producer and consumers by setmaxnreg, or None.
        cap: Registers per thread that a compiler flag allows; 0 without such a flag.
        order, group: Order of the tiles, and height of its bands.
        elected: Whether one thread produces.
        arrivals: Who gives a stage back.
        uniform: Whether the warpgroup's index is uniform to the compiler.
        descriptors: How operand descriptors are made.
        deep: Whether one WGMMA stays in flight while the next is issued.
        epilogue: How the output leaves.
        staging: Shared memory of the output, bytes.
        passes: Parts in which it leaves.
        event_guard: Whether consumers pass each other at the staging tile.
        cluster: Blocks of a cluster that share an operand; 1 without.
        shared_side: Operand that a cluster shares.
        pingpong: Whether consumers work on different tiles.
        split_k: Parts of K that are summed afterwards.
        kept: Whether L2 is asked to keep an operand.
        promoted: Whether tensor maps fetch 256 bytes into L2.
        unroll: Unrolling of the loop over K.
        accumulate: Bytes of a sum.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    element: int = 2
    output: int = 2
    stages: int = 3
    consumers: int = 2
    ctas: int = 0
    registers: tuple[int, int] | None = None
    cap: int = 0
    order: Order = "m"
    group: int = 0
    elected: bool = True
    arrivals: Arrivals = "all"
    uniform: bool = False
    descriptors: Descriptors = "made"
    deep: bool = False
    epilogue: Epilogue = "rows"
    staging: int = 65536
    passes: int = 1
    event_guard: bool = False
    cluster: int = 1
    shared_side: Literal["m", "n"] = "m"
    pingpong: bool = False
    split_k: int = 1
    kept: bool = False
    promoted: bool = False
    unroll: int = 1
    accumulate: int = 4

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARPGROUP * (self.consumers + 1)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage."""
        return (self.tile_m + self.tile_n) * self.tile_k * self.element

    @property
    def shared_bytes(self) -> int:
        """Shared memory of all tiles."""
        return self.stages * self.stage_bytes + self.staging

    @property
    def sums(self) -> int:
        """Registers of a consumer thread that hold sums."""
        groups = 1 if self.pingpong else self.consumers
        return self.tile_m * self.tile_n * self.accumulate // (4 * WARPGROUP * groups)


@lru_cache(maxsize=128)
def features(candidate: Candidate) -> Features | None:
    """Read a candidate; None for a text that is no GEMM that this model knows."""
    kernel = KernelText(candidate.source)
    operands = _operands(kernel)
    if operands is None:
        return None
    tile_m, tile_n, tile_k, element, stages = operands
    consumers = _consumers(kernel)
    order, group = _order(kernel)
    epilogue, staging, passes, output = _output(kernel, element)
    generated = "".join(patch.replace for patch in candidate.patches)
    return Features(
        tile_m=tile_m,
        tile_n=tile_n,
        tile_k=tile_k,
        element=element,
        output=output,
        stages=stages,
        consumers=consumers,
        ctas=_ctas(kernel),
        registers=_registers(kernel),
        cap=_cap(candidate.flags),
        order=order,
        group=group,
        elected=bool(_ELECTED.search(kernel.text)),
        arrivals=_arrivals(kernel),
        uniform="warp_uniform" in kernel.text or _UNIFORM_PATCH in generated,
        epilogue=epilogue,
        staging=staging,
        passes=passes,
        event_guard=bool(re.search(r"\bevent\s+drained\b", kernel.text)),
        kept=".evict_last" in kernel.text,
        promoted=_PROMOTED in generated,
        unroll=_unroll(kernel),
        accumulate=2 if "f16" in kernel.accumulators.values() else 4,
    )


def _operands(kernel: KernelText) -> tuple[int, int, int, int, int] | None:
    """Tile sizes, operand bytes and stages, from the first multiplication that can be read."""
    for mma in kernel.mmas:
        found = [re.match(r"\w+", operand) for operand in mma.operands[:2]]
        tiles = [kernel.tiles.get(m[0]) for m in found if m]
        if len(tiles) != 2 or None in tiles:  # noqa: PLR2004 - A and B
            continue
        lhs, rhs = tiles[0], tiles[1]
        if lhs is None or rhs is None or len(lhs.dims) != 2 or len(rhs.dims) != 2:  # noqa: PLR2004
            continue
        numbers = (lhs.dims[0], rhs.dims[0], lhs.dims[1], lhs.count)
        if None not in numbers:
            rows, cols, depth, count = (n or 1 for n in numbers)
            return rows, cols, depth, int(ELEMENT_BYTES.get(lhs.element, 2)), count
    return None


def _consumers(kernel: KernelText) -> int:
    if kernel.consumer_ids:
        return len(kernel.consumer_ids)
    return max(1, kernel.warpgroups[1] - 1) if kernel.warpgroups else 1


def _ctas(kernel: KernelText) -> int:
    grid = kernel.block_grid
    return (kernel.value(grid[1]) or 0) if grid else 0


def _registers(kernel: KernelText) -> tuple[int, int] | None:
    found = {kind: kernel.value(text) for kind, text in _SETREG.findall(kernel.text)}
    low, high = found.get("dec"), found.get("inc")
    return (low, high) if low and high else None


def _cap(flags: tuple[str, ...]) -> int:
    caps = [int(m[1]) for flag in flags if (m := re.search(r"maxrregcount=(\d+)", flag))]
    return min(caps, default=0)


def _order(kernel: KernelText) -> tuple[Order, int]:
    grid = kernel.block_grid
    if grid and "," in grid[0]:
        first = grid[1].strip("[] ").split(",")[0]
        return ("m", 0) if re.search(r"\bM\b", first) else ("n", 0)
    names: dict[str, str] = dict(_COUNT.findall(kernel.text))
    band = _BAND.search(kernel.text)
    if band and band[1] in names:
        height = next((v for n in ("GROUP", "BAND") if (v := kernel.value(n))), 8)
        return ("gm" if names[band[1]] == "N" else "gn"), height
    turned = re.search(r"=\s*tile\s*%\s*(\w+)", kernel.text)
    return ("n" if turned and names.get(turned[1]) == "N" else "m"), 0


def _arrivals(kernel: KernelText) -> Arrivals:
    match = _ARRIVAL.search(kernel.text)
    if match is None:
        return "all"
    return "warp" if match[1] else "group"


def _output(kernel: KernelText, element: int) -> tuple[Epilogue, int, int, int]:
    """How the output leaves: kind, staging bytes, passes, bytes of an element."""
    tile = kernel.tiles.get("out_s")
    width = int(ELEMENT_BYTES.get(tile.element, element)) if tile else element
    staging = (tile.nbytes or 0) if tile else 0
    panels = any(m[1] not in kernel.tiles for m in _PANEL_COPY.finditer(kernel.text))
    if panels:
        passes = len(re.findall(r"\btma\.copy\S*\s+out_s\b", kernel.text))
        return "panels", staging, max(1, passes), width
    if kernel.output_copy is None and tile is None and "span_as" not in kernel.text:
        return "direct", 0, 1, width
    return "rows", staging, 1, width


def _unroll(kernel: KernelText) -> int:
    match = _UNROLL.search(kernel.text)
    return (kernel.value(match[1]) or 1) if match else 1
