"""``measure`` and ``store-round``: the engine verifies, times, decides and stores."""

from __future__ import annotations

from typing import Any, Final

from croq_fsm.daemon import Daemon
from croq_fsm.domain import escalation
from croq_fsm.domain.records import Round
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import State
from croq_fsm.errors import UsageError
from croq_fsm.tools.answers import Answer, claims
from croq_fsm.tools.hand import AttemptFailed, Drive, Hand
from croq_fsm.tools.places import Key, session_of

_FAILED: Final = 1
_IN_HAND: Final = frozenset({State.IMPLEMENT, State.MEASURE, State.DECIDE, State.STORE})


def measure(daemon: Daemon, key: Key) -> Answer:
    """Verify and time the built candidate, until it is decided; a wrong one may be mended.

    Exit code 1: it is wrong, crashes or hangs.

    Raises:
        UsageError: Nothing is built.
    """
    with daemon.repository.read() as reader:
        session = session_of(reader, key)
    if session.state not in _IN_HAND or session.work.build is None:
        raise UsageError("nothing is built in this round; call 'tool build-iter' first")
    try:
        session = Drive(daemon, Hand(session.task.model)).until(
            session, lambda s: s.state is State.STORE
        )
    except AttemptFailed as exc:
        values = {
            "status": "attempt_failed",
            "attempt": exc.attempt.number,
            "kind": exc.attempt.kind.name,
            "message": exc.attempt.message,
            "log": exc.log,
        }
        return Answer(values, code=_FAILED)
    verdict = session.work.verdict
    if verdict is None:
        return Answer({"status": "not measured", "reason": session.reason}, code=_FAILED)
    tflops = None if verdict.seconds is None else session.task.tflops(verdict.seconds)
    values = {
        "status": "measured",
        "iter": session.work.idea.name if session.work.idea else None,
        "decision": verdict.decision.name,
        "reason": verdict.reason,
        "tflops": tflops,
        "ratio": verdict.estimate.ratio if verdict.estimate else None,
    }
    return Answer(values)


def store_round(daemon: Daemon, key: Key, claimed: dict[str, object]) -> Answer:
    """Finish the round in hand: whatever is not done yet is done, then it is stored.

    Raises:
        UsageError: No idea is in hand.
    """
    with daemon.repository.read() as reader:
        session = session_of(reader, key)
    if session.state not in _IN_HAND:
        raise UsageError(
            f"session {session.id} is at {session.state}: no round is in hand; figures are stored "
            "for what the engine built and measured, and for nothing else"
        )
    done = session.round
    drive = Drive(daemon, Hand(session.task.model), patient=False)
    session = drive.until(session, lambda s: s.round > done)
    with daemon.repository.read() as reader:
        stored = reader.recent_rounds(session.id, 1)
        best = reader.iteration(session.id, session.best_iteration or 1)
    if session.round == done or not stored:
        return Answer({"status": "not stored", "state": session.state.name,
                       "reason": session.reason}, code=_FAILED)  # fmt: skip
    record = stored[-1]
    values = _told(session, record)
    values["best"] = {"kernel": best.name, "tflops": session.task.tflops(best.seconds)}
    own = {**values, "idea": record.summary, "expected_gain": None}
    return Answer(
        values,
        warnings=claims({k: v for k, v in claimed.items() if k != "expected_gain"}, own),
        note="[store_round] STORE complete",
    )


def _told(session: Session, record: Round) -> dict[str, Any]:
    return {
        "status": "stored",
        "session": session.id,
        "round": record.round,
        "iter": None if record.iteration is None else f"iter{record.iteration:03d}",
        "kernel": record.kernel,
        "tflops": record.tflops,
        "decision": record.decision.name,
        "bottleneck": str(record.bottleneck),
        "category": str(record.category),
        "ratio": record.ratio,
        "reason": record.reason,
        "attempts": record.attempts,
        "state": session.state.name,
        "streak": session.streak,
        "advice": escalation.advice(session.streak),
    }
