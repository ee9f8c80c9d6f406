"""The transitions of a session form one chain along legal edges, up to where it stands."""

from __future__ import annotations

from typing import Any

from croq_fsm import FSM_VERSION
from croq_fsm.domain import guards
from croq_fsm.domain.states import Outcome, State, Status
from croq_fsm.machine import TABLE
from croq_fsm.storage.setting_aside import REOPENED, SET_ASIDE
from croq_fsm.validation.record import Findings, Record


def check(record: Record) -> Findings:
    """Sequence, edges, the place where the session stands, and its status."""
    yield from _links(record)
    yield from _stand(record)
    yield from _status(record)
    yield from _checkpoint(record)


def _links(record: Record) -> Findings:
    state = State.INIT.name
    for number, row in enumerate(record.transitions, start=1):
        where = f"transitions seq {row['seq']}"
        if row["seq"] != number:
            yield record.problem("transition-gap", where, f"transition {number} is missing")
            return
        if row["from_state"] != state:
            text = f"begins at {row['from_state']}, but the one before ended at {state}"
            yield record.problem("transition-chain", where, text)
        edge = _illegal(row)
        if edge is not None:
            yield record.problem("illegal-edge", where, edge)
        state = row["to_state"]


def _illegal(row: dict[str, Any]) -> str | None:
    """Why the edge of a transition is none, or None."""
    told = f"{row['from_state']} --{row['outcome']}--> {row['to_state']}"
    try:
        source, target = State[row["from_state"]], State[row["to_state"]]
        if row["outcome"] == REOPENED:
            legal = source.is_final and not target.is_final
        elif row["outcome"] == SET_ASIDE:
            legal = not source.is_final and target is State.FAILED
        else:
            legal = TABLE.get((source, Outcome[row["outcome"]])) is target
    except KeyError:
        legal = False
    return None if legal else f"{told} is no edge of the machine"


def _stand(record: Record) -> Findings:
    session, rows = record.session, record.transitions
    last_seq = rows[-1]["seq"] if rows else 0
    last_state = rows[-1]["to_state"] if rows else State.INIT.name
    if (session.seq, session.state.name) != (last_seq, last_state):
        yield record.problem(
            "session-row",
            "sessions",
            f"the session stands at {session.state} (step {session.seq}), its last transition "
            f"led to {last_state} (step {last_seq})",
        )


def _status(record: Record) -> Findings:
    session = record.session
    ended = session.status is Status.ENDED
    if session.state.is_final is not ended:
        text = f"the state is {session.state}, but the status is {session.status}"
        yield record.problem("session-status", "sessions", text)
    if ended and not session.reason:
        yield record.problem("session-status", "sessions", "the session ended without a reason")
    if session.fsm_version != FSM_VERSION:
        yield record.problem(
            "fsm-version",
            "sessions",
            f"made by version {session.fsm_version} of the state machine, this program has "
            f"version {FSM_VERSION}",
            cure="finish the session with the program that began it",
        ).as_warning()


def _checkpoint(record: Record) -> Findings:
    """The candidate in hand is the one that was planned (drift)."""
    work = record.session.work
    if not work.candidate_hash or work.candidate is None:
        return
    if guards.identity(work.candidate) != work.candidate_hash:
        yield record.problem(
            "checkpoint-drift",
            "sessions work",
            "the candidate in hand is not the one that its checkpoint names",
        )
