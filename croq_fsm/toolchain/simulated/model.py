"""True time of a kernel on the model: a pure function of its features and the shape.

Cycles of the SM that has most to do::

    step     = soft maximum of tensor cores with their losses, operands through L2, latency/stages
    tile     = steps * step + what the epilogue and the start of a tile do not overlap
    cycles   = tiles per SM * tile, stretched where memory is short

and seconds by a clock that falls as the tensor cores are busier, for that is where power goes.
It is another model than the one by which the rule ideator ranks: what is promised and what is
true differ here as they do on a device. Its coefficients were fitted to verified timings of an
H200; docs/simulator.md says how well it ranks them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from croq_fsm.toolchain.simulated.features import Features

SMS: Final = 132
SHARED_LIMIT: Final = 232_448
REGISTERS: Final = 65_536
L2_BYTES: Final = 50 << 20
#: Dense multiply-adds of 16-bit operands per cycle and SM.
MACS: Final = 2048
BANDWIDTH: Final = 4.8e12
#: Clock of a chip that its power does not limit, Hz; the lowest that power drives it to.
TOP_CLOCK: Final = 1.83e9
LOW_CLOCK: Final = 1.20e9
#: Launches longer than this feel the power limit more and more, seconds.
_LONG_S: Final = 3e-4


@dataclass(frozen=True)
class Coefficients:
    """What was fitted. Shares are of the main loop's tensor time, the rest are cycles.

    Attributes:
        loss: What is always lost.
        index: Warpgroup index not uniform.
        stepped: Descriptors stepped without a uniform index.
        trade: No registers passed from producer to consumers.
        shallow: Per missing stage below four, to the power of 1.5.
        deep_shallow: One more WGMMA in flight with fewer than four stages.
        drained: Persistent, and each WGMMA waited for.
        warpgroup: A whole warpgroup produces.
        arrivals: Every thread gives the stage back.
        lone: Cycles per step that a lone consumer leaves idle.
        lone_deep: Share of that with one more WGMMA in flight.
        alternate: Share lost by a ping-pong schedule that waits for each WGMMA.
        cluster: Share lost to waiting for each other.
        cluster_turns: The same with a ping-pong schedule.
        meeting: Cycles per tile in which the blocks of a cluster meet.
        l2_bytes: Bytes from L2 per cycle and SM.
        latency: Cycles until operands arrive.
        latency_cold: The same when all tiles start at once.
        sharp: Exponent of the soft maximum.
        store: Cycles per output element of a warpgroup's stores.
        conflict: The same for each further row that meets in a bank.
        direct: The same for stores from registers to memory.
        turn: Cycles per further pass through the staging tile.
        exposed: Share of an epilogue that a ping-pong schedule leaves visible.
        start: Cycles until a tile's first operands are there.
        restart: Share of it that tiles of a persistent block still pay.
        dram_easy: Share of the memory's bandwidth that costs nothing.
        dram_slope: Stretch per share above it.
        power: Hz that the clock falls per share of tensor time, above ``power_from``.
        power_from: Busy share from which on the clock falls.
        power_l2: The same per share of L2 bandwidth.
        power_dram: The same per share of the memory's bandwidth.
        power_long: Share by which all of that grows per doubling of a launch beyond 0.3 ms.
        launch: Seconds of a launch that no kernel avoids.
        split: Seconds per gigabyte that a split of K moves in addition.
    """

    loss: float = 0.09052
    index: float = 0.01567
    stepped: float = 0.01959
    trade: float = 0.008398
    shallow: float = 0.01935
    deep_shallow: float = 0.02747
    drained: float = 0.04176
    warpgroup: float = 0.004954
    arrivals: float = 0.002351
    lone: float = 94.06
    lone_deep: float = 0.6623
    alternate: float = 0.5993
    cluster: float = 0.03779
    cluster_turns: float = 0.06944
    meeting: float = 1727
    l2_bytes: float = 56.4
    latency: float = 1276
    latency_cold: float = 3334
    sharp: float = 10.23
    store: float = 0.0555
    conflict: float = 0.01904
    direct: float = 0.29
    turn: float = 603.4
    exposed: float = 0.835
    start: float = 5574
    restart: float = 0.0668
    dram_easy: float = 0.5164
    dram_slope: float = 0.3295
    power: float = 4.877e8
    power_from: float = 0.5326
    power_l2: float = 5.028e7
    power_dram: float = 5.028e7
    power_long: float = 0.3227
    launch: float = 2.624e-06
    split: float = 0.0001863


@dataclass(frozen=True)
class Truth:
    """What the model knows of a kernel on a shape.

    Attributes:
        seconds: Time of a launch, cold L2, isolated.
        cycles: Cycles of the longest SM.
        clock: Hz.
        tensor: Share of the elapsed time in which tensor cores work.
        dram: Bytes read from memory.
        l2: Share of L2 bandwidth that is used.
        tiles: Output tiles.
        blocks_per_sm: Blocks that fit on an SM at the same time.
        epilogue: Share of a tile's cycles that the epilogue takes.
        conflicts: Bank conflicts of the output's stores, all SMs.
    """

    seconds: float
    cycles: float
    clock: float
    tensor: float
    dram: float
    l2: float
    tiles: int
    blocks_per_sm: int
    epilogue: float
    conflicts: float


FITTED: Final = Coefficients()


@lru_cache(maxsize=1 << 14)
def truth(f: Features, shape: tuple[int, int, int], c: Coefficients = FITTED) -> Truth:
    """Apply the model."""
    m, n, k = shape
    along_m, along_n = -(-m // f.tile_m), -(-n // f.tile_n)
    tiles = along_m * along_n
    work = tiles * f.split_k
    rounds = -(-work // min(SMS, f.ctas or SMS)) * _second_wave(f)
    fit = blocks_per_sm(f)
    steps = -(-k // (f.tile_k * f.split_k))
    step = _step(f, c, cold=rounds == 1)
    main = steps * step
    epilogue = _epilogue(f, c)
    overlapped = min(fit, rounds) if not f.ctas else 1
    visible = epilogue * (c.exposed if f.pingpong else 1.0) / overlapped
    start = c.start / overlapped + c.meeting * math.log2(f.cluster)
    cycles = rounds * (main + visible)
    cycles += start * (1 + c.restart * (rounds - 1) if f.ctas else rounds)
    dram = _dram(f, shape, along_m, along_n)
    per_cycle = BANDWIDTH / TOP_CLOCK
    share = dram / (cycles * per_cycle)
    cycles *= 1 + c.dram_slope * max(0.0, share - c.dram_easy)
    cycles = max(cycles, dram / per_cycle / 0.92)
    busy = (m * n * k / _macs(f) / SMS) / cycles
    operand_bytes = rounds * steps * _through_l2(f)
    l2 = min(1.0, operand_bytes / cycles / c.l2_bytes)
    clock = _clock(c, cycles, busy, l2, dram / (cycles * per_cycle))
    seconds = cycles / clock + c.launch
    if f.split_k > 1:
        seconds += c.split * m * n * 4 * (f.split_k + 1) / 1e9 + 2 * c.launch
    return Truth(
        seconds=seconds,
        cycles=cycles,
        clock=clock,
        tensor=busy,
        dram=dram,
        l2=l2,
        tiles=tiles,
        blocks_per_sm=fit,
        epilogue=visible / (main + visible),
        conflicts=m * n * 0.016 * (ways(f) - 1),
    )


def _clock(c: Coefficients, cycles: float, busy: float, l2: float, dram: float) -> float:
    """Hz at which the power limit leaves the chip; shares of what each unit can do."""
    if busy <= c.power_from:
        return TOP_CLOCK
    hot = c.power * (busy - c.power_from) + c.power_l2 * l2 + c.power_dram * dram
    longer = max(0.0, math.log2(cycles / TOP_CLOCK / _LONG_S))
    return max(LOW_CLOCK, TOP_CLOCK - hot * (1 + c.power_long * longer))


def blocks_per_sm(f: Features) -> int:
    """Blocks that share an SM, by shared memory, registers and threads; at least 1."""
    by_shared = (SHARED_LIMIT + 1024) // (f.shared_bytes + 2048)
    by_registers = REGISTERS // (f.threads * registers(f))
    return max(1, min(by_shared, by_registers, 2048 // f.threads))


def registers(f: Features) -> int:
    """Registers per thread at the start of the kernel, as the compiler reports them."""
    entry = min(255, REGISTERS // f.threads // 8 * 8)
    if f.registers:
        return entry
    wanted = min(entry, f.sums + 26)
    return min(wanted, f.cap) if f.cap else wanted


def spills(f: Features) -> int:
    """Bytes per thread that registers spill."""
    room = f.registers[1] if f.registers else registers(f)
    direct = 4 if f.epilogue == "direct" and f.sums >= 128 else 0  # noqa: PLR2004 - addresses too
    return max(0, 4 * (f.sums + 20 - room)) + 16 * direct


def _second_wave(f: Features) -> int:
    """Large clusters do not all fit at once; of a persistent kernel some start when others end."""
    return 2 if f.ctas and f.cluster > 2 else 1  # noqa: PLR2004 - pairs always fit


def ways(f: Features) -> int:
    """Rows of an 8x8 matrix that meet in one bank when the output is staged."""
    return 1 if f.epilogue != "rows" else math.gcd(f.tile_n * f.output // 16, 8)


def _macs(f: Features) -> int:
    """Multiply-adds per cycle and SM; 8-bit operands run twice as fast."""
    return MACS * 2 // f.element


def _tensor(f: Features) -> float:
    return f.tile_m * f.tile_n * f.tile_k / _macs(f)


def _through_l2(f: Features) -> float:
    """Operand bytes of a step that come through L2."""
    if f.cluster == 1:
        return float(f.stage_bytes)
    shared, own = (f.tile_n, f.tile_m) if f.shared_side == "m" else (f.tile_m, f.tile_n)
    return (shared / f.cluster + own) * f.tile_k * f.element


def _step(f: Features, c: Coefficients, *, cold: bool) -> float:
    """Cycles of one pipeline step."""
    busy = _tensor(f) * (1 + _loss(f, c))
    if f.consumers == 1:
        busy += c.lone * (c.lone_deep if f.deep else 1.0) / (1 + (blocks_per_sm(f) > 1))
    supply = _through_l2(f) / c.l2_bytes
    latency = (c.latency_cold if cold else c.latency) / f.stages
    p = c.sharp
    return math.pow(busy**p + supply**p + latency**p, 1 / p)


def _loss(f: Features, c: Coefficients) -> float:
    many = f.consumers > 1
    loss = c.loss
    if many and not f.uniform:
        loss += c.index
    if not f.uniform:
        loss += c.stepped * (f.descriptors != "made")
    if many and f.registers is None:
        loss += c.trade
    missing = max(0.0, 4 - f.stages * f.tile_k * f.element / 128)
    loss += c.shallow * math.pow(missing, 1.5)
    if f.deep:
        loss += c.deep_shallow * (missing > 0)
    elif f.pingpong:
        loss += c.alternate
    elif f.ctas:
        loss += c.drained
    loss += c.warpgroup * (not f.elected) + c.arrivals * (f.arrivals == "all")
    loss += (c.cluster_turns if f.pingpong else c.cluster) * math.log2(f.cluster)
    loss += 0.02 * spills(f) / 64
    return loss - 0.001 * (f.unroll > 1) - 0.001 * f.promoted


def _epilogue(f: Features, c: Coefficients) -> float:
    elements = f.tile_m * f.tile_n * f.output / 2
    if f.epilogue == "direct":
        return elements * c.direct
    per = c.store + c.conflict * (ways(f) - 1)
    guard = 0.0 if f.event_guard else 100.0 * (f.ctas > 0)
    return elements * per + c.turn * (f.passes - 1) + guard


def _dram(f: Features, shape: tuple[int, int, int], along_m: int, along_n: int) -> float:
    """Operand bytes from memory, by the rows and columns that the tiles in flight span."""
    m, n, k = shape
    flight = min(min(SMS, f.ctas or SMS) * (1 if f.ctas else blocks_per_sm(f)), along_m * along_n)
    high, wide = _span(f, along_m, along_n, flight)
    waves = along_m * along_n / flight
    total = 0.0
    for size, tile, span in ((m, f.tile_m, high), (n, f.tile_n, wide)):
        once = size * k * f.element
        again = waves * min(size, span * tile) * k * f.element
        # What fits into a part of L2 is found there by the next wave, the rest is read again.
        hit = min(1.0, (0.35 + 0.05 * f.kept) * L2_BYTES / once)
        total += once + max(0.0, again - once) * (1 - hit)
    return total


def _span(f: Features, along_m: int, along_n: int, flight: int) -> tuple[float, float]:
    """Tiles along M and N that the blocks in flight touch."""
    if f.order == "m":
        return min(along_m, flight), min(along_n, flight / along_m + 0.5)
    if f.order == "n":
        return min(along_m, flight / along_n + 0.5), min(along_n, flight)
    across = along_n if f.order == "gm" else along_m
    along = along_m if f.order == "gm" else along_n
    band = float(min(f.group or 8, along))
    width = min(across, flight / band + 0.5)
    height = min(along, max(band, flight / width))
    return (height, width) if f.order == "gm" else (width, height)
