"""Asking an ideator as a guest: the answer is a proposal, None, or one of two errors.

A defect in somebody's plug-in must not count as one of the engine.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from croq_fsm.domain.ideas import Proposal
from croq_fsm.errors import (
    BackendDown,
    BadReply,
    DatabaseDamaged,
    DeviceWedged,
    DiskFailed,
    DiskFull,
    DiskReadOnly,
    Drained,
    HarnessChanged,
    StaleSession,
)
from croq_fsm.ideators.contract import Composed, Context, Failure, Ideator

_log = structlog.get_logger(__name__)
_LONGEST = 300
#: What an ideator says itself, and what concerns the machine and not the ideator.
_PASSED_ON = (
    BackendDown,
    BadReply,
    DatabaseDamaged,
    DeviceWedged,
    DiskFailed,
    DiskFull,
    DiskReadOnly,
    Drained,
    HarnessChanged,
    StaleSession,
)


def propose(ideator: Ideator, context: Context) -> Proposal | None:
    """One proposal, or None.

    Raises:
        BackendDown: It cannot answer, or failed in a way of its own.
        BadReply: What it returned is no proposal.
    """
    return _checked(ideator, lambda: ideator.propose(context))


def repair(
    ideator: Ideator, context: Context, proposal: Proposal, failure: Failure
) -> Proposal | None:
    """A repair, or None; raises like :func:`propose`."""
    return _checked(ideator, lambda: ideator.repair(context, proposal, failure))


def author_of(ideator: Ideator, proposal: Proposal) -> str:
    """Name of who made a proposal."""
    return ideator.author_of(proposal) if isinstance(ideator, Composed) else ideator.name


def _checked(ideator: Ideator, ask: Callable[[], object]) -> Proposal | None:
    try:
        answer = ask()
    except _PASSED_ON:
        raise
    except Exception as exc:
        _log.exception("an ideator failed", ideator=ideator.name)
        raise BackendDown(f"{type(exc).__name__}: {str(exc)[:_LONGEST]}") from exc
    if answer is not None and not isinstance(answer, Proposal):
        raise BadReply(f"it returned a {type(answer).__name__}, which is no proposal")
    return answer
