"""One GEMM kernel of our ``.co`` family as a value: what is chosen, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, Literal

#: Rows of one WGMMA; threads of a warpgroup; bytes of an f16 or bf16 element.
WGMMA_M: Final = 64
WARPGROUP: Final = 128
ELEMENT: Final = 2

#: Registers that a consumer thread needs besides its accumulators, as ptxas allots them.
OVERHEAD_REGISTERS: Final = 26

#: Columns of one swizzled output panel: rows of 128 bytes, or of 64 for narrower widths.
_WIDE_PANEL, _NARROW_PANEL = 64, 32

#: 16-byte pieces in the 128 bytes that all banks of shared memory serve at once.
_PIECES: Final = 8

Order = Literal["m", "n", "gm", "gn"]
Release = Literal["thread", "warp", "group"]
Staging = Literal["tile", "stage"]
Layout = Literal["rows", "panels"]
Guard = Literal["event", "barrier"]
Keep = Literal["none", "lhs", "rhs"]


@dataclass(frozen=True)
class Shape:
    """Sizes of the problem: output[m, n] = lhs[m, k] . rhs[n, k]^T."""

    m: int
    n: int
    k: int

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Shape:
        """From the task's named sizes."""
        return cls(sizes["m"], sizes["n"], sizes["k"])


@dataclass(frozen=True)
class Gemm:
    """Everything that is chosen about a kernel of the family.

    Attributes:
        tile_m, tile_n, tile_k: Output tile of a thread block, and depth of one pipeline step.
        stages: Depth of the ring of operand tiles.
        consumers: Warpgroups that multiply; one more loads.
        ctas: Thread blocks of a persistent kernel; 0 means one block per tile.
        registers: Registers per thread of producer and consumers (setmaxnreg), or None.
        order: Which tiles follow each other: M fastest, N fastest, or bands of ``group`` tiles
            of M (``gm``) or N (``gn``) that are walked along the other dimension.
        group: Tiles in a band; 0 without bands.
        elected: Whether one thread produces, instead of a whole warpgroup.
        release: Who gives a stage back: every thread, one per warp, or one per warpgroup.
        uniform: Whether the warpgroup's index is made uniform in the compiler's eyes.
        staging: Where the output is staged: a tile of its own, or dead stages of the ring.
        layout: Plain rows (``mma.store``), or panels swizzled as the copy engine expects.
        turns: Parts in which the output passes through the staging tile.
        guard: What keeps a staging tile from being written before it was copied out.
        keep: Operand that the L2 cache is asked to keep.
        unroll: Unrolling of the consumers' loop over K; 1 leaves it to the compiler.
        element: Element type of operands and output; accumulation is always f32.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    stages: int = 3
    consumers: int = 2
    ctas: int = 0
    registers: tuple[int, int] | None = None
    order: Order = "m"
    group: int = 0
    elected: bool = True
    release: Release = "thread"
    uniform: bool = False
    staging: Staging = "tile"
    layout: Layout = "rows"
    turns: int = 1
    guard: Guard = "barrier"
    keep: Keep = "none"
    unroll: int = 1
    element: str = "f16"

    @property
    def rows(self) -> int:
        """Accumulators of a consumer, 64 rows each."""
        return self.tile_m // (WGMMA_M * self.consumers)

    @property
    def parts(self) -> int:
        """Blocks of 64 rows in the tile."""
        return self.tile_m // WGMMA_M

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return WARPGROUP * (self.consumers + 1)

    @property
    def accumulator_registers(self) -> int:
        """Registers of a consumer thread that hold sums."""
        return self.tile_m * self.tile_n // (WARPGROUP * self.consumers)

    @property
    def panel(self) -> int:
        """Columns of a swizzled panel."""
        return _NARROW_PANEL if self.tile_n % _WIDE_PANEL else _WIDE_PANEL

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one pipeline stage."""
        return (self.tile_m + self.tile_n) * self.tile_k * ELEMENT

    @property
    def staging_bytes(self) -> int:
        """Shared memory of the output's own staging tile."""
        if self.staging == "stage":
            return 0
        return self.tile_m * self.tile_n * ELEMENT // self.turns

    @property
    def shared_bytes(self) -> int:
        """Shared memory of all tiles."""
        return self.stages * self.stage_bytes + self.staging_bytes

    @property
    def conflict_ways(self) -> int:
        """How many rows of an 8x8 matrix meet in one bank when the output is staged; 1 is best."""
        if self.layout == "panels":
            return 1
        return math.gcd(self.tile_n * ELEMENT // 16, _PIECES)

    @property
    def guarded(self) -> bool:
        """Whether the staging tile is written more than once."""
        return self.ctas > 0 or self.turns > 1

    def steps(self, shape: Shape) -> int:
        """Pipeline steps of one tile."""
        return -(-shape.k // self.tile_k)

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """Number of tiles along M and N."""
        return -(-shape.m // self.tile_m), -(-shape.n // self.tile_n)

    @property
    def name(self) -> str:
        """Short description for tags, for example ``128x200_s4_p``."""
        return (
            f"{self.tile_m}x{self.tile_n}_s{self.stages}"
            f"{'_p' if self.ctas else ''}{'_w' if self.layout == 'panels' else ''}"
        )


#: Names of all choices, in the order of the class.
FIELDS: Final = tuple(field.name for field in fields(Gemm))


def entry_registers(threads: int) -> int:
    """Registers that each thread of a block starts with when the block has an SM to itself."""
    return min(255, 65536 // threads // 8 * 8)


def register_pair(consumers: int) -> tuple[int, int] | None:
    """The usual trade between producer and consumers; None when there is nothing to win."""
    if consumers == 1:
        return None
    low = 40 if consumers == 2 else 32  # noqa: PLR2004 - two consumers leave more to spare
    total = entry_registers(WARPGROUP * (consumers + 1)) * (consumers + 1)
    return low, (total - low) // consumers // 8 * 8


def canonical(config: Gemm) -> Gemm:
    """The same kernel with every choice that has no effect at its plain value."""
    plain: dict[str, object] = {}
    if config.consumers == 1:
        plain["uniform"] = False
    if not config.guarded:
        plain["guard"] = "barrier"
    if config.order in ("m", "n"):
        plain["group"] = 0
    return replace(config, **plain) if plain else config  # type: ignore[arg-type]


def changed(old: Gemm, new: Gemm) -> tuple[str, ...]:
    """Names of the choices that differ."""
    return tuple(name for name in FIELDS if getattr(old, name) != getattr(new, name))
