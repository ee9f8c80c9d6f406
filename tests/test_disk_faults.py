"""Disks that are full, read-only or broken: each has an end that is named, and resume goes on."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from croq_fsm import daemon
from croq_fsm.errors import DiskFailed, DiskFull, DiskReadOnly
from croq_fsm.storage import disk
from croq_fsm.storage.disk import Ballast
from croq_fsm.storage.engine import translated, writer
from support.stage import TASK, Stage, ext4, fork, tmpfs, waited

_NO_FLOOR = "min_free_mb = 0\nwait_for_space_s = 0.0\n"


def _ending(stage: Stage) -> str:
    """What the last run said about its end."""
    connection = sqlite3.connect(stage.root.database)
    found = connection.execute("SELECT ending FROM runs ORDER BY started_at DESC LIMIT 1")
    told = str(found.fetchone()[0])
    connection.close()
    return told


def _fill(folder: Path, leave: int = 0) -> Path:
    """Write until nothing, or ``leave`` bytes, are left, whatever others take meanwhile."""
    filler = folder / "filler"
    with filler.open("wb") as stream:
        for _ in range(1000):
            status = os.statvfs(folder)
            room = status.f_bavail * status.f_frsize - leave
            if room <= 0:
                break
            with contextlib.suppress(OSError):  # somebody was quicker
                os.posix_fallocate(stream.fileno(), os.fstat(stream.fileno()).st_size, room)
    return filler


def _said(stage: Stage, word: str) -> None:
    """Wait until the log has a word; the time-out of the test ends it otherwise."""
    while word not in stage.log.read_text():
        time.sleep(0.01)


def test_a_disk_that_fills_up_ends_in_6_and_is_recorded_and_resumed() -> None:
    """ENOSPC in the middle of a night: code 6, the end is in the database, resume finishes it."""
    with tmpfs(24) as place:
        stage = Stage(place / "stage", settings=_NO_FLOOR)
        stage.log = place.parent / "log"
        stage.log.touch()
        pid = fork(stage.work("start", *TASK, "--rounds", "500", "--log-json"))
        _said(stage, '"outcome": "stored"')
        ballast = stage.root.state / "ballast"
        assert ballast.stat().st_blocks > 0
        filler = _fill(place)
        assert waited(pid) == DiskFull.exit_code, stage.log.read_text()[-2000:]
        assert not ballast.exists()
        assert _ending(stage).startswith("DiskFull: ")
        assert "unexpected" not in stage.log.read_text()
        filler.unlink()
        assert stage.run("resume", "--rounds", "1") == 0, stage.log.read_text()
        assert stage.run("validate") == 0, stage.log.read_text()


def test_the_daemon_waits_for_space_and_goes_on() -> None:
    """Below the floor the daemon waits; when there is space again, the night goes on by itself."""
    with tmpfs(64) as place:
        stage = Stage(place / "stage", settings="min_free_mb = 32\nwait_for_space_s = 60.0\n")
        stage.log = place.parent / "log"
        stage.log.touch()
        filler = _fill(place, leave=20 << 20)
        pid = fork(stage.work("start", *TASK, "--rounds", "1", "--log-json"))
        _said(stage, "waiting for space")
        filler.unlink()
        assert waited(pid) == 0, stage.log.read_text()


def test_without_space_the_wait_ends_in_6(tmp_path: Path) -> None:
    """A floor above what there is: code 6 with the setting and the cure, and nothing is parked."""
    stage = Stage(tmp_path / "s", settings="min_free_mb = 1000000000\nwait_for_space_s = 0.0\n")
    for command in (("start", *TASK), ("resume",), ("resume",), ("resume",)):
        assert stage.run(*command) == DiskFull.exit_code
    assert "storage.min_free_mb" in stage.log.read_text()


def test_a_file_system_that_turns_read_only_ends_in_2() -> None:
    """Remounted read-only in the night: the code of a missing environment, and resume goes on."""
    with tmpfs(64) as place:
        stage = Stage(place / "stage", settings=_NO_FLOOR)
        stage.log = place.parent / "log"
        stage.log.touch()
        assert stage.run("start", *TASK, "--rounds", "1") == 0
        remount = ["mount", "-o", "remount,{}", str(place)]
        subprocess.run([a.format("ro") for a in remount], check=True)
        assert stage.run("resume", "--reopen", "--rounds", "1") == DiskReadOnly.exit_code
        said = stage.log.read_text()
        assert "unexpected" not in said
        subprocess.run([a.format("rw") for a in remount], check=True)
        assert stage.run("resume", "--reopen", "--rounds", "1") == 0, stage.log.read_text()


def _write(path: Path, engine: Engine) -> None:
    with translated(path), engine.begin() as connection:
        connection.execute(text("UPDATE sessions SET reason = 'x'"))


def test_a_disk_that_dies_ends_in_1_and_what_it_holds_is_gone_on_from() -> None:
    """Every access fails from some moment on: named as a failing disk, never tried again."""
    with ext4() as place:
        stage = Stage(place.place / "stage", settings=_NO_FLOOR)
        stage.log = place.image.parent / "log"
        subprocess.run(["sync", "-f", str(place.place)], check=True)
        assert stage.run("start", *TASK, "--rounds", "1") == 0
        engine = writer(stage.root.database)
        place.cut()
        with pytest.raises(DiskFailed):
            _write(stage.root.database, engine)
        engine.dispose()
        place.unmount()
        place.mount()
        assert stage.run("resume", "--reopen", "--rounds", "1") == 0, stage.log.read_text()
        assert stage.run("validate") == 0, stage.log.read_text()


def test_errors_of_the_system_are_told_apart() -> None:
    """Full, read-only and broken have errors of their own; a missing file has none."""
    for number, kind in ((28, DiskFull), (122, DiskFull), (30, DiskReadOnly), (5, DiskFailed)):
        error = LookupError()
        error.__cause__ = OSError(number, "said", "/a/file")
        assert type(disk.meaning(error)) is kind
    assert disk.meaning(FileNotFoundError(2, "none")) is None
    assert disk.meaning(ValueError()) is None


def test_the_ballast_is_real_space_and_never_eats_the_floor() -> None:
    """Its blocks are allocated, dropping it frees them, and a nearly full disk has none."""
    with tmpfs(8) as place:
        ballast = Ballast(place / "ballast", 2 << 20)
        before = os.statvfs(place).f_bavail
        assert ballast.take(spare_bytes=1 << 20)
        assert os.statvfs(place).f_bavail < before
        assert ballast.drop()
        assert os.statvfs(place).f_bavail == before
        assert not ballast.take(spare_bytes=7 << 20)
        assert not ballast.path.exists()


def test_an_oversized_database_file_is_a_full_disk(tmp_path: Path) -> None:
    """A limit on file sizes stops SQLite in a commit: earlier rows stay, the error is ours."""
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from sqlalchemy import Engine, text\n"
        "from croq_fsm.errors import DiskFailed, DiskFull\n"
        "from croq_fsm.storage.engine import translated, writer\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "path = Path(sys.argv[1])\n"
        "engine = writer(path)\n"
        "with engine.begin() as c:\n"
        "    c.execute(text('CREATE TABLE t (x)'))\n"
        "    c.execute(text('INSERT INTO t VALUES (1)'))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))\n"
        "try:\n"
        "    with translated(path), engine.begin() as c:\n"
        "        c.execute(text('INSERT INTO t VALUES (zeroblob(1000000))'))\n"
        "except (DiskFull, DiskFailed) as exc:\n"
        "    with engine.begin() as c:\n"
        "        assert c.execute(text('SELECT count(*) FROM t')).scalar() == 1\n"
        "    sys.exit(7)\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "d.sqlite3")]
    assert subprocess.run(run, check=False).returncode == 7


def test_an_end_by_a_full_disk_is_no_failed_try(tmp_path: Path) -> None:
    """However often the disk is full in the same step, the session is not parked for it."""
    stage = Stage(tmp_path / "s")

    def night() -> int:
        def full(_self: daemon.Daemon) -> str | None:
            raise DiskFull("full")

        daemon.Daemon._disturbed = full  # type: ignore[method-assign]
        codes = {stage.work("start", *TASK)(), *(stage.work("resume")() for _ in range(4))}
        return 0 if codes == {DiskFull.exit_code} else 1

    assert waited(fork(night)) == 0, stage.log.read_text()
    assert stage.run("resume", "--rounds", "1") == 0, stage.log.read_text()
