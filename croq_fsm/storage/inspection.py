"""Queries that only the faces ask, on a read-only connection."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    and_,
    func,
    inspect,
    literal_column,
    select,
    text,
)

from croq_fsm.domain.calls import Call
from croq_fsm.domain.profile import Profile
from croq_fsm.errors import ForeignSchema, UsageError
from croq_fsm.storage import imports, schema
from croq_fsm.storage.calls import calls_of
from croq_fsm.storage.engine import reader, translated
from croq_fsm.storage.reading import Reader, StoredMeasurement

_REVISIONS: Final = Path(__file__).parent / "migrations" / "versions"

#: Written out, for a partial index answers no question that has it as a parameter.
_FINAL: Final[ColumnElement[str]] = literal_column("'final'")


@dataclass(frozen=True)
class RunningChild:
    """A child that nobody has seen end.

    Attributes:
        label: What it is (``cc``, ``bench`` …).
        pid: Its process id.
        started_at: UTC microseconds.
        deadline_s: Seconds after which it is killed.
    """

    label: str
    pid: int
    started_at: int
    deadline_s: float


@dataclass(frozen=True)
class TakenProfile:
    """A profile with the round and the iteration that it was taken for."""

    round: int
    iteration: int
    profile: Profile


class Inspector(Reader):
    """The reader's queries, and those of this module."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._rows = connection

    def imports(self) -> list[imports.ImportedSession]:
        """Sessions of other programs."""
        return imports.sessions(self._rows)

    def imported_rows(self, import_id: str) -> list[dict[str, Any]]:
        """Rows of one of them."""
        return imports.rows_of(self._rows, import_id)

    def calls(self, session_id: str) -> list[Call]:
        """Calls of ideators to models and agents, oldest first."""
        return calls_of(self._rows, session_id)

    def running_children(self, run_id: str) -> list[RunningChild]:
        """Children of a run that have not ended, oldest first."""
        table = schema.children
        query = (
            select(table.c.label, table.c.pid, table.c.started_at, table.c.deadline_s)
            .where(and_(table.c.run_id == run_id, table.c.ended_at.is_(None)))
            .order_by(table.c.started_at)
        )
        return [RunningChild(*row) for row in self._rows.execute(query)]

    def finals(self, session_id: str) -> list[StoredMeasurement]:
        """The session's latest measurement at an end, one for each regime; empty without one."""
        table = schema.measurements
        query = select(func.max(table.c.seq)).where(
            and_(table.c.session_id == session_id, table.c.kind == _FINAL)
        )
        seq = self._rows.execute(query).scalar_one()
        found = [] if seq is None else self.measurements(session_id, [seq])
        return [m for m in found if m.kind == "final"]

    def commits(self, session_id: str) -> dict[int, str]:
        """Hashes of the session's commits, by the transition that promised them."""
        table = schema.intents
        query = (
            select(table.c.seq, table.c.result)
            .where(
                and_(
                    table.c.session_id == session_id,
                    table.c.kind == "git",
                    table.c.done_at.is_not(None),
                )
            )
            .order_by(table.c.seq)
        )
        return {row[0]: row[1] for row in self._rows.execute(query)}

    def stored_at(self, session_id: str, round_: int) -> int | None:
        """Number of the transition that stored a round; 0 means the baseline."""
        table = schema.transitions
        outcomes = ("STORED", "FINISHED") if round_ else ("MEASURED",)
        query = (
            select(table.c.seq)
            .where(
                and_(
                    table.c.session_id == session_id,
                    table.c.round == round_,
                    table.c.outcome.in_(outcomes),
                )
            )
            .order_by(table.c.seq.desc())
            .limit(1)
        )
        value: int | None = self._rows.execute(query).scalar_one_or_none()
        return value

    def profiles(self, session_id: str) -> list[TakenProfile]:
        """All profiles in order; grows with the history."""
        table = schema.profiles
        query = (
            select(table.c.round, table.c.iteration, table.c.profile)
            .where(table.c.session_id == session_id)
            .order_by(table.c.seq)
        )
        return [
            TakenProfile(row[0], row[1], Profile.model_validate_json(row[2]))
            for row in self._rows.execute(query)
        ]

    def transitions_after(self, session_id: str, seq: int) -> list[dict[str, Any]]:
        """Transition rows behind ``seq``, oldest first, with their detail read."""
        table = schema.transitions
        query = (
            select(table)
            .where(and_(table.c.session_id == session_id, table.c.seq > seq))
            .order_by(table.c.seq)
        )
        return [
            {**row, "detail": json.loads(row["detail"])}
            for row in self._rows.execute(query).mappings()
        ]


@dataclass(frozen=True)
class Archive:
    """A database that is open for reading only; each look is one short transaction."""

    path: Path
    _engine: Engine

    @contextmanager
    def look(self) -> Iterator[Inspector]:
        """Queries on one consistent state."""
        with translated(self.path), self._engine.begin() as connection:
            yield Inspector(connection)


@contextmanager
def archive(path: Path) -> Iterator[Archive]:
    """Open a database without ever writing it; works beside a living daemon and after a dead one.

    Raises:
        UsageError: There is no such file, or nothing is in it yet.
        ForeignSchema: It is another program's, or of another revision than this program's.
        DatabaseDamaged: It is damaged.
    """
    engine = reader(path)
    try:
        _check_revision(engine, path)
        yield Archive(path, engine)
    finally:
        engine.dispose()


def _check_revision(engine: Engine, path: Path) -> None:
    """Older rows lack columns that we would ask for; newer ones mean something else."""
    with engine.begin() as connection:
        if not inspect(connection).has_table("alembic_version"):
            raise UsageError(f"the database {path} is being made; try again in a moment")
        current = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if current == newest_revision():
        return
    from croq_fsm.storage import migrate  # noqa: PLC0415 - alembic is slow to import

    migrate.refuse_newer(current, path)
    raise ForeignSchema(
        f"{path} has the older schema {current}; 'croq-fsm resume' brings it to "
        f"{newest_revision()} after a backup"
    )


def newest_revision() -> str:
    """Newest revision by the names of the migration files, without loading alembic."""
    return max(path.stem.partition("_")[0] for path in _REVISIONS.glob("r*.py")).removeprefix("r")
