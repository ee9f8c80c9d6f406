"""What the hardware, the copy engine and the dialect allow: static preconditions of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from croq_fsm.ideators.rules.croqtile_config import (
    ELEMENT,
    OVERHEAD_REGISTERS,
    WGMMA_M,
    Gemm,
    Shape,
    canonical,
    entry_registers,
)

#: Shared memory that barriers and the alignment of the tiles take, bytes.
_SHARED_MARGIN: Final = 1_024

#: Copies start at, and step by, multiples of this many bytes; a box has at most 256 lines.
_COPY_STEP, _BOX_MAX = 16, 256

_WGMMA_N_STEP: Final = 8
_REGISTER_STEP, _REGISTER_MIN, _REGISTER_MAX = 8, 24, 240
_GRID_Y_MAX: Final = 65_535
_STAGES_MIN, _STAGES_MAX = 2, 12
_TILE_K: Final = (64, 128)

#: Sums a consumer may hold when setmaxnreg raises it above what it starts with.
_MOST_SUMS: Final = 200


@dataclass(frozen=True)
class Machine:
    """Static limits of the device.

    Attributes:
        sms: Streaming multiprocessors.
        shared: Shared memory of a block on request, bytes.
        threads: Threads of a block.
        l2: L2 cache, bytes.
    """

    sms: int = 132
    shared: int = 232_448
    threads: int = 1_024
    l2: int = 50 << 20

    @classmethod
    def of(cls, limits: Mapping[str, int]) -> Machine:
        """From the device's limits; one that is not known keeps that of an H200."""
        plain = cls()
        return cls(
            sms=limits.get("sms", plain.sms),
            shared=limits.get("smem_per_block", plain.shared),
            threads=limits.get("threads_per_block", plain.threads),
            l2=limits.get("l2_bytes", plain.l2),
        )


def violations(config: Gemm, shape: Shape, machine: Machine) -> list[str]:
    """Why a configuration cannot run on a shape, each a sentence; empty when it can."""
    return [
        *_tile(config),
        *_copies(config, shape),
        *_memory(config, machine),
        *_threads(config, machine),
        *_output(config, shape),
        *_order(config, shape),
    ]


def is_feasible(config: Gemm, shape: Shape, machine: Machine) -> bool:
    """Whether nothing speaks against a configuration."""
    return not violations(config, shape, machine)


def fitted(config: Gemm, shape: Shape, machine: Machine, most: int = 8) -> Gemm:
    """The same kernel with as many stages as fit, at most ``most`` and no more than steps."""
    room = machine.shared - _SHARED_MARGIN - config.staging_bytes
    wanted = min(most, max(_STAGES_MIN, config.steps(shape)))
    stages = min(wanted, max(_STAGES_MIN, room // config.stage_bytes))
    return settled(replace(config, stages=stages), shape)


def settled(config: Gemm, shape: Shape) -> Gemm:
    """Canonical form, with the guard of the staging tile that suits the depth of the ring.

    An event lets the consumers pass each other; a tile with fewer steps than stages is too
    short to gain from that, and there a barrier shows at a glance that nothing can overtake.
    """
    if config.guarded and config.steps(shape) <= config.stages:
        config = replace(config, guard="barrier")
    return canonical(config)


def _tile(config: Gemm) -> Iterator[str]:
    if config.rows not in (1, 2) or config.parts != config.rows * config.consumers:
        yield f"{config.consumers} consumers cannot share {config.tile_m} rows by 64 or 128"
    if config.tile_m % WGMMA_M or config.tile_m > _BOX_MAX:
        yield f"TILE_M {config.tile_m} must be a multiple of 64 and at most 256"
    if config.tile_n % _WGMMA_N_STEP or not 0 < config.tile_n <= _BOX_MAX:
        yield f"TILE_N {config.tile_n} must be a multiple of 8 and at most 256"
    if config.tile_k not in _TILE_K:
        yield f"TILE_K {config.tile_k}: a swizzled tile is 64 or 128 deep"
    if not _STAGES_MIN <= config.stages <= _STAGES_MAX:
        yield f"{config.stages} stages are outside of {_STAGES_MIN} to {_STAGES_MAX}"


def _copies(config: Gemm, shape: Shape) -> Iterator[str]:
    if shape.k * ELEMENT % _COPY_STEP or shape.n * ELEMENT % _COPY_STEP:
        yield "K and N must be multiples of 8: lines that the copy engine moves step by 16 bytes"
    if config.tile_k > _TILE_K[0] and shape.k % _TILE_K[0]:
        yield "K must be a multiple of 64 when a step is deeper: the copy is cut into 64 columns"
    if config.layout == "panels":
        if config.tile_n % config.panel:
            yield f"TILE_N {config.tile_n} has no panels: it must be a multiple of 32"
        if shape.n % config.panel:
            yield f"N must be a multiple of {config.panel} for panels: the rest would be lost"


def _memory(config: Gemm, machine: Machine) -> Iterator[str]:
    room = machine.shared - _SHARED_MARGIN
    if config.shared_bytes > room:
        yield f"tiles need {config.shared_bytes} bytes of shared memory; a block has {room}"


def _threads(config: Gemm, machine: Machine) -> Iterator[str]:
    if config.threads > machine.threads:
        yield f"{config.threads} threads; a block has at most {machine.threads}"
        return
    start = entry_registers(config.threads)
    need = config.accumulator_registers + OVERHEAD_REGISTERS
    if config.registers is None:
        if need > start:
            yield f"{need} registers per consumer thread; a thread has {start}"
        return
    yield from _trade(config, start, need)


def _trade(config: Gemm, start: int, need: int) -> Iterator[str]:
    """Whether registers can pass from the producer to the consumers as the configuration says."""
    low, high = config.registers or (0, 0)
    legal = all(
        value % _REGISTER_STEP == 0 and _REGISTER_MIN <= value <= _REGISTER_MAX
        for value in (low, high)
    )
    if not legal or not low <= start <= high:
        yield f"setmaxnreg {low} and {high} around {start}: multiples of 8 from 24 to 240"
    if low + high * config.consumers > start * (config.consumers + 1):
        yield f"setmaxnreg {low} and {high} ask for more registers than the block has"
    one_sum = need // config.rows if config.rows > 1 else need
    if need > high or one_sum > start or config.accumulator_registers > _MOST_SUMS:
        yield f"{need} registers per consumer thread; setmaxnreg gives {high}"


def _output(config: Gemm, shape: Shape) -> Iterator[str]:
    if config.turns > 1:
        if config.layout != "panels" or config.staging != "tile":
            yield "only panels in a tile of their own can leave in turns"
        elif config.tile_n % (config.turns * config.panel):
            yield f"{config.turns} turns do not divide {config.tile_n} columns into panels"
    if config.staging == "stage":
        if config.ctas:
            yield "a persistent kernel has no dead stages: the next tile is loaded already"
        if config.tile_k != _TILE_K[0] or config.stages < config.parts:
            yield f"{config.parts} stages of 64 columns are needed to hold the output"
    if config.guarded and config.guard == "event" and config.steps(shape) <= config.stages:
        yield "the event guard needs more steps than stages; use the barrier"


def _order(config: Gemm, shape: Shape) -> Iterator[str]:
    if (config.group > 0) != (config.order in ("gm", "gn")):
        yield "bands need a height, other orders have none"
    along_m, along_n = config.tiles(shape)
    if not config.ctas and not config.group:
        second = along_n if config.order == "m" else along_m
        if second > _GRID_Y_MAX:
            yield f"{second} thread blocks in the grid's second dimension"
