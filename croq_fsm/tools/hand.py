"""The hand of whoever drives a session: an ideator, and a look at each step before it is stored.

The handlers of the states are those of the daemon. What differs is who proposes, and that a
failed attempt is not the end of an idea while its author may still mend it: such a step is not
committed, and is done again with the next build.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from croq_fsm.daemon import Daemon, silent
from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.records import Attempt, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome, State
from croq_fsm.engine import Handler
from croq_fsm.errors import Drained
from croq_fsm.ideators.contract import Context, Failure
from croq_fsm.ports import Ports

_GIVEN_UP: Final = frozenset({Outcome.ABANDONED, Outcome.REJECTED})
_LOG_SHOWN: Final = 2000


class Refused(Drained):
    """A step came to something that its author has to answer first; nothing was stored."""

    exit_code = 1


class AttemptFailed(Refused):
    """The candidate in hand does not build, or is wrong; it may be mended.

    Attributes:
        attempt: What will be stored with the next build.
    """

    def __init__(self, attempt: Attempt) -> None:
        super().__init__(attempt.message)
        self.attempt = attempt

    @property
    def log(self) -> str:
        """The end of what the tools said."""
        return self.attempt.log[-_LOG_SHOWN:]


@dataclass
class Hand:
    """Proposes what it was given, once.

    Attributes:
        name: ``<model>`` of the session.
        proposal: The idea, or None.
        mended: The repair of the attempt that failed last, or None.
    """

    name: str
    proposal: Proposal | None = None
    mended: Proposal | None = None

    def propose(self, context: Context) -> Proposal | None:
        """The idea; asked again, it was refused.

        Raises:
            Refused: With the reasons of the guards.
        """
        if context.refused:
            raise Refused("; ".join(context.refused))
        return self.proposal

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """The repair, once."""
        del context, proposal, failure
        mended, self.mended = self.mended, None
        return mended


@dataclass
class Drive:
    """Works on a session from where it stands until a condition holds.

    Attributes:
        daemon: An opened daemon; it is stopped when the condition holds.
        hand: Proposes and repairs.
        patient: Whether a failed attempt waits for its repair.
        repairing: Whether the candidate in hand is known to have failed.
        steps: What was committed.
    """

    daemon: Daemon
    hand: Hand
    patient: bool = True
    repairing: bool = False
    steps: list[Step] = field(default_factory=list)

    def until(self, session: Session, reached: Callable[[Session], bool]) -> Session:
        """Run until ``reached``, the end of the session, or a step that has to be answered.

        Raises:
            Refused: Nothing of that step was stored.
        """

        def observe(before: Session, step: Step, after: Session) -> None:
            silent(before, step, after)
            self.steps.append(step)
            if reached(after):
                self.daemon.stop.set()

        if reached(session):
            return session
        try:
            return self.daemon.run_session(
                session.id, observe, ideator=self.hand, wrapped=self._looked_at
            )
        finally:
            self.daemon.stop.clear()

    def _looked_at(self, state: State, handler: Handler) -> Handler:
        def handled(session: Session, ports: Ports) -> Step:
            step = handler(session, ports)
            if state is State.IDEATE and step.outcome is not Outcome.PROPOSED:
                raise Refused(str(step.detail.get("why", step.reason)))
            if state is State.MEASURE and self.repairing and step.outcome is not Outcome.REPAIRABLE:
                raise Refused(
                    "the candidate that was built has not failed; store its round before building "
                    "another one"
                )
            failed = _failed(step)
            limit = ports.config.limits.attempts_per_idea
            if self.patient and failed is not None and failed.number < limit:
                raise AttemptFailed(failed)
            return step

        return handled


def _failed(step: Step) -> Attempt | None:
    """The attempt with which an idea would be given up; None for a verdict on its merit."""
    if step.outcome not in _GIVEN_UP or step.work.verdict is None:
        return None
    if step.work.verdict.decision in (Decision.KEEP, Decision.DISCARD):
        return None
    return next((r for r in step.records if isinstance(r, Attempt)), None)
