"""Opening databases: pragmas that hold, and refusals that change nothing."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from croq_fsm.errors import DatabaseDamaged, ForeignSchema, StaleSession, UsageError
from croq_fsm.storage import engine as engines
from croq_fsm.storage import migrate
from croq_fsm.storage.repository import Repository
from support.bench import Bench
from support.scripted import ScriptedIdeator


def _made(path: Path) -> Path:
    database = path / "croq.sqlite3"
    engine = engines.writer(database)
    migrate.upgrade(engine, database)
    engine.dispose()
    return database


def test_pragmas_hold_on_the_writer(tmp_path: Path) -> None:
    """WAL, FULL and foreign keys are what SQLite itself answers."""
    engine = engines.writer(_made(tmp_path))
    with engine.connect() as connection:
        read = lambda name: connection.execute(text(f"PRAGMA {name}")).scalar_one()  # noqa: E731
        assert (read("journal_mode"), read("synchronous"), read("foreign_keys")) == ("wal", 2, 1)
    engine.dispose()


def test_ddl_rolls_back(tmp_path: Path) -> None:
    """A table made in a failed transaction is gone."""
    engine = engines.writer(_made(tmp_path))

    def make_and_fail() -> None:
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE t (x)"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make_and_fail()
    with engine.connect() as connection, pytest.raises(OperationalError, match="no such table"):
        connection.execute(text("SELECT * FROM t"))
    engine.dispose()


def test_no_update_is_lost_between_two_writers(tmp_path: Path) -> None:
    """Two writers that read and then write end at the sum of their work."""
    database = _made(tmp_path)
    first = engines.writer(database)
    with first.begin() as connection:
        connection.execute(text("CREATE TABLE counter (n INTEGER)"))
        connection.execute(text("INSERT INTO counter VALUES (0)"))
    first.dispose()

    def work() -> None:
        engine = engines.writer(database)
        for _ in range(25):
            with engine.begin() as connection:
                n = connection.execute(text("SELECT n FROM counter")).scalar_one()
                connection.execute(text("UPDATE counter SET n = :n"), {"n": n + 1})
        engine.dispose()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = engines.reader(database)
    with last.connect() as connection:
        assert connection.execute(text("SELECT n FROM counter")).scalar_one() == 50
    last.dispose()


def test_the_reader_cannot_write(tmp_path: Path) -> None:
    """The faces' engine refuses writes."""
    engine = engines.reader(_made(tmp_path))
    with pytest.raises(OperationalError, match="readonly"), engine.begin() as connection:
        connection.execute(text("DELETE FROM sessions"))
    engine.dispose()


def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    """Another program's SQLite file is named as such and left alone."""
    database = tmp_path / "other.sqlite3"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    before = database.read_bytes()
    with pytest.raises(ForeignSchema, match="another program"):
        engines.reader(database)
    assert database.read_bytes() == before


@pytest.mark.parametrize("damage", ["truncate", "overwrite", "text"])
def test_a_damaged_database_is_refused(tmp_path: Path, damage: str) -> None:
    """Truncated, overwritten or replaced: refused by name, not begun anew."""
    database = _made(tmp_path)
    data = database.read_bytes()
    if damage == "truncate":
        database.write_bytes(data[: len(data) // 2])
    elif damage == "overwrite":
        database.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    else:
        database.write_text("{}", encoding="utf-8")
    with pytest.raises(DatabaseDamaged, match="Nothing was overwritten"):
        engines.writer(database)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A database of a newer program is not touched."""
    database = _made(tmp_path)
    engine = engines.writer(database)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ForeignSchema, match="9999"):
        migrate.upgrade(engine, database)
    engine.dispose()


def test_a_network_file_system_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SQLite on NFS is refused with the cure."""
    monkeypatch.setattr(engines, "file_system_of", lambda _folder: "nfs4")
    with pytest.raises(UsageError, match="storage.state_dir"):
        engines.writer(tmp_path / "x.sqlite3")


def test_the_file_system_is_read_from_the_kernel() -> None:
    """A known mount is recognised."""
    assert engines.file_system_of(Path("/proc")) == "proc"


def test_a_backup_is_whole(tmp_path: Path) -> None:
    """A backup is a database of its own that passes its check."""
    copy = migrate.backup(_made(tmp_path), "test")
    engine = engines.reader(copy)
    with engine.connect() as connection:
        assert connection.execute(text("PRAGMA integrity_check")).scalar_one() == "ok"
    engine.dispose()


def test_a_zombie_loses(tmp_path: Path) -> None:
    """A process that holds an old view of the session cannot write a transition."""
    bench = Bench(tmp_path, ScriptedIdeator([]))
    old = bench.session()
    bench.run()
    with pytest.raises(StaleSession, match="moved it on"):
        Repository(bench.engine, bench.root.database).begin_step(old)
    bench.close()


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 40, 1), False),
        ((3, 44, 6), True),
        ((3, 45, 0), False),
        ((3, 50, 7), True),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((4, 0, 0), True),
    ],
)
def test_the_wal_reset_bug_is_known_by_version(version: tuple[int, ...], safe: bool) -> None:
    """Fixed releases and back-ports are told from affected ones."""
    assert engines.sqlite_is_safe(version) is safe


@pytest.mark.parametrize("loss", ["emptied", "removed"])
def test_a_lost_database_is_not_begun_anew(tmp_path: Path, loss: str) -> None:
    """A used root whose database is empty or gone is refused, with what to do."""
    database = _made(tmp_path)
    engines.mark_used(database)
    if loss == "emptied":
        database.write_bytes(b"")
    else:
        database.unlink()
    with pytest.raises(DatabaseDamaged, match="this root was used"):
        engines.writer(database)


def test_a_daily_backup_is_made_once_a_day_and_seven_are_kept(tmp_path: Path) -> None:
    """One backup a day, the last seven stay, each is a whole database."""
    database = _made(tmp_path)
    made = []
    for day in range(9):
        backup = migrate.daily_backup(database, 1e9 + 86400.0 * day)
        assert backup is not None
        os.utime(backup, (1e9 + 86400.0 * day,) * 2)
        made.append(backup)
        assert migrate.daily_backup(database, 1e9 + 86400.0 * day + 3600) is None
    assert sorted((tmp_path / "backups").glob("*.sqlite3")) == made[-7:]
