"""What the sensors of a device said around blocks, in words. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from croq_fsm.domain.measurement import Reading, Samples

#: Why a driver holds the clocks where they are, by bit.
_REASONS: Final = {
    0x2: "clocks set by an application",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


def line(readings: Iterable[Reading]) -> str:
    """Readings of a block on one line: before, in the middle, after."""
    return " | ".join(_reading(reading) for reading in readings)


def summary(samples: Samples, contestant: str) -> str:
    """What held while a contestant's blocks ran; "" when nothing was read.

    Clock and power are those in the middle of the blocks, where their load is on.
    """
    blocks = samples.of(contestant)
    middles = [b.readings[len(b.readings) // 2] for b in blocks if b.readings]
    every = [reading for b in blocks for reading in b.readings]
    reasons = 0
    for reading in every:
        reasons |= reading.reasons or 0
    parts = (
        _span("SM", middles, lambda r: r.sm_mhz, "MHz"),
        _span("memory", middles, lambda r: r.memory_mhz, "MHz"),
        _span("", middles, lambda r: r.power_w, "W"),
        _span("", every, lambda r: r.temperature_c, "C"),
        f"clocks held by: {named}" if (named := _named(reasons)) else "",
    )
    return ", ".join(filter(None, parts))


def _reading(reading: Reading) -> str:
    parts = [f"{reading.at_s:.3f} s"]
    for value, unit in (
        (reading.sm_mhz, "MHz"),
        (reading.memory_mhz, "MHz memory"),
        (reading.temperature_c, "C"),
        (reading.power_w, "W"),
        (reading.memory_mb, "MiB"),
    ):
        if value is not None:
            parts.append(f"{value:.0f} {unit}")
    if reading.reasons is not None:
        parts.append(f"reasons {reading.reasons:#x}")
    return " ".join(parts)


def _span(
    name: str, readings: list[Reading], of: Callable[[Reading], float | None], unit: str
) -> str:
    values = [value for reading in readings if (value := of(reading)) is not None]
    if not values:
        return ""
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    span = low if low == high else f"{low} to {high}"
    return f"{name} {span} {unit}".strip()


def _named(reasons: int) -> str:
    return ", ".join(text for bit, text in _REASONS.items() if reasons & bit)
