"""What consecutive rounds without a KEEP demand. Computed by the engine, shown in ``status``."""

from __future__ import annotations

from typing import Final

#: (streak from which it applies, level, what it demands)
LADDER: Final = (
    (0, 0, "go on with the ranked ideas"),
    (3, 1, "profile with the full metric set and change the category"),
    (5, 2, "research: look further than the local evidence"),
    (7, 3, "measure the best kernel and the library afresh beside each candidate"),
    (8, 4, "structural reset, or work from the other active base"),
    (10, 5, "plateau"),
)

FULL_PROFILE: Final = 1
RESEARCH: Final = 2
FRESH_BASELINE: Final = 3
OTHER_BASE: Final = 4
PLATEAU: Final = 5


def level(streak: int) -> int:
    """Escalation level for a number of rounds since the last KEEP."""
    return max(lv for start, lv, _ in LADDER if streak >= start)


def advice(streak: int) -> str:
    """What the level demands, in words."""
    return next(text for start, _, text in reversed(LADDER) if streak >= start)
