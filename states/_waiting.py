"""Back-off of states that wait for others on the device; every wait has an end."""

from __future__ import annotations

from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Outcome
from croq_fsm.ports import Ports

_LONGEST_DOUBLINGS = 6


def back_off(session: Session, ports: Ports, why: str, busy: Outcome, give_up: Outcome) -> Step:
    """Try the state again later, doubling the pause, until ``contention.wait_s`` is used up."""
    settings = ports.config.contention
    waits = session.work.waits + 1
    waited = settings.poll_s * (2 ** min(waits, 60) - 1)
    if waited > settings.wait_s and give_up is not busy:
        reason = f"{why}; gave up after {settings.wait_s:.0f} s of waiting (contention.wait_s)"
        return Step(give_up, session.work, {"reason": reason}, reason=reason)
    pause = min(settings.poll_s * 2 ** min(waits - 1, _LONGEST_DOUBLINGS), settings.wait_s)
    work = session.work.model_copy(update={"waits": waits, "not_before": ports.clock.now() + pause})
    return Step(busy, work, {"why": why, "pause_s": pause})
