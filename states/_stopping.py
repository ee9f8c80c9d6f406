"""Whether a round was the session's last, and why. Every session ends in a named reason."""

from __future__ import annotations

from croq_fsm.domain.records import Round
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision
from croq_fsm.ports import Ports

#: How messages about a compiler's own crash begin; see the DSL adapters.
COMPILER_CRASH = "the compiler crashed"


def reason(session: Session, ports: Ports, record: Round) -> str | None:
    """Why the session ends with this round, or None to go on."""
    limits = ports.config.limits
    wish = ports.control.stop_reason()
    if wish is not None:
        return wish
    rounds = session.task.rounds or limits.rounds
    if rounds and record.round >= rounds:
        return f"budget of {rounds} rounds is used"
    if session.task.deadline is not None and ports.clock.now() >= session.task.deadline:
        return "the deadline has passed"
    spent = _spent(session, ports)
    if spent is not None:
        return spent
    streak = 0 if record.decision is Decision.KEEP else session.streak + 1
    if limits.plateau_rounds and streak >= limits.plateau_rounds:
        return f"plateau: {streak} rounds without a KEEP"
    return _compiler_crashes(ports, record)


def _spent(session: Session, ports: Ports) -> str | None:
    """Budgets of the task in seconds on the device and in tokens."""
    seconds, tokens = session.task.gpu_seconds, session.task.tokens
    if seconds is not None and ports.history.device_seconds() >= seconds:
        return f"budget of {seconds:g} s on the device is used"
    if tokens is not None and ports.history.tokens() >= tokens:
        return f"budget of {tokens} tokens is used"
    return None


def _compiler_crashes(ports: Ports, record: Round) -> str | None:
    limit = ports.config.limits.compiler_crashes
    latest = [*ports.history.recent_rounds(limit - 1), record]
    crashed = [r for r in latest if r.reason.startswith(COMPILER_CRASH)]
    if len(crashed) < limit:
        return None
    return f"the compiler crashed in {limit} rounds in a row; that is a bug for its authors"
