"""Durations as people type them: ``90s``, ``30m``, ``8h``, ``1h30m``, ``2d``."""

from __future__ import annotations

import math
import re
from typing import Final

from croq_fsm.errors import UsageError

_PART: Final = r"(?:(?P<{0}>\d+(?:\.\d+)?){0})?"
_DURATION: Final = re.compile("".join(_PART.format(unit) for unit in "dhms"))
_SECONDS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_LONGEST_S: Final = 366 * 86400.0


def parse_duration(text: str) -> float:
    """Seconds.

    Raises:
        UsageError: No duration, zero, or longer than a year.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    parts = {unit: value for unit, value in match.groupdict().items() if value} if match else {}
    if not parts:
        raise UsageError(f"{text!r} is no duration; write it like 90s, 30m, 8h or 1h30m")
    seconds = math.fsum(float(value) * _SECONDS[unit] for unit, value in parts.items())
    if not 0 < seconds <= _LONGEST_S:
        raise UsageError(f"duration {text!r} must be above zero and at most a year")
    return seconds
