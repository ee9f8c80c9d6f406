"""Bringing a database to this program's schema: backup, one transaction, or a refusal."""

from __future__ import annotations

import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from croq_fsm import faults
from croq_fsm.errors import DatabaseDamaged, ForeignSchema
from croq_fsm.storage import files
from croq_fsm.storage.engine import translated
from croq_fsm.storage.schema import APPLICATION_ID

_END: Final = "end"
_DAILY: Final = "daily"
_DAY_S: Final = 86400.0
_KEPT: Final = 7
_SCRIPTS: Final = Path(__file__).parent / "migrations"


def upgrade(engine: Engine, path: Path) -> str:
    """Upgrade to the newest revision that this program knows and return it.

    A database with rows is backed up first. Must run under the root's lock.

    Raises:
        ForeignSchema: The database was written by a newer program.
    """
    config = _alembic_config()
    scripts = ScriptDirectory.from_config(config)
    head = scripts.get_current_head() or ""
    with translated(path):
        current = current_revision(engine)
    refuse_newer(current, path)
    if current == head:
        return head
    if current is not None:
        backup(path, label=f"before-{head}")
    with translated(path), engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.execute(text(f"PRAGMA application_id = {APPLICATION_ID}"))
        broken = connection.execute(text("PRAGMA foreign_key_check")).first()
        if broken is not None:
            raise DatabaseDamaged(f"migration of {path} to {head} breaks a reference: {broken}")
    return head


def head_revision() -> str:
    """Newest revision that this program knows."""
    return ScriptDirectory.from_config(_alembic_config()).get_current_head() or ""


def current_revision(engine: Engine) -> str | None:
    """Revision that the database is at; None for a new file."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def refuse_newer(current: str | None, path: Path) -> None:
    """Raise ForeignSchema for a revision that this program does not know."""
    known = {
        script.revision
        for script in ScriptDirectory.from_config(_alembic_config()).walk_revisions()
    }
    if current is not None and current not in known:
        raise ForeignSchema(
            f"{path} has schema {current}, which is newer than this program; "
            "install the newer croq_fsm. Nothing was changed"
        )


def daily_backup(path: Path, now: float) -> Path | None:
    """Back up unless the newest daily backup is younger than a day; the last seven are kept."""
    folder = path.parent / "backups"
    known = sorted(folder.glob(f"*-{_DAILY}.sqlite3"))
    # A clock that was set back must not end the backups for as long.
    if known and abs(now - known[-1].stat().st_mtime) < _DAY_S:
        return None
    return _kept_few(path, _DAILY)


def end_backup(path: Path) -> Path:
    """Back up what a session has come to; the last seven of these are kept.

    The first daily backup of a root is made before its first night, and holds nothing of it.
    """
    return _kept_few(path, _END)


def _kept_few(path: Path, label: str) -> Path:
    made = backup(path, label)
    for old in sorted(made.parent.glob(f"*-{label}.sqlite3"))[:-_KEPT]:
        old.unlink(missing_ok=True)
    return made


def backup(path: Path, label: str) -> Path:
    """Copy a live database through SQLite's own backup interface and check the copy.

    It appears under its name when it is whole and on the disk, never before.
    """
    folder = path.parent / "backups"
    folder.mkdir(exist_ok=True)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    target = folder / f"{stamp}-{label}.sqlite3"
    copy_database(path, target)
    return target


def copy_database(source: Path, target: Path) -> None:
    """A checked, durable copy of a database, in place by one rename.

    Raises:
        DatabaseDamaged: The copy fails its integrity check; ``target`` is as before.
    """
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        verdict = _copied(source, temporary)
        if verdict != "ok":
            raise DatabaseDamaged(f"a copy of {source} fails its integrity check: {verdict}")
        faults.point("backup_copied")
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(target)
        files.fsync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _copied(source: Path, target: Path) -> str:
    """Copy; what ``integrity_check`` says of the copy."""
    target.unlink(missing_ok=True)
    with translated(source):
        reader = sqlite3.connect(f"file:{source}?mode=ro", uri=True)
        copy = sqlite3.connect(target)
        try:
            reader.backup(copy)
            return str(copy.execute("PRAGMA integrity_check").fetchone()[0])
        finally:
            copy.close()
            reader.close()


def _alembic_config() -> AlembicConfig:
    config = AlembicConfig()
    config.set_main_option("script_location", str(_SCRIPTS))
    return config
