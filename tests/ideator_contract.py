"""The published contract of ideators, under the name that the tests know it by."""

from __future__ import annotations

from croq_fsm.ideators.testing import (
    CPU,
    PLAIN_MATMUL,
    FilteringContract,
    IdeatorContract,
    Session,
    candidate_of,
    check,
    make_context,
    make_failure,
    make_profile,
)

__all__ = [
    "CPU",
    "PLAIN_MATMUL",
    "FilteringContract",
    "IdeatorContract",
    "Session",
    "candidate_of",
    "check",
    "make_context",
    "make_failure",
    "make_profile",
]
