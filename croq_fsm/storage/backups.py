"""Going back to a backup of the database; what was there is kept beside it.

::

    <state>/backups/<stamp>-daily.sqlite3            made each day, the last seven stay
    <state>/backups/<stamp>-end.sqlite3              made when a session ends, the last seven stay
    <state>/backups/<stamp>-before-<rev>.sqlite3     made before a change of the schema
    <state>/backups/replaced-<stamp>/                what a restore has replaced
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from croq_fsm.errors import CroqError, DatabaseDamaged, UsageError
from croq_fsm.storage import files, migrate
from croq_fsm.storage.engine import mark_used, reader

_SIDES: Final = ("", "-wal", "-shm")


@dataclass(frozen=True)
class Backup:
    """One copy.

    Attributes:
        path: The file.
        problem: Why it cannot be used; "" when it can.
        sessions: How many sessions it holds.
        rounds: How many rounds they have.
        last_at: Time of its last transition, UTC microseconds; 0 when there is none.
    """

    path: Path
    problem: str = ""
    sessions: int = 0
    rounds: int = 0
    last_at: int = 0


def found(database: Path) -> list[Backup]:
    """All backups, newest first, each looked at."""
    return [
        _look(path)
        for path in sorted((database.parent / "backups").glob("*.sqlite3"), reverse=True)
    ]


def chosen(database: Path, name: str | None) -> Backup:
    """The backup of that name, or the newest one that is whole.

    Raises:
        UsageError: There is none.
        DatabaseDamaged: The named one is not whole.
    """
    every = found(database)
    if name is None:
        whole = [backup for backup in every if not backup.problem]
        if not whole:
            raise UsageError(f"no whole backup in {database.parent / 'backups'}")
        return whole[0]
    named = [b for b in every if b.path.name == Path(name).name or b.path.name.startswith(name)]
    if len(named) != 1:
        raise UsageError(
            f"{name!r} names {len(named)} backups, must be one; 'croq-fsm restore --list' has them"
        )
    if named[0].problem:
        raise DatabaseDamaged(f"backup {named[0].path} cannot be used: {named[0].problem}")
    return named[0]


def restore(database: Path, backup: Backup) -> Path | None:
    """Put a backup in the place of the database; must run under the root's lock.

    What is there is moved aside first, whatever it is, and never opened. A crash in between
    leaves no database, which every start refuses by name: run the restore again then.

    Returns:
        Folder of what was replaced; None when there was nothing.
    """
    present = [p for side in _SIDES if (p := database.with_name(database.name + side)).exists()]
    aside = None
    # Before anything moves: whatever happens now, an empty place is no new beginning.
    mark_used(database)
    if present:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
        aside = database.parent / "backups" / f"replaced-{stamp}"
        files.make_folder(aside)
        for path in present:
            path.rename(aside / path.name)
        files.fsync_folder(aside)
        files.fsync_folder(database.parent)
    migrate.copy_database(backup.path, database)
    return aside


def _look(path: Path) -> Backup:
    try:
        engine = reader(path)
    except CroqError as exc:
        return Backup(path, str(exc))
    try:
        migrate.refuse_newer(migrate.current_revision(engine), path)
    except CroqError as exc:
        return Backup(path, str(exc))
    finally:
        engine.dispose()
    return _counted(path)


def _counted(path: Path) -> Backup:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
        counts = [
            connection.execute(query).fetchone()[0]
            for query in (
                "SELECT count(*) FROM sessions",
                "SELECT count(*) FROM rounds",
                "SELECT coalesce(max(at), 0) FROM transitions",
            )
        ]
    except sqlite3.DatabaseError as exc:
        return Backup(path, str(exc))
    finally:
        connection.close()
    return Backup(path, "" if verdict == "ok" else str(verdict), *counts)
