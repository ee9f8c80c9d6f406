"""Numbers and foreign texts as words."""

from __future__ import annotations

import pytest

from croq_fsm.domain.measurement import Estimate
from croq_fsm.report import words


def test_rates_are_aligned_to_the_library() -> None:
    """Four significant digits of the library's rate; no exponent however small the rate is."""
    assert words.decimals(612.34) == 1
    assert words.decimals(0.0812) == 5
    assert words.decimals(None) == 4
    assert words.rate(0.0000081, words.decimals(0.0812)) == "0.00001"
    assert words.rate(612.345, 1) == "612.3"
    assert words.rate(None) == "-"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5e-6, "2.5 us"), (812.4e-6, "812.4 us"), (3.127e-3, "3.127 ms"), (1.204, "1.204 s")],
)
def test_call_times(seconds: float, text: str) -> None:
    """The unit follows the size."""
    assert words.call_time(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(4.2, "4.2 s"), (720, "12 min"), (25500, "7 h 05 min"), (-3, "0.0 s"), (7199, "2 h 00 min")],
)
def test_durations(seconds: float, text: str) -> None:
    """Seconds, minutes, hours; a clock that went back is no negative time."""
    assert words.duration(seconds) == text


def test_ratios_and_gains() -> None:
    """Small gains in percent, large ones as factors, intervals with three digits."""
    assert (words.times(1.0342), words.times(12.44), words.times(None)) == ("1.034x", "12.4x", "-")
    assert (words.gain(1.034), words.gain(0.98), words.gain(2.4)) == ("+3.4 %", "-2.0 %", "2.400x")
    assert words.interval(Estimate(ratio=1.0, low=0.9812, high=1.01, pairs=5)) == "[0.981, 1.010]"
    assert words.interval(None) == "-"


def test_foreign_text_is_one_harmless_line() -> None:
    """Newlines become blanks; controls, escapes and bidirectional marks become question marks."""
    assert words.one_line(" a\n\tb\x1b[2J\u202ec\0 ünï ") == "a b?[2J?c? ünï"
    assert words.cut("abcdef", 4) == "abc…"
    assert words.cut("abcd", 4) == "abcd"
    assert words.wrapped("- ", "aa bb cc", 7) == ["- aa bb", "  cc"]
    assert words.wrapped("- ", "", 7) == ["- "]
    assert (words.count(1, "round"), words.count(2, "round")) == ("1 round", "2 rounds")
