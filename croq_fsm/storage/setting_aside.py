"""Putting sessions out of use without touching their history, and remembering that it was done.

What was cleaned is noted in the database, an event per session: a file that the user moved
away is then not reported as lost, however long its copy in the trash is kept.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, and_, insert, update

from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Status
from croq_fsm.errors import StaleSession
from croq_fsm.storage import rows, schema
from croq_fsm.storage.auditing import Auditor

CLEANED: Final = "cleaned"
RESTORED: Final = "restored"


@dataclass(frozen=True)
class Aside:
    """What is done to one session.

    Attributes:
        session: The session as it was read.
        reason: Why; becomes the reason of its end unless it has ended already.
        broken: Whether ``validate`` found it broken.
        paths: Files of it that are moved away.
    """

    session: Session
    reason: str
    broken: bool
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Cleaned:
    """What the cleanings so far add up to.

    Attributes:
        paths: Files that were moved away and not brought back.
        broken: Sessions that were found broken and put out of use.
    """

    paths: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()


def cleaned(auditor: Auditor) -> Cleaned:
    """Replay the notes."""
    paths: dict[tuple[str, str], set[str]] = {}
    broken: dict[tuple[str, str], bool] = {}
    for note in auditor.notes(CLEANED, RESTORED):
        key = (note.session_id, str(note.content["stamp"]))
        if note.kind == RESTORED:
            paths.pop(key, None)
            broken.pop(key, None)
        else:
            paths[key] = set(note.content["paths"])
            broken[key] = bool(note.content["broken"])
    return Cleaned(
        paths=frozenset(path for group in paths.values() for path in group),
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
            if entry.session.status is not Status.ENDED:
                _set(connection, entry.session, Status.ENDED, entry.reason)
            content = {
                "stamp": stamp,
                "reason": entry.reason,
                "broken": entry.broken,
                "paths": entry.paths,
                "status": entry.session.status.name,
                "former_reason": entry.session.reason,
            }
            _note(connection, entry.session.id, CLEANED, content, at)


def bring_back(engine: Engine, stamp: str, sessions: Sequence[Session], at: int) -> list[str]:
    """Undo ``set_aside`` for the sessions that nothing has happened to since.

    Returns:
        Ids of the sessions that are as they were before.
    """
    restored = []
    with engine.begin() as connection:
        notes = {
            note.session_id: note.content
            for note in Auditor(connection).notes(CLEANED)
            if note.content["stamp"] == stamp
        }
        for session in sessions:
            content = notes.get(session.id)
            if content is None:
                continue
            status = Status[content["status"]]
            if session.status is Status.ENDED and session.reason == content["reason"]:
                _set(connection, session, status, content["former_reason"])
            _note(connection, session.id, RESTORED, {"stamp": stamp}, at)
            restored.append(session.id)
    return restored


def _set(connection: Connection, session: Session, status: Status, reason: str) -> None:
    table = schema.sessions
    done = connection.execute(
        update(table)
        .where(
            and_(
                table.c.id == session.id,
                table.c.seq == session.seq,
                table.c.status == session.status.name,
            )
        )
        .values(status=status.name, reason=reason)
    )
    if done.rowcount != 1:
        raise StaleSession(f"session {session.id} moved on while it was being cleaned")


def _note(
    connection: Connection, session_id: str, kind: str, content: dict[str, Any], at: int
) -> None:
    connection.execute(
        insert(schema.messages).values(
            id=uuid.uuid4().hex,
            session_id=session_id,
            kind=kind,
            text=rows.dumps(json.loads(json.dumps(content))),
            created_at=at,
            taken_at=at,
        )
    )
