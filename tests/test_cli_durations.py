"""Durations as people type them."""

from __future__ import annotations

import pytest

from croq_fsm.cli.durations import parse_duration
from croq_fsm.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("8h", 28800), ("1h30m", 5400), ("2d", 172800), ("0.5h", 1800)],
)
def test_known_forms(text: str, seconds: float) -> None:
    """Days, hours, minutes and seconds, alone or in this order."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "8", "h", "30m8h", "-1h", "1 h", "0s", "1y", "900d", "nan"])
def test_anything_else_is_refused(text: str) -> None:
    """No guess is made about a number without a unit, nor about zero or decades."""
    with pytest.raises(UsageError, match=r"duration"):
        parse_duration(text)
