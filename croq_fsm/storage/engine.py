"""Opening the database: pragmas, transactions, and the refusals that keep it whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.pool import StaticPool

from croq_fsm.errors import (
    CroqError,
    DatabaseDamaged,
    DiskFull,
    DiskReadOnly,
    ForeignSchema,
    UsageError,
)
from croq_fsm.storage import disk
from croq_fsm.storage.schema import APPLICATION_ID

_BUSY_TIMEOUT_S: Final = 30.0
_JOURNAL_LIMIT_BYTES: Final = 64 << 20
#: Largest database that is checked whole at each opening.
_CHECKED_BYTES: Final = 64 << 20
_MAGIC: Final = b"SQLite format 3\0"
#: First release without the WAL-reset bug (SQLite 3.51.3, back-ported to two older lines).
SAFE_SQLITE: Final = ((3, 51, 3), (3, 50, 7), (3, 44, 6))
_NETWORK_FS: Final = ("nfs", "cifs", "smb", "9p", "fuse", "afs", "ceph", "lustre", "gluster")

_log = structlog.get_logger(__name__)


def writer(path: Path) -> Engine:
    """The one writing engine: WAL, FULL, BEGIN IMMEDIATE, a single connection.

    Raises:
        UsageError: The file lies on a network file system, or WAL cannot be had.
        ForeignSchema: The file is another program's.
        DatabaseDamaged: The file is no SQLite database or fails ``quick_check``.
    """
    _check_file_system(path)
    refuse_loss(path)
    fresh = _holds_nothing(path)
    if not fresh:
        _check_header(path)
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=StaticPool,
        connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False},
    )
    event.listen(engine, "connect", _writer_pragmas)
    event.listen(engine, "begin", _begin_immediate)
    with translated(path), engine.connect() as connection:
        _check_identity(connection, path, fresh=fresh)
    return engine


def mark_used(path: Path) -> None:
    """Remember beside the database that it holds something: an empty one is a loss from now on."""
    _used(path).touch()


def refuse_loss(path: Path) -> None:
    """Raise DatabaseDamaged when nothing is left of a database that has held something."""
    if _holds_nothing(path) and _used(path).exists():
        raise DatabaseDamaged(_damaged_text(path, "it is empty or gone, but this root was used"))


def _holds_nothing(path: Path) -> bool:
    return not path.exists() or path.stat().st_size == 0


def _used(path: Path) -> Path:
    return path.with_suffix(".used")


def reader(path: Path) -> Engine:
    """A read-only engine for the faces; it never takes the write lock.

    Raises:
        UsageError: The file does not exist.
        ForeignSchema, DatabaseDamaged: As for ``writer``.
    """
    refuse_loss(path)
    if not path.is_file():
        raise UsageError(f"no database at {path}; start a session first, or name its --root")
    _check_header(path)
    engine = create_engine(
        f"sqlite:///file:{path}?mode=ro&uri=true",
        poolclass=StaticPool,
        connect_args={"timeout": _BUSY_TIMEOUT_S, "check_same_thread": False},
    )
    event.listen(engine, "connect", _reader_pragmas)
    event.listen(engine, "begin", _begin_deferred)
    with translated(path), engine.connect() as connection:
        _check_identity(connection, path, fresh=False)
    return engine


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours, by error name and not by message text."""
    try:
        yield
    except (OperationalError, DatabaseError, sqlite3.DatabaseError) as exc:
        cause = getattr(exc, "orig", exc)
        meant = _meaning(path, getattr(cause, "sqlite_errorname", ""), str(cause))
        if meant is None:
            raise
        raise meant from exc


def _meaning(path: Path, name: str, text_: str) -> CroqError | None:
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return DatabaseDamaged(_damaged_text(path, text_))
    # Where SQLite cannot even make its files for want of space, it says something else.
    unable = name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN"))
    if name.startswith("SQLITE_FULL") or (unable and disk.is_exhausted(path.parent)):
        return DiskFull(f"no space left for {path}; free some and run 'croq-fsm resume'")
    if name.startswith("SQLITE_READONLY") or (unable and disk.is_read_only(path.parent)):
        return DiskReadOnly(
            f"{path} cannot be written ({text_}); make its file system and folder writable and "
            "run 'croq-fsm resume'"
        )
    # Never tried again: after a failed fsync a second one may succeed with the data gone.
    return disk.failed(f"{text_} ({name}) at {path}") if unable else None


def sqlite_is_safe(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> bool:
    """Whether this SQLite is free of the WAL-reset bug."""
    newest = SAFE_SQLITE[0]
    return version >= newest or any(
        version[:2] == safe[:2] and version >= safe for safe in SAFE_SQLITE[1:]
    )


def _writer_pragmas(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver's own transaction handling loses updates; ours begins explicitly.
    connection.isolation_level = None
    cursor = connection.cursor()
    mode = cursor.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise UsageError(f"SQLite refused WAL here (journal mode is {mode!r}); use a local disk")
    for pragma in (
        "synchronous = FULL",
        "foreign_keys = ON",
        f"journal_size_limit = {_JOURNAL_LIMIT_BYTES}",
        "trusted_schema = OFF",
        "cell_size_check = ON",
        "mmap_size = 0",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _reader_pragmas(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None
    for pragma in ("query_only = ON", "trusted_schema = OFF", "cell_size_check = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_deferred(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _check_header(path: Path) -> None:
    """Look at the first bytes before SQLite does, so that a stray file is named as such."""
    try:
        with path.open("rb") as stream:
            head = stream.read(len(_MAGIC))
    except OSError as exc:
        raise UsageError(f"database {path} cannot be read: {exc}") from exc
    if head != _MAGIC:
        raise DatabaseDamaged(_damaged_text(path, "it does not begin like an SQLite database"))


def _check_identity(connection: Connection, path: Path, *, fresh: bool) -> None:
    if fresh:
        return
    found = connection.execute(text("PRAGMA application_id")).scalar_one()
    if _is_empty(connection) and _used(path).exists():
        lost = "it holds no table, but this root was used (its -wal file may have been removed)"
        raise DatabaseDamaged(_damaged_text(path, lost))
    if found == 0 and _is_empty(connection):
        return  # a first start was killed before its migration was committed
    if found != APPLICATION_ID:
        raise ForeignSchema(
            f"{path} is an SQLite database of another program (application id {found:#x}); "
            "point storage.database elsewhere"
        )
    # A large file is checked whole with each daily backup; here it would take minutes.
    part = "1" if path.stat().st_size <= _CHECKED_BYTES else "sessions"
    verdict = connection.execute(text(f"PRAGMA quick_check({part})")).scalar_one()
    if verdict != "ok":
        raise DatabaseDamaged(_damaged_text(path, str(verdict)))


def _is_empty(connection: Connection) -> bool:
    return not connection.execute(text("SELECT count(*) FROM sqlite_master")).scalar_one()


def _damaged_text(path: Path, what: str) -> str:
    backups = sorted((path.parent / "backups").glob("*.sqlite3"))
    cure = (
        f"'croq-fsm restore' goes back to the newest backup, {backups[-1].name}"
        if backups
        else "there is no backup yet: move it and its .used file away, and start a new session"
    )
    return f"database {path} is damaged: {what}. Nothing was overwritten; {cure}."


def _check_file_system(path: Path) -> None:
    """WAL needs shared memory on one host; network mounts corrupt it sooner or later."""
    kind = file_system_of(path.parent)
    if is_network(kind):
        raise UsageError(
            f"{path.parent} lies on a network or user-space file system ({kind}); "
            "SQLite would corrupt there. Set storage.state_dir to a folder on a local disk"
        )


def is_network(kind: str) -> bool:
    """Whether a type of file system is one on which SQLite would be damaged."""
    return kind.startswith(_NETWORK_FS)


def file_system_of(folder: Path) -> str:
    """Type of the file system that holds a folder, as /proc/mounts names it."""
    target = folder.resolve()
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        _, mount, fstype, *_ = line.split(" ")
        mount = mount.replace("\\040", " ")
        inside = target == Path(mount) or Path(mount) in target.parents
        if inside and len(mount) >= len(best):
            best, kind = mount, fstype
    return kind
