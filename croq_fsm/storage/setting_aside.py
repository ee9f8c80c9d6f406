"""Putting sessions out of use without touching their history, and remembering that it was done.

That is a transition row of its own (outcome ``set_aside``, to FAILED), and so is the way back
(outcome ``reopened``): no edges of the machine, but links of the same chain.

What was cleaned is noted in the database, an event per session: a file that the user moved
away is then not reported as lost, however long its copy in the trash is kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, and_, insert, update

from croq_fsm.domain.states import State, Status
from croq_fsm.errors import StaleSession
from croq_fsm.storage import rows, schema
from croq_fsm.storage.auditing import Auditor, Stand

CLEANED: Final = "cleaned"
RESTORED: Final = "restored"

#: Outcome of the row that ends a session from outside the machine.
SET_ASIDE: Final = "set_aside"
#: Outcome of the row that puts an ended session back to work.
REOPENED: Final = "reopened"


@dataclass(frozen=True)
class Aside:
    """What is done to one session.

    Attributes:
        stand: Where the session stood when it was read.
        reason: Why; becomes the reason of its end.
        paths: Files of it that are moved away.
        ends: Whether the session is put out of use, or only files of it are moved.
        broken: Whether its record was found broken.
    """

    stand: Stand
    reason: str
    paths: tuple[str, ...]
    ends: bool
    broken: bool = False


@dataclass(frozen=True)
class Cleaned:
    """What the cleanings so far add up to.

    Attributes:
        moved: Session, step at which it stood, and path of each file that was moved away and
            not brought back.
        broken: Sessions that were found broken and put out of use.
    """

    moved: frozenset[tuple[str, int, str]] = frozenset()
    broken: frozenset[str] = frozenset()

    def excused(self, seqs: dict[str, int]) -> frozenset[tuple[str, str]]:
        """Sessions and paths that may be missing, because the session has not gone on since.

        Args:
            seqs: Step at which each session stands now.
        """
        return frozenset((s, path) for s, seq, path in self.moved if seqs.get(s) == seq)


def cleaned(auditor: Auditor) -> Cleaned:
    """Replay the notes."""
    moved: dict[tuple[str, str], set[tuple[str, int, str]]] = {}
    broken: dict[tuple[str, str], bool] = {}
    for note in auditor.notes(CLEANED, RESTORED):
        key = (note.session_id, str(note.content["stamp"]))
        if note.kind == RESTORED:
            moved.pop(key, None)
            broken.pop(key, None)
        else:
            seq = int(note.content["seq"])
            moved[key] = {(note.session_id, seq, str(path)) for path in note.content["paths"]}
            broken[key] = bool(note.content["broken"])
    return Cleaned(
        moved=frozenset(entry for group in moved.values() for entry in group),
        broken=frozenset(session for (session, _), is_broken in broken.items() if is_broken),
    )


def set_aside(engine: Engine, stamp: str, aside: Sequence[Aside], at: int) -> None:
    """End sessions that have not ended, and note what is cleaned; all or nothing.

    Raises:
        StaleSession: A session moved on since it was read; nothing is written.
    """
    with engine.begin() as connection:
        for entry in aside:
            stand = entry.stand
            seq = stand.seq
            if entry.ends and stand.status != Status.ENDED.name:
                failed = {"state": State.FAILED.name, "status": Status.ENDED.name}
                seq = _move(connection, stand, SET_ASIDE, {**failed, "reason": entry.reason}, at)
            content = {
                "stamp": stamp,
                "reason": entry.reason,
                "broken": entry.broken,
                "paths": entry.paths,
                "seq": seq,
                "former": {"state": stand.state, "status": stand.status, "reason": stand.reason},
            }
            _note(connection, stand.id, CLEANED, content, at)


def bring_back(engine: Engine, stamp: str, at: int) -> list[str]:
    """Undo ``set_aside`` for the sessions that nothing has happened to since.

    Returns:
        Ids of the sessions that are as they were before.
    """
    with engine.begin() as connection:
        auditor = Auditor(connection)
        notes = [note for note in auditor.notes(CLEANED) if note.content["stamp"] == stamp]
        stands = {stand.id: stand for stand in auditor.stands()}
        for note in notes:
            stand, former = stands[note.session_id], note.content["former"]
            untouched = stand.seq == note.content["seq"]
            if untouched and former["status"] != stand.status:
                _move(connection, stand, REOPENED, former, at)
            _note(connection, stand.id, RESTORED, {"stamp": stamp}, at)
    return [note.session_id for note in notes]


def _move(
    connection: Connection, stand: Stand, outcome: str, values: dict[str, str], at: int
) -> int:
    """One transition from outside the machine; returns its number."""
    last, round_ = Auditor(connection).last_transition(stand.id)
    # The row of a damaged session may say anything about where it stands.
    seq = max(last, stand.seq) + 1
    connection.execute(
        insert(schema.transitions).values(
            session_id=stand.id,
            seq=seq,
            at=at,
            run_id="",
            from_state=stand.state,
            outcome=outcome,
            to_state=values["state"],
            round=round_,
            detail=rows.dumps({"reason": values["reason"]}),
        )
    )
    table = schema.sessions
    same = and_(
        table.c.id == stand.id,
        table.c.seq == stand.seq,
        table.c.state == stand.state,
        table.c.status == stand.status,
    )
    done = connection.execute(update(table).where(same).values(**values, seq=seq, updated_at=at))
    if done.rowcount != 1:
        raise StaleSession(f"session {stand.id} moved on while it was being cleaned")
    return seq


def _note(
    connection: Connection, session_id: str, kind: str, content: dict[str, Any], at: int
) -> None:
    connection.execute(
        insert(schema.messages).values(
            id=uuid.uuid4().hex,
            session_id=session_id,
            kind=kind,
            text=rows.dumps(content),
            created_at=at,
            taken_at=at,
        )
    )
