"""Queries that look at everything: for ``validate``, ``rebuild`` and ``clean``.

Unlike the queries of the daemon these grow with the length of the history.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import and_, select, text

from croq_fsm.domain.records import Attempt
from croq_fsm.domain.work import Idea
from croq_fsm.errors import UsageError
from croq_fsm.storage import migrate, schema
from croq_fsm.storage.engine import reader, refuse_loss, translated
from croq_fsm.storage.reading import Reader

#: What a row that this program did not write can raise when it is read as a value.
UNREADABLE: Final = (ValueError, LookupError, TypeError, AttributeError, zlib.error)


class NothingYet(UsageError):
    """No session was ever made here."""


@dataclass(frozen=True)
class Stand:
    """Where a session stands, in plain words, so that a damaged row can be named and set aside."""

    id: str
    dsl: str
    state: str
    seq: int
    status: str
    reason: str


@dataclass(frozen=True)
class StoredIdea:
    """An idea as it was taken, with the number of the transition that took it."""

    round: int
    fingerprint: str
    idea: Idea


@dataclass(frozen=True)
class StoredProfile:
    """What a profile says about itself, without its counters."""

    seq: int
    round: int
    iteration: int
    bottleneck: str
    binary: str


@dataclass(frozen=True)
class StoredIntent:
    """A promised effect, open or done.

    Attributes:
        seq: Transition that promised it.
        kind: ``publish`` or ``git``.
        done: Whether it is known to be done.
        result: What came of it; the commit's hash for ``git``.
        paths: Files that an open promise still has to write.
    """

    seq: int
    kind: str
    done: bool
    result: str
    paths: frozenset[str]


@dataclass(frozen=True)
class Note:
    """An event about a session that is no transition, for example that it was cleaned."""

    session_id: str
    kind: str
    content: dict[str, Any]
    at: int


class Auditor(Reader):
    """The daemon's queries, and those that only an audit needs."""

    def damage(self) -> list[str]:
        """What ``integrity_check`` says; empty when the file is whole."""
        lines = [str(row[0]) for row in self._connection.execute(text("PRAGMA integrity_check"))]
        return [] if lines == ["ok"] else lines

    def dangling(self) -> list[str]:
        """Rows that point to rows which are not there."""
        found = self._connection.execute(text("PRAGMA foreign_key_check"))
        return [f"{row[0]} row {row[1]} points into {row[2]}" for row in found]

    def stands(self) -> list[Stand]:
        """All sessions, oldest first; also those whose rows cannot be read as values."""
        table = schema.sessions
        query = select(
            table.c.id, table.c.dsl, table.c.state, table.c.seq, table.c.status, table.c.reason
        ).order_by(table.c.id)
        return [Stand(**row) for row in self._all(query)]

    def last_transition(self, session_id: str) -> tuple[int, int]:
        """Number and round of the last transition; zeros when there is none."""
        table = schema.transitions
        query = (
            select(table.c.seq, table.c.round)
            .where(table.c.session_id == session_id)
            .order_by(table.c.seq.desc())
            .limit(1)
        )
        row = self._connection.execute(query).first()
        return (0, 0) if row is None else (row[0], row[1])

    def ideas(self, session_id: str) -> list[StoredIdea]:
        """All ideas, in the order of their rounds."""
        table = schema.ideas
        query = select(table).where(table.c.session_id == session_id).order_by(table.c.round)
        return [
            StoredIdea(row["round"], row["fingerprint"], Idea.model_validate_json(row["idea"]))
            for row in self._all(query)
        ]

    def tried(self, session_id: str) -> set[str]:
        """Normalised hashes that must not be tried again."""
        table = schema.tried
        query = select(table.c.normalised).where(table.c.session_id == session_id)
        return {str(row["normalised"]) for row in self._all(query)}

    def attempts(self, session_id: str) -> list[Attempt]:
        """All failed attempts, in order."""
        table = schema.attempts
        query = select(table).where(table.c.session_id == session_id).order_by(table.c.ordinal)
        return [self._attempt(row) for row in self._all(query)]

    def profiles(self, session_id: str) -> list[StoredProfile]:
        """All profiles, in order."""
        table = schema.profiles
        query = (
            select(
                table.c.seq, table.c.round, table.c.iteration, table.c.bottleneck, table.c.binary
            )
            .where(table.c.session_id == session_id)
            .order_by(table.c.seq)
        )
        return [StoredProfile(**row) for row in self._all(query)]

    def intents(self, session_id: str) -> list[StoredIntent]:
        """All promised effects, in order."""
        table = schema.intents
        query = (
            select(table)
            .where(table.c.session_id == session_id)
            .order_by(table.c.seq, table.c.part)
        )
        return [
            StoredIntent(
                seq=row["seq"],
                kind=row["kind"],
                done=row["done_at"] is not None,
                result=row["result"] or "",
                paths=_paths(row["payload"]) if row["done_at"] is None else frozenset(),
            )
            for row in self._all(query)
        ]

    def notes(self, *kinds: str) -> list[Note]:
        """Events of these kinds, oldest first."""
        table = schema.messages
        query = (
            select(table)
            .where(and_(table.c.kind.in_(kinds), table.c.session_id.is_not(None)))
            .order_by(table.c.created_at)
        )
        return [
            Note(row["session_id"], row["kind"], json.loads(row["text"]), row["created_at"])
            for row in self._all(query)
        ]


@contextmanager
def opened(path: Path) -> Iterator[Auditor]:
    """Audit a database in one read-only transaction; the file is never changed.

    Raises:
        NothingYet: There is no database, or nothing was ever committed to it.
        UsageError: It has to be brought up to date first.
        ForeignSchema: It is newer than this program, or another program's.
        DatabaseDamaged: It is no whole SQLite database.
    """
    refuse_loss(path)
    if not path.exists() or path.stat().st_size == 0:
        raise NothingYet(f"no database at {path}; start a session first, or name its --root")
    engine = reader(path)
    try:
        current = migrate.current_revision(engine)
        if current is None:
            raise NothingYet(f"nothing was committed to {path} yet; start a session first")
        migrate.refuse_newer(current, path)
        if current != migrate.head_revision():
            raise UsageError(
                f"{path} has the older schema {current}; 'croq-fsm resume' brings it up to date"
            )
        with translated(path), engine.begin() as connection:
            yield Auditor(connection)
    finally:
        engine.dispose()


def _paths(payload: str | None) -> frozenset[str]:
    """Files that a promise names."""
    content: dict[str, Any] = json.loads(payload or "{}")
    entries = [*content.get("artifacts", ()), *content.get("logs", ())]
    entries += content.get("snapshots", ())
    return frozenset(str(entry["path"]) for entry in entries)
