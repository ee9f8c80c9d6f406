"""Whether the device was steady while a block ran. Pure; no device is asked here.

A chip at its power limit lowers its clock and holds it there: that is its normal state under load
and no reason to throw a block away. What counts is whether a block ran like the other blocks of
the same kernel in the same measurement: at about their clock, with about their drift, and with as
much device memory in use. So nothing is judged by absolute numbers, and a device that stays
slower becomes the new normal with the next measurement.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from croq_fsm.domain.measurement import Reading

#: Bits of the driver: the hardware itself slows the clock (heat, power brake).
HARDWARE_SLOWDOWN: Final = 0x8 | 0x40 | 0x80

#: Share of the usual clock below which a block is thrown away.
_LEAST_CLOCK: Final = 0.75
#: The same while the hardware says that it slows down.
_LEAST_CLOCK_SLOWED: Final = 0.93
#: How far the drift within a block may be from the usual one.
_MOST_DRIFT: Final = 0.10
#: Blocks of a contestant before there is anything usual.
_FEWEST: Final = 3
#: Memory that comes or goes with a process, MiB.
_MEMORY_STEP: Final = 64.0
#: The part of a block in which its load is on, from its request to its answer.
_LOADED: Final = (0.4, 0.95)


@dataclass
class Steadiness:
    """Blocks of one measurement, judged one after the other.

    Attributes:
        levels: Contestant → clock of its blocks, MHz.
        drifts: Contestant → clock of the second half over that of the first.
        memory: Device memory in use when only we are there, MiB.
    """

    levels: dict[str, list[float]] = field(default_factory=dict)
    drifts: dict[str, list[float]] = field(default_factory=dict)
    memory: float | None = None

    def judge(
        self, contestant: str, readings: Sequence[Reading], halves: Sequence[float] = ()
    ) -> str:
        """Why a block must not count; "" when it may, and then it is one more of the usual.

        Args:
            contestant: Whose block it is.
            readings: Sensors while it ran.
            halves: Clock in its first and in its second half, as spins on the device show it.
        """
        problem = self._memory_problem(readings)
        level, drift = _level(readings, halves), _drift(readings, halves)
        problem = problem or self._level_problem(contestant, level, readings)
        problem = problem or self._drift_problem(contestant, drift)
        if not problem:
            if level is not None:
                self.levels.setdefault(contestant, []).append(level)
            if drift is not None:
                self.drifts.setdefault(contestant, []).append(drift)
        return problem

    def _memory_problem(self, readings: Sequence[Reading]) -> str:
        used = [r.memory_mb for r in readings if r.memory_mb is not None]
        if not used:
            return ""
        usual = used[0] if self.memory is None else self.memory
        self.memory = min(usual, *used)
        most = max(used)
        if most - self.memory <= _MEMORY_STEP:
            return ""
        return (
            f"somebody else came or left: device memory in use went from {self.memory:.0f} to "
            f"{most:.0f} MiB"
        )

    def _level_problem(
        self, contestant: str, level: float | None, readings: Sequence[Reading]
    ) -> str:
        known = self.levels.get(contestant, [])
        if level is None or len(known) < _FEWEST:
            return ""
        usual = statistics.median(known)
        slowed = any((r.reasons or 0) & HARDWARE_SLOWDOWN for r in readings)
        least = _LEAST_CLOCK_SLOWED if slowed else _LEAST_CLOCK
        if level >= least * usual:
            return ""
        why = ", the hardware slows it down" if slowed else ""
        return f"the clock was {level:.0f} MHz, {usual:.0f} MHz is usual{why}"

    def _drift_problem(self, contestant: str, drift: float | None) -> str:
        known = self.drifts.get(contestant, [])
        if drift is None or len(known) < _FEWEST:
            return ""
        usual = statistics.median(known)
        if abs(drift / usual - 1.0) <= _MOST_DRIFT:
            return ""
        return (
            f"the clock was not steady: it changed by {drift - 1.0:+.0%} within the block, "
            f"{usual - 1.0:+.0%} is usual"
        )


def before_middle_after(readings: Sequence[Reading]) -> tuple[Reading, ...]:
    """The three readings that are kept with a block; fewer when there are fewer."""
    if len(readings) <= 3:  # noqa: PLR2004 - before, middle, after
        return tuple(readings)
    half = readings[-1].at_s / 2
    middle = min(readings[1:-1], key=lambda r: abs(r.at_s - half))
    return (readings[0], middle, readings[-1])


def _loaded(readings: Sequence[Reading]) -> list[float]:
    """SM clocks while the load was on."""
    if not readings:
        return []
    end = readings[-1].at_s
    low, high = (share * end for share in _LOADED)
    return [r.sm_mhz for r in readings if r.sm_mhz and low <= r.at_s <= high]


def _level(readings: Sequence[Reading], halves: Sequence[float]) -> float | None:
    """What the spins show goes before what the driver says, which is some time behind."""
    if halves:
        return statistics.fmean(halves)
    clocks = _loaded(readings)
    return statistics.median(clocks) if clocks else None


def _drift(readings: Sequence[Reading], halves: Sequence[float]) -> float | None:
    if len(halves) > 1 and halves[0] > 0:
        return halves[-1] / halves[0]
    clocks = _loaded(readings)
    if len(clocks) < 2 * _FEWEST:
        return None
    middle = len(clocks) // 2
    return statistics.median(clocks[middle:]) / statistics.median(clocks[:middle])
