"""Sanitizers: faults that outputs do not show, looked for in a winner before it is kept.

A workbench that has some implements ``Sanitizing`` beside ``Workbench``. A tool that is absent,
does not fit the kernel or does not end in time leaves a check that says why it was not run; such
a check has not passed, and objects only when sanitizers are required.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol, runtime_checkable

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.measurement import Check, Verification
from croq_fsm.domain.task import Task

#: Rung of the ladder that all of these checks belong to.
RUNG: Final = "sanitizer"


@runtime_checkable
class Sanitizing(Protocol):
    """A workbench that can look for faults which outputs do not show."""

    def sanitize(self, candidate: Candidate, task: Task) -> tuple[Check, ...]:
        """Run a candidate on a small shape under each sanitizer of the DSL.

        Raises like ``Workbench.build`` and ``Workbench.verify``, but never for a tool that is
        absent, unable or too slow.
        """


def clean(name: str, detail: str) -> Check:
    """The tool ran to its end and found nothing."""
    return Check(name=name, rung=RUNG, passed=True, detail=detail)


def faulty(name: str, detail: str) -> Check:
    """The tool found something."""
    return Check(name=name, rung=RUNG, passed=False, detail=detail)


def not_run(name: str, why: str) -> Check:
    """The tool said nothing about the candidate."""
    return Check(name=name, rung=RUNG, passed=False, skipped=f"not run: {why}")


def demanded(
    checks: tuple[Check, ...], mode: Literal["auto", "off", "required"]
) -> Verification | None:
    """The checks as a verification; what was not run objects when sanitizers are required."""
    if not checks:
        return None
    if mode == "required":
        checks = tuple(_objecting(check) for check in checks)
    return Verification(checks=checks)


def _objecting(check: Check) -> Check:
    if not check.skipped:
        return check
    detail = f"{check.skipped}; measure.sanitizer is 'required'"
    return check.model_copy(update={"skipped": "", "detail": detail})
