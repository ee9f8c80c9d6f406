"""``reinforce``, ``resume-state`` and ``activity-trace``: where a session stands, from its rows."""

from __future__ import annotations

from typing import Any, Final

from croq_fsm.domain import escalation
from croq_fsm.domain.guards import RULES
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import State
from croq_fsm.storage.reading import Reader
from croq_fsm.tools.answers import Answer
from croq_fsm.tools.places import Key, find, session_of
from croq_fsm.tools.plans import PLAN, Plan

_NOTHING: Final = 2
_SHOWN: Final = 20
#: What to call next, by the state in which a session waits.
NEXT: Final = {
    State.INIT: "store-baseline",
    State.BASELINE: "store-baseline",
    State.PROFILE: "ncu-profile",
    State.IDEATE: "checkpoint write, then write the source and call build-iter",
    State.IMPLEMENT: "mend the source and call build-iter, or give the idea up with store-round",
    State.MEASURE: "checkpoint verify, then store-round",
    State.DECIDE: "store-round",
    State.STORE: "store-round",
}


def reinforce(reader: Reader, key: Key) -> Answer:
    """The rules and the standing, for a reader whose memory is short."""
    session = session_of(reader, key)
    values = _standing(reader, session)
    values["rules"] = {rule.key: rule.text for rule in RULES}
    return Answer(values)


def resume_state(reader: Reader, key: Key, plan: Plan | None) -> Answer:
    """Where a session can be taken up. Exit code 2 when there is none of exactly this key."""
    session = find(reader, key)
    if session is None:
        return Answer({"status": "NONE", "key": str(key)}, code=_NOTHING)
    last = reader.recent_rounds(session.id, 1)
    values = {
        **_standing(reader, session),
        "next_iter_number": session.next_iteration,
        "last_round": session.round,
        "last_iter": last[-1].kernel if last else None,
        "last_decision": last[-1].decision.name if last else None,
        "last_bottleneck": str(last[-1].bottleneck) if last else None,
        "open_checkpoint": None if plan is None else {"tag": plan.tag, "idea": plan.idea},
    }
    return Answer(values)


def activity_trace(reader: Reader, key: Key) -> Answer:
    """The latest transitions: what was done, not what anybody said."""
    session = session_of(reader, key)
    rows = reader.transitions(session.id, limit=_SHOWN)
    kept = ("seq", "at", "from_state", "outcome", "to_state", "round")
    return Answer({"session": session.id, "transitions": [{k: r[k] for k in kept} for r in rows]})


def plan_of(reader: Reader, key: Key) -> Plan | None:
    """The plan of the round in hand, read-only."""
    session = find(reader, key)
    text = None if session is None else reader.last_message(session.id, PLAN)
    plan = None if text is None else Plan.model_validate_json(text)
    return plan if session and plan and plan.round == session.work.round else None


def _standing(reader: Reader, session: Session) -> dict[str, Any]:
    task, number = session.task, session.best_iteration
    best = None if number is None else reader.iteration(session.id, number)
    library_s = session.library_seconds
    return {
        "session": session.id,
        "dsl": task.dsl,
        "shape_key": task.shape_key,
        "model": task.model,
        "state": session.state.name,
        "next": NEXT.get(session.state, "nothing: it has ended"),
        "round": session.round,
        "current_best_kernel": best.name if best else None,
        "current_best_iter": number,
        "current_best_tflops": task.tflops(best.seconds) if best else None,
        "baseline_tflops": task.tflops(library_s) if library_s else None,
        "ratio": library_s / best.seconds if best and library_s else None,
        "consecutive_discards": session.streak,
        "escalation": escalation.level(session.streak),
        "advice": escalation.advice(session.streak),
        "counts": {decision.name: n for decision, n in session.counts.items()},
        "reason": session.reason,
    }
