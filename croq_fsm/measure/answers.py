"""What a contestant answers, believed only if it can be true."""

from __future__ import annotations

import math
from collections.abc import Mapping

from croq_fsm.errors import CandidateRefused


def host_part(answer: Mapping[str, object]) -> float | None:
    """The host's part of a launch in seconds, where the answer tells it."""
    value = answer.get("host_ns")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) * 1e-9 if is_number else None  # type: ignore[arg-type]


def nothing(answer: Mapping[str, object]) -> list[float]:
    """Check that an idle request was served."""
    if answer.get("ok") is not True:
        raise CandidateRefused(f"the harness refused: {answer.get('error', answer)}")
    return []


def times(answer: Mapping[str, object], launches: int) -> list[float]:
    """Launch times in seconds, if the answer is one that can be."""
    nothing(answer)
    given = answer.get("ns")
    if not isinstance(given, list) or len(given) != launches:
        raise CandidateRefused(f"the harness gave no list of {launches} times: {str(given)[:200]}")
    if not all(_is_time(value) for value in given):
        raise CandidateRefused(f"the harness gave an impossible time: {str(given)[:200]}")
    return [value * 1e-9 for value in given]


def _is_time(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > 0  # type: ignore[arg-type,operator]
