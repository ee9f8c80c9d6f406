"""Numbers and foreign texts as words for a terminal. Pure functions."""

from __future__ import annotations

import math
import textwrap
import unicodedata
from datetime import UTC, datetime
from typing import Final

from croq_fsm.domain.measurement import Estimate

ABSENT: Final = "-"

_DECIMALS: Final = 4
_MAX_DECIMALS: Final = 9
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_TENTHS_BELOW_S: Final = 100.0
_DOUBLE: Final = 2.0
#: (at least this many seconds, unit, factor)
_TIME_UNITS: Final = ((1.0, "s", 1.0), (1e-3, "ms", 1e3), (0.0, "us", 1e6))
_CONTROL: Final = ("Cc", "Cf", "Cs", "Co", "Cn")


def decimals(reference: float | None) -> int:
    """Decimals that show a reference rate with four significant digits."""
    if not reference or not math.isfinite(reference):
        return _DECIMALS
    return min(_MAX_DECIMALS, max(1, _DECIMALS - 1 - math.floor(math.log10(reference))))


def rate(tflops: float | None, places: int = _DECIMALS) -> str:
    """TFLOPS without the unit; never in exponent form."""
    return ABSENT if tflops is None else f"{tflops:.{places}f}"


def call_time(seconds: float | None) -> str:
    """Time of one call: ``812.4 us``, ``3.127 ms``, ``1.204 s``."""
    if seconds is None:
        return ABSENT
    unit, factor = next((u, f) for least, u, f in _TIME_UNITS if seconds >= least)
    return f"{seconds * factor:.4g} {unit}" if seconds * factor < 1e4 else f"{seconds:.4g} s"  # noqa: PLR2004


def duration(seconds: float) -> str:
    """Wall time for people: ``4.2 s``, ``12 min``, ``7 h 05 min``."""
    seconds = max(0.0, seconds)
    if seconds < _TENTHS_BELOW_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    hours, minutes = divmod(round(seconds / _MINUTE), 60)
    return f"{hours} h {minutes:02d} min"


def times(ratio: float | None) -> str:
    """A ratio: ``1.034x``, ``12.4x``."""
    if ratio is None:
        return ABSENT
    return f"{ratio:.3f}x" if ratio < 10.0 else f"{ratio:.1f}x"  # noqa: PLR2004 - width


def interval(estimate: Estimate | None) -> str:
    """Ends of a ratio's 99 % interval."""
    return ABSENT if estimate is None else f"[{estimate.low:.3f}, {estimate.high:.3f}]"


def gain(ratio: float) -> str:
    """A ratio as a gain: ``+3.4 %``; from twice as fast on as ``2.38x``."""
    return times(ratio) if ratio >= _DOUBLE else f"{100.0 * (ratio - 1.0):+.1f} %"


def count(number: int, noun: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def moment(at: float) -> str:
    """UTC microseconds as local time of this machine, to the second."""
    return datetime.fromtimestamp(at / 1e6, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def one_line(text: str) -> str:
    """Foreign text on one line, without anything that could steer a terminal."""
    return "".join(
        "?" if unicodedata.category(char) in _CONTROL else char for char in " ".join(text.split())
    )


def cut(text: str, width: int) -> str:
    """At most ``width`` characters; an ellipsis stands for the rest."""
    return text if len(text) <= width else text[: max(0, width - 1)].rstrip() + "…"


def wrapped(head: str, text: str, width: int) -> list[str]:
    """Text in lines of at most ``width``; the first begins with ``head``, the rest below it."""
    lines = textwrap.wrap(text, max(1, width - len(head)), break_on_hyphens=False) or [""]
    blank = " " * len(head)
    return [f"{blank if n else head}{line}" for n, line in enumerate(lines)]
