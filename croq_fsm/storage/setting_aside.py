"""Putting sessions out of use without touching their history, and remembering that it was done.

What was cleaned is noted in the database, an event per session: a file that the user moved
away is then not reported as lost, however long its copy in the trash is kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, and_, insert, update

from croq_fsm.domain.states import Status
from croq_fsm.errors import StaleSession
from croq_fsm.storage import rows, schema
from croq_fsm.storage.auditing import Auditor, Stand

CLEANED: Final = "cleaned"
RESTORED: Final = "restored"


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

    The state of the machine and its transitions stay as they are, so that ``resume --reopen``
    or ``clean --undo`` can go on from there.

    Raises:
        StaleSession: A session moved on since it was read; nothing is written.
    """
    with engine.begin() as connection:
        for entry in aside:
            if entry.ends and entry.stand.status != Status.ENDED.name:
                _set(connection, entry.stand, Status.ENDED.name, entry.reason)
            content = {
                "stamp": stamp,
                "reason": entry.reason,
                "broken": entry.broken,
                "paths": entry.paths,
                "seq": entry.stand.seq,
                "status": entry.stand.status,
                "former_reason": entry.stand.reason,
            }
            _note(connection, entry.stand.id, CLEANED, content, at)


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
            stand = stands[note.session_id]
            if stand.status == Status.ENDED.name and stand.reason == note.content["reason"]:
                _set(connection, stand, note.content["status"], note.content["former_reason"])
            _note(connection, stand.id, RESTORED, {"stamp": stamp}, at)
    return [note.session_id for note in notes]


def _set(connection: Connection, stand: Stand, status: str, reason: str) -> None:
    table = schema.sessions
    done = connection.execute(
        update(table)
        .where(
            and_(
                table.c.id == stand.id,
                table.c.seq == stand.seq,
                table.c.status == stand.status,
            )
        )
        .values(status=status, reason=reason)
    )
    if done.rowcount != 1:
        raise StaleSession(f"session {stand.id} moved on while it was being cleaned")


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
