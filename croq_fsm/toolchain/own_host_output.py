"""Reading what a program with a host part of its own printed: its check and its time. Pure.

Nothing is taken for granted: a time has a unit, is finite and positive, has enough digits for a
comparison, and there is exactly one; the check has a line that says passed, none that says failed
or skipped. What does not fit is refused with the line that does not.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from croq_fsm.errors import CandidateRefused

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_UNIT: Final = r"(?P<unit>ns|us|µs|ms|sec|s)"
#: Whatever stands where a number should be; what it is comes out when it is read.
_VALUE: Final = r"(?P<value>[^\s,;]+)"
_TIMES: Final = (
    re.compile(rf"^\s*Timing avg \(?{_UNIT}\)?\s*[:=]\s*{_VALUE}", re.IGNORECASE),
    re.compile(rf"(?:^|\s)(?:avg_)?(?:time|avg|latency)_{_UNIT}\s*[:=]\s*{_VALUE}", re.IGNORECASE),
    re.compile(
        r"^\s*(?:(?:avg|average|mean|median|kernel|elapsed)\.?\s+)*time\s*[:=]\s*"
        rf"(?P<value>[^\s,;a-zµ]+|nan|inf)\s*{_UNIT}\b",
        re.IGNORECASE,
    ),
)
_RATE: Final = re.compile(rf"\b(?P<unit>[TG])FLOPS(?:/s)?\s*[:=]\s*{_VALUE}", re.IGNORECASE)
_RATES: Final = {"t": 1e12, "g": 1e9}
_PASSED: Final = re.compile(
    r"\b(?:test|tests|check|verification|verify|validation|result)\b[^\n]*\b(?:pass(?:ed)?|ok)\b",
    re.IGNORECASE,
)
_NONE_FAILED: Final = re.compile(
    r"\b(?:0|no)\s+(?:fail\w*|mismatch\w*|error\w*)|\b(?:fail\w*|mismatch\w*|errors?)\s*[:=]\s*0\b",
    re.IGNORECASE,
)
_FAILED: Final = re.compile(
    r"\bfail(?:ed|ure|ures|s)?\b|\bmismatch\w*|\bassert(?:ion)?\b|\bskipp?(?:ed|ing)?\b",
    re.IGNORECASE,
)
_DIGITS: Final = re.compile(r"\d")
#: Fewer significant digits than this are steps larger than a gain.
_FEWEST_DIGITS: Final = 4
_LONGEST: Final = 160


@dataclass(frozen=True)
class Said:
    """What a program said of itself.

    Attributes:
        seconds: Time of a call.
        flops: Operations of a call, as its rate and its time make them; None without a rate.
        passed: The line that says that its check passed.
    """

    seconds: float
    flops: float | None
    passed: str


def read(text: str) -> Said:
    """Read a whole output.

    Raises:
        CandidateRefused: Something is missing, twice there, or no such number.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    passed = check_line(lines)
    seconds = _time(lines)
    rate = _rate(lines)
    return Said(seconds, None if rate is None else rate * seconds, passed)


def check_line(lines: list[str]) -> str:
    """The line of a passed check.

    Raises:
        CandidateRefused: There is none, or another one says otherwise.
    """
    for line in lines:
        if _FAILED.search(_NONE_FAILED.sub("", line)):
            raise CandidateRefused(f"its own check did not pass: {_quoted(line)}")
    passed = next((line for line in lines if _PASSED.search(line)), None)
    if passed is None:
        raise CandidateRefused(
            "its own check did not pass: no line says so (wanted, for example, 'Test Passed')"
        )
    return _quoted(passed)


def _time(lines: list[str]) -> float:
    found = [(m, line) for line in lines for p in _TIMES if (m := p.search(line))]
    if not found:
        raise CandidateRefused(
            "no time of a call is printed (wanted, for example, 'Timing avg ms: 0.412486')"
        )
    if len({m["value"] for m, _ in found}) > 1:
        told = "; ".join(_quoted(line) for _, line in found[:3])
        raise CandidateRefused(f"several times are printed, and one is wanted: {told}")
    match, line = found[0]
    value = _number(match["value"], line)
    if value <= 0.0:
        raise CandidateRefused(f"no time of a call: {_quoted(line)}")
    mantissa = match["value"].lower().partition("e")[0].lstrip("+-0.")
    if len(_DIGITS.findall(mantissa)) < _FEWEST_DIGITS:
        raise CandidateRefused(
            f"the time has too few digits to be compared: {_quoted(line)}; print at least "
            f"{_FEWEST_DIGITS} significant ones"
        )
    return value * _UNITS[match["unit"].lower()]


def _rate(lines: list[str]) -> float | None:
    found = [(m, line) for line in lines if (m := _RATE.search(line))]
    if not found:
        return None
    match, line = found[0]
    value = _number(match["value"], line)
    if value <= 0.0 or len({m["value"] for m, _ in found}) > 1:
        raise CandidateRefused(f"no single positive rate is printed: {_quoted(line)}")
    return value * _RATES[match["unit"].lower()]


def _number(text: str, line: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise CandidateRefused(f"no finite number: {_quoted(line)}")
    return value


def _quoted(line: str) -> str:
    return repr(line.strip()[:_LONGEST])
