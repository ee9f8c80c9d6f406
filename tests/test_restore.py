"""Back to a backup: whole ones only, nothing overwritten, and the session goes on from there."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from croq_fsm import faults
from croq_fsm.errors import DatabaseDamaged, LockHeld, UsageError
from croq_fsm.root import RootLock
from croq_fsm.storage import backups, migrate
from croq_fsm.storage.engine import APPLICATION_ID
from support.stage import TASK, Stage, fork, waited

_KILLED = -9


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A root with a finished session of one round, and a backup of it."""
    made = Stage(tmp_path / "s")
    assert made.run("start", *TASK, "--rounds", "1") == 0, made.log.read_text()
    migrate.backup(made.root.database, "daily")
    return made


def _rounds(database: Path) -> int:
    connection = sqlite3.connect(database)
    count = connection.execute("SELECT count(*) FROM rounds").fetchone()[0]
    connection.close()
    return int(count)


def test_the_end_of_a_session_leaves_a_backup_of_it(tmp_path: Path) -> None:
    """A root's first night is in a backup as soon as it is over, and only seven such stay."""
    stage = Stage(tmp_path / "s")
    assert stage.run("start", *TASK, "--rounds", "1") == 0, stage.log.read_text()
    newest = backups.found(stage.root.database)[0]
    assert newest.path.name.endswith("-end.sqlite3")
    assert (newest.sessions, newest.rounds) == (1, 1)
    for _ in range(8):
        migrate.end_backup(stage.root.database)
    assert len(list(stage.root.state.glob("backups/*-end.sqlite3"))) == 7


def test_a_damaged_database_is_replaced_by_the_newest_backup(stage: Stage) -> None:
    """Start refuses with code 5 and names restore; restore keeps what was there; resume works."""
    database = stage.root.database
    rubbish = b"\0" * 8192
    database.write_bytes(rubbish)
    assert stage.run("resume", "--reopen", "--rounds", "1") == DatabaseDamaged.exit_code
    assert "croq-fsm restore" in stage.log.read_text()
    assert stage.run("restore", "--yes") == 0, stage.log.read_text()
    kept = list(database.parent.glob("backups/replaced-*/croq.sqlite3"))
    assert [path.read_bytes() for path in kept] == [rubbish]
    assert _rounds(database) == 1
    assert stage.run("rebuild") == 0
    assert stage.run("validate") == 0, stage.log.read_text()
    assert stage.run("resume", "--reopen", "--rounds", "1") == 0, stage.log.read_text()


def test_rounds_after_the_backup_are_forgotten_and_done_anew(stage: Stage) -> None:
    """Going back before a KEEP whose commit is in git: the new KEEP has a commit of its own."""
    older = max(stage.root.state.glob("backups/*-daily.sqlite3"))
    assert stage.run("resume", "--reopen", "--rounds", "1") == 0
    assert stage.run("restore", older.name, "--yes") == 0
    assert _rounds(stage.root.database) == 1
    assert stage.run("rebuild") == 0
    assert stage.run("resume", "--reopen", "--rounds", "1") == 0, stage.log.read_text()
    assert _rounds(stage.root.database) == 2
    assert stage.run("validate") == 0, stage.log.read_text()


def test_a_backup_that_is_not_whole_is_never_taken(stage: Stage) -> None:
    """The newest whole one is chosen; a broken one is listed with its fault, refused by name."""
    newest = migrate.backup(stage.root.database, "daily")
    newest.write_bytes(newest.read_bytes()[:5000])
    assert backups.chosen(stage.root.database, None).path != newest
    assert stage.run("restore", "--list") == 0
    assert f"{newest.name}  cannot be used" in stage.log.read_text()
    with pytest.raises(DatabaseDamaged, match="cannot be used"):
        backups.chosen(stage.root.database, newest.name)
    with pytest.raises(UsageError, match="names 0 backups"):
        backups.chosen(stage.root.database, "none")


def test_restore_waits_for_nobody(stage: Stage) -> None:
    """While a daemon works nothing is replaced: code 3."""
    lock = RootLock(stage.root, "test")
    before = stage.root.database.read_bytes()
    try:
        assert stage.run("restore", "--yes") == LockHeld.exit_code
    finally:
        lock.release()
    assert stage.root.database.read_bytes() == before


@pytest.mark.parametrize("lost", ["gone", "empty", "without its log"])
def test_a_lost_database_is_said_by_every_face(stage: Stage, lost: str) -> None:
    """Nothing calls a used root new, or its record sound, when its database is gone or empty."""
    stage.root.database.unlink()
    if lost == "empty":
        stage.root.database.touch()
    elif lost == "without its log":  # what is left when everything was in the log still
        connection = sqlite3.connect(stage.root.database)
        connection.execute("PRAGMA application_id = 1")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.close()
    for command in (("status",), ("status", "--json"), ("validate",), ("report",), ("resume",)):
        assert stage.run(*command) == DatabaseDamaged.exit_code, command
    assert stage.run("restore", "--yes") == 0, stage.log.read_text()
    assert stage.run("validate") == 0, stage.log.read_text()


def test_a_restore_that_was_killed_can_be_done_again(stage: Stage) -> None:
    """Killed in between there is no database; no start begins anew, and restore finishes it."""

    def killed() -> int:
        faults.arm("backup_copied=kill")
        return stage.work("restore", "--yes")()

    assert waited(fork(killed)) == _KILLED
    assert stage.run("start", *TASK) == DatabaseDamaged.exit_code
    assert stage.run("restore", "--yes") == 0, stage.log.read_text()
    assert _rounds(stage.root.database) == 1


def test_a_backup_that_was_killed_leaves_no_half_one(stage: Stage) -> None:
    """A copy has its name only when it is whole."""
    folder = stage.root.database.parent / "backups"
    before = sorted(folder.glob("*.sqlite3"))

    def killed() -> int:
        faults.arm("backup_copied=kill")
        migrate.backup(stage.root.database, "daily")
        return 0

    assert waited(fork(killed)) == _KILLED
    assert sorted(p for p in folder.glob("*.sqlite3") if not p.name.startswith(".")) == before
