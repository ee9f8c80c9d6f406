"""The family of C matmul kernels that we can write, as typed configurations.

Two styles: ``Loops`` leaves the vectors to the compiler, ``Tiles`` keeps a tile of the result
in vector registers. What is feasible follows from the static limits; what is promising, from
a small cost model in cycles that only ever ranks candidates and is never reported.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from croq_fsm.domain.model import Value
from croq_fsm.domain.shapes import ceil_div
from croq_fsm.ideators.rules.c_family import Member
from croq_fsm.ideators.rules.c_target import Target

FLOAT_BYTES: Final = 4

#: Largest register tile that the text unrolls completely.
MOST_ROWS, MOST_VECTORS = 32, 8

#: Largest packed block; it is a static buffer. Bytes.
_MOST_STATIC: Final = 64 << 20

Size = Annotated[int, Field(ge=1)]


class Shape(Value):
    """Sizes of c[m, n] = a[m, k] · b[k, n]."""

    m: Size
    n: Size
    k: Size


class Loops(Member):
    """Plain loops in the order i, p, j.

    Attributes:
        restrict: Promise that the operands do not overlap.
        fuse: Rows of b that one pass over a row of c adds up.
        blocked: Whether k and n are cut into blocks of ``kc`` and ``nc``.
    """

    MACROS: ClassVar[dict[str, str]] = {"KC": "kc", "NC": "nc"}

    style: Literal["loops"] = "loops"
    restrict: bool = False
    fuse: Literal[1, 2, 4, 8] = 1
    blocked: bool = False
    kc: Size = 64
    nc: Size = 256


class Tiles(Member):
    """Register tiles of ``mr`` rows by ``nv`` vectors, summed over slices of k.

    Attributes:
        vector: Bytes of a vector.
        mr: Rows of a register tile.
        nv: Vectors per row of a register tile.
        kc: Depth of a slice of k.
        mc: Rows of a block of a (when blocked).
        nc: Columns of a block of b (when blocked).
        ahead: Steps of k that a prefetch of b runs ahead.
        blocked: Whether a and b are cut into cache blocks.
        order: Nest of the block loops: columns, k, rows (``jpi``) or rows, k, columns.
        sweep: Which of the two loops over register tiles is the inner one.
        pack_a: Whether blocks of a are copied into tile order.
        pack_b: Whether panels of b are copied into contiguous memory.
        unroll: Steps of k per turn of the inner loop.
        prefetch: What is prefetched by hand: the tile of c, the panel of b, both, nothing.
    """

    MACROS: ClassVar[dict[str, str]] = {
        "VECTOR_BYTES": "vector",
        "MR": "mr",
        "NV": "nv",
        "KC": "kc",
        "MC": "mc",
        "NC": "nc",
        "AHEAD": "ahead",
    }

    style: Literal["tiles"] = "tiles"
    vector: Literal[16, 32, 64] = 16
    mr: Annotated[int, Field(ge=1, le=MOST_ROWS)] = 4
    nv: Annotated[int, Field(ge=1, le=MOST_VECTORS)] = 2
    kc: Size = 128
    mc: Size = 96
    nc: Size = 512
    ahead: Size = 8
    blocked: bool = False
    order: Literal["jpi", "ipj"] = "jpi"
    sweep: Literal["i", "j"] = "i"
    pack_a: bool = False
    pack_b: bool = False
    unroll: Literal[1, 2, 4, 8] = 1
    prefetch: Literal["none", "c", "b", "bc"] = "none"

    @property
    def lanes(self) -> int:
        """Numbers in a vector."""
        return self.vector // FLOAT_BYTES

    @property
    def nr(self) -> int:
        """Columns of a register tile."""
        return self.nv * self.lanes

    @property
    def registers(self) -> int:
        """Vector registers that the inner loop needs: the tile, a row of b, one of a."""
        return self.mr * self.nv + self.nv + 1

    @property
    def panel_bytes(self) -> int:
        """A panel of b, which should stay in the first-level cache."""
        return self.kc * self.nr * FLOAT_BYTES

    @property
    def a_block_bytes(self) -> int:
        """A block of a, which should stay in the second-level cache."""
        return self.kc * self.mc * FLOAT_BYTES

    @property
    def b_block_bytes(self) -> int:
        """A block of b, which should stay in the last-level cache."""
        return self.kc * self.nc * FLOAT_BYTES


Config = Loops | Tiles

#: Fields of Tiles that mean something only in a blocked kernel.
_BLOCK_FIELDS: Final = ("order", "sweep", "pack_a", "mc", "nc")


def canonical(config: Tiles) -> Tiles:
    """The configuration with fields that have no effect put back to their defaults."""
    idle = () if config.blocked else _BLOCK_FIELDS
    if "b" not in config.prefetch:
        idle = (*idle, "ahead")
    return config.model_copy(update={name: Tiles.model_fields[name].default for name in idle})


def round_up(value: int, unit: int) -> int:
    """The smallest multiple of ``unit`` that is not below ``value``."""
    return ceil_div(value, unit) * unit


def balanced(size: int, most: int, unit: int) -> int:
    """Block size of at most about ``most`` that cuts ``size`` into equal parts."""
    parts = max(1, ceil_div(size, max(most, unit)))
    return round_up(ceil_div(size, parts), unit)


def is_feasible(config: Tiles, target: Target) -> bool:
    """Whether tile, panel and blocks fit the registers and caches they are meant for."""
    if config.vector > target.vector_bytes or config.registers > target.registers:
        return False
    if config.panel_bytes > target.l1d:
        return False
    if not config.blocked:
        return not config.pack_a
    fits_l2 = config.a_block_bytes <= target.l2
    return fits_l2 and config.b_block_bytes <= room_for_b(target)


def room_for_b(target: Target) -> int:
    """Bytes that a block of b may take: the last-level cache, within reason for a buffer."""
    return min(target.l3, _MOST_STATIC)


#: Rough costs in cycles; they only rank configurations against each other.
_FMA_PORTS, _LOAD_PORTS, _FMA_LATENCY = 2, 2, 4
_TILE_OVERHEAD: Final = 12.0
_PER_C_VECTOR: Final = 2.0
_PER_PACKED_A: Final = 0.75
_PER_PACKED_B_VECTOR: Final = 2.0
_STRIDED_B, _STRIDED_A, _CACHE_MISFIT = 1.25, 1.06, 1.12
_COMFORT: Final = 0.75


def cost(config: Tiles, target: Target, shape: Shape) -> float:
    """Estimated cycles of one call; good enough to put candidates in order."""
    columns = ceil_div(shape.n, config.nr)
    slices = ceil_div(shape.k, config.kc)
    whole, ragged = divmod(shape.m, config.mr)
    rows = [(config.mr, whole)]
    rows.append((config.mr, 1 if ragged else 0) if config.pack_a else (1, ragged))
    tiles = 0.0
    for height, count in rows:
        per_tile = shape.k * _step(config, height) + slices * (
            _TILE_OVERHEAD + height * config.nv * _PER_C_VECTOR
        )
        tiles += columns * count * per_tile
    return tiles * _misfit(config, target, shape) + _packing(config, shape)


def _step(config: Tiles, height: int) -> float:
    """Cycles of one step of k in a tile: arithmetic, loads, or the latency of the sums."""
    arithmetic = height * config.nv / _FMA_PORTS
    loads = (height + config.nv) / _LOAD_PORTS
    return max(arithmetic, loads, float(_FMA_LATENCY)) + 1.0 / (2 * config.unroll)


def _misfit(config: Tiles, target: Target, shape: Shape) -> float:
    factor = 1.0 if config.pack_b else _STRIDED_B
    factor *= 1.0 if config.pack_a else _STRIDED_A
    if config.panel_bytes > _COMFORT * target.l1d:
        factor *= _CACHE_MISFIT
    resident = config.mc if config.blocked else shape.m
    if config.kc * resident * FLOAT_BYTES > _COMFORT * target.l2:
        factor *= _CACHE_MISFIT
    return factor


def _packing(config: Tiles, shape: Shape) -> float:
    a_times = b_times = 1
    if config.blocked and config.order == "jpi":
        a_times = ceil_div(shape.n, config.nc)
    elif config.blocked:
        b_times = ceil_div(shape.m, config.mc)
    packed_a = shape.m * shape.k * _PER_PACKED_A * a_times if config.pack_a else 0.0
    vectors = shape.k * shape.n / config.lanes
    return packed_a + (vectors * _PER_PACKED_B_VECTOR * b_times if config.pack_b else 0.0)
