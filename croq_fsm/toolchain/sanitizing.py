"""Checks of sanitizers: faults that outputs do not show, looked for in a winner before it is kept.

A tool that is absent, does not fit the kernel or does not end in time leaves a check that says why
it was not run; such a check has not passed, and objects only when sanitizers are required.
"""

from __future__ import annotations

from typing import Final

from croq_fsm.domain.measurement import Check

#: Rung of the ladder that all of these checks belong to.
RUNG: Final = "sanitizer"


def clean(name: str, detail: str) -> Check:
    """The tool ran to its end and found nothing."""
    return Check(name=name, rung=RUNG, passed=True, detail=detail)


def faulty(name: str, detail: str) -> Check:
    """The tool found something."""
    return Check(name=name, rung=RUNG, passed=False, detail=detail)


def not_run(name: str, why: str) -> Check:
    """The tool said nothing about the candidate."""
    return Check(name=name, rung=RUNG, passed=False, skipped=f"not run: {why}")
