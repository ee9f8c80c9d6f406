"""How long a configuration should take: an analytic model that ranks the feasible set.

The model counts cycles of one SM. It is no measurement and decides nothing; it says in which
order to try. Per tile::

    main      = tile_m * tile_n * K / 2048               (dense f16 multiply-adds per cycle)
    step      >= bytes of a stage / 64, >= latency / stages           (operands must arrive)
    losses    of the main loop, as shares, see the constants
    epilogue  = 0.067 cycles per element, more with bank conflicts and with turns
    prologue  = 3000 cycles, once for a persistent block, else for each tile

and ``rounds = ceil(tiles / SMs)`` tiles follow each other on an SM. Wave quantisation ("E") is
in ``rounds``. The constants were fitted to kernels of this family on an H200, where they
reproduce profiled cycles to a few percent: from 644 thousand for the plain kernel to 547
thousand for the best one on 4096x8192x4096, and 7 to 16 us on 1024^3. No shape is special.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from croq_fsm.ideators.rules.croqtile_config import ELEMENT, Gemm, Shape
from croq_fsm.ideators.rules.croqtile_limits import Machine

#: Multiply-adds of f16 or bf16 per cycle and SM; bytes from L2 per cycle and SM.
_MACS, _L2_BYTES = 2048, 64

#: Shares of the main loop that are lost.
_LOSS: Final = 0.037
_LOSS_INDEX: Final = 0.027  # the warpgroup's index is not uniform: descriptors in registers
_LOSS_INDEX_HIDDEN: Final = 0.010  # the same, where a deep ring runs on across tiles
_LOSS_REGISTERS: Final = 0.015  # producers hold registers that consumers miss
_LOSS_SHALLOW: Final = 0.010  # three stages instead of four; two lose more than twice that
_LOSS_WARPGROUP: Final = 0.004  # a whole warpgroup produces

#: Stages of 64 columns from which on depth no longer matters.
_DEEP: Final = 4

#: A lone consumer leaves the tensor cores idle while it waits, cycles per step.
_LONE: Final = 80

#: Operands that come faster than this many bytes per cycle make L2 a bottleneck; loss per byte.
_L2_EASY, _L2_SLOPE = 54.0, 0.0055

#: Cycles until an operand arrives: from memory when all tiles start at once, else mostly L2.
_LATENCY_COLD, _LATENCY = 2_500, 1_000

#: Cycles per output element, and for each further row that meets in one bank.
_STORE, _CONFLICT = 0.067, 0.015

#: Cycles: start of a tile, each further pass through the staging tile, barrier of consumers.
_PROLOGUE, _TURN, _MEET = 3_000, 700, 150

#: Bytes from memory per cycle and SM, share that costs nothing, loss per share above it.
_DRAM_BYTES, _DRAM_EASY, _DRAM_SLOPE = 22.7, 0.25, 0.1

#: Share of the main loop that banded orders cost: divisions, and less even use of L2.
_BANDED: Final = 0.005

#: Share of L2 that one operand may fill and still be there when the next wave wants it.
_L2_SHARE: Final = 0.4


@dataclass(frozen=True)
class Prediction:
    """What the model says of a configuration on a shape.

    Attributes:
        cycles: Cycles of the SM that has most to do.
        efficiency: Share of the rounds' capacity that output elements fill ("E").
        tiles: Number of output tiles.
        rounds: Tiles that follow each other on an SM.
        epilogue: Share of a tile's cycles that its output takes.
        dram: Bytes read from memory.
        dram_share: Share of the memory's bandwidth that this takes.
        l2: Operand bytes per cycle and SM.
    """

    cycles: float
    efficiency: float
    tiles: int
    rounds: int
    epilogue: float
    dram: float
    dram_share: float
    l2: float


@lru_cache(maxsize=1 << 16)
def predict(config: Gemm, shape: Shape, machine: Machine) -> Prediction:
    """Apply the model."""
    along_m, along_n = config.tiles(shape)
    tiles = along_m * along_n
    rounds = -(-tiles // machine.sms)
    main = config.steps(shape) * _step(config, rounds)
    epilogue = _epilogue(config)
    cycles = rounds * (main + epilogue) + _PROLOGUE * (1 if config.ctas else rounds)
    dram = dram_bytes(config, shape, machine)
    share = dram / (cycles * machine.sms * _DRAM_BYTES)
    cycles *= 1 + _DRAM_SLOPE * max(0.0, share - _DRAM_EASY)
    area = config.tile_m * config.tile_n * machine.sms * rounds
    return Prediction(
        cycles=cycles,
        efficiency=shape.m * shape.n / area,
        tiles=tiles,
        rounds=rounds,
        epilogue=epilogue / (main + epilogue),
        dram=dram,
        dram_share=share,
        l2=config.stage_bytes / _tensor(config),
    )


def gain(old: Prediction, new: Prediction) -> float:
    """Relative gain in speed that the model expects."""
    return old.cycles / new.cycles - 1


def _tensor(config: Gemm) -> float:
    """Cycles in which the tensor cores do one step."""
    return config.tile_m * config.tile_n * config.tile_k / _MACS


def _step(config: Gemm, rounds: int) -> float:
    """Cycles of one step, with what hinders it."""
    tensor = _tensor(config)
    busy = tensor * (1 + _loss(config))
    if config.consumers == 1:
        busy += _LONE
    latency = _LATENCY_COLD if rounds == 1 else _LATENCY
    supply = max(config.stage_bytes / _L2_BYTES, latency / config.stages)
    crowded = max(0.0, config.stage_bytes / tensor - _L2_EASY) * _L2_SLOPE * tensor
    return max(busy + crowded, supply)


def _loss(config: Gemm) -> float:
    uniform = config.uniform or config.consumers == 1
    depth = config.stages * config.tile_k / 64
    hidden = config.ctas > 0 and depth >= _DEEP
    index = _LOSS_INDEX_HIDDEN if hidden else _LOSS_INDEX
    loss = _LOSS + (0.0 if uniform else index)
    if config.registers is None and config.consumers > 1:
        loss += _LOSS_REGISTERS / 3 if uniform else _LOSS_REGISTERS
    loss += _LOSS_SHALLOW * math.pow(max(0.0, _DEEP - depth), 1.5)
    loss += _BANDED if config.group else 0.0
    return loss + (0.0 if config.elected else _LOSS_WARPGROUP)


def _epilogue(config: Gemm) -> float:
    elements = config.tile_m * config.tile_n
    per_element = _STORE + _CONFLICT * (config.conflict_ways - 1)
    passes = config.parts if config.staging == "stage" else config.turns
    meeting = _MEET if config.guarded and config.guard == "barrier" else 0
    return elements * per_element + _TURN * (passes - 1) + meeting


def dram_bytes(config: Gemm, shape: Shape, machine: Machine) -> float:
    """Operand bytes from memory: each wave of tiles reads the rows and columns that it spans.

    An operand that fits into L2 comfortably is read once, whatever the order.
    """
    along_m, along_n = config.tiles(shape)
    wave = min(machine.sms, along_m * along_n)
    span_m, span_n = _span(config, along_m, along_n, wave)
    waves = along_m * along_n / wave
    total = 0.0
    for tile, span, size in (
        (config.tile_m, span_m, shape.m),
        (config.tile_n, span_n, shape.n),
    ):
        once = size * shape.k * ELEMENT
        again = waves * min(size, span * tile) * shape.k * ELEMENT
        total += once if once <= _L2_SHARE * machine.l2 else max(once, again)
    return total


def _span(config: Gemm, along_m: int, along_n: int, wave: int) -> tuple[float, float]:
    """Tiles along M and N that one wave of consecutive tiles touches."""
    match config.order:
        case "m":
            return min(along_m, wave), min(along_n, wave / along_m + 1)
        case "n":
            return min(along_m, wave / along_n + 1), min(along_n, wave)
        case "gm":
            high, wide = _band(config.group, along_m, along_n, wave)
            return high, wide
        case "gn":
            wide, high = _band(config.group, along_n, along_m, wave)
            return high, wide


def _band(group: int, along: int, across: int, wave: int) -> tuple[float, float]:
    """Tiles along and across the bands that a wave touches."""
    height = min(group, along)
    columns = wave / height
    if columns <= across:
        return height, min(across, columns + 1)
    return min(along, height * (columns / across + 1)), across
