"""Errors in arguments: each says what is wrong and what to do, exits 2 and leaves no session."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import Shell, run, shell

from croq_fsm.cli.main import main
from croq_fsm.config import load
from croq_fsm.errors import UsageError
from croq_fsm.root import find
from croq_fsm.storage.engine import writer

__all__ = ["shell"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("start", r"nothing to do: say what to tune"),
        ("start foo", r"unknown DSL 'foo'; known: c, croqtile"),
        ("start c", r"say dtype and shape, for example 'croq-fsm start c f32 512x512x512'"),
        ("start c f32 5x5", r"wants MxNxK"),
        ("start c f32 0x5x5", r"between 1 and"),
        ("start c f16 64x64x64", r"DSL c cannot run matmul in f16; it runs"),
        ("start c f32 64x64 --operator lu", r"unknown operator 'lu'; known"),
        ("start c f32 8x8x8 --kernel no.c", r"kernel no.c does not exist"),
        ("start c f32 8x8x8 --kernel /dev/zero", r"/dev/zero is neither a file nor a folder"),
        ("start c f32 8x8x8 --for 5", r"'5' is no duration"),
        ("start c f32 8x8x8 --rounds 0", r"--rounds must be at least 1"),
        ("start c f32 8x8x8 --config no.toml", r"no.toml does not exist"),
        ("start c f32 8x8x8 --task t.toml", r"say either --task FILE or"),
        ("start --task no.toml", r"task file no.toml does not exist"),
        ("start c f32 8x8x8 --simulate", r"--simulate models DSL croqtile, not c"),
        ("resume", r"no session in .* yet"),
        ("resume --rounds 0", r"--rounds must be at least 1"),
        ("report", r"no database"),
        ("logs", r"no database"),
        ("logs -n -1", r"-n must not be negative"),
        ("status nobody", r"no session 'nobody'"),
        ("hint", r"(?i)missing argument"),
        ("run-iter abc 3", r"no session in"),
        ("run-iter abc three", r"'three' is not an iteration name"),
        ("run-iter abc 0", r"iter000 is the library"),
        ("bogus", r"No such command 'bogus'"),
    ],
)
def test_bad_arguments(shell: Shell, arguments: str, says: str) -> None:
    """The message names the cure; nothing is left behind."""
    said = shell(*arguments.split())
    assert (said.code, said.out) == (2, "")
    assert re.search(says, said.err)
    assert not (shell.root / ".croq_fsm" / "croq.sqlite3").exists()


def test_outside_a_repository(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a repository the way to get one is said."""
    assert main(["start", "c", "f32", "8x8x8", "--root", str(tmp_path)]) == 2
    assert f"run 'git init {tmp_path}' first" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dsl = 'c'\nspeed = 9\n", "task 1 in .*: speed: Extra inputs"),
        ("dsl = 'c'\ndtype = 'f32'\nshape = '8x8x8'\nrounds = 0\n", "task 1 in .*: rounds"),
        ("tasks = 3\n", r"write several tasks as \[\[tasks\]\]"),
        ("[[tasks]]\ndsl='c'\ndtype='f32'\nshape='8x8x8'\n[[tasks]]\ndsl='d'\n", "unknown DSL 'd'"),
        ("kernel = 'matmul_x.c'\ndtype='f32'\nshape='8x8x8'", "matmul_x.c does not exist"),
        ("dsl = ", "cannot be read"),
    ],
)
def test_bad_task_files(shell: Shell, tmp_path: Path, text: str, says: str) -> None:
    """A mistake in any task of a file is named before any of them begins."""
    path = tmp_path / "task.toml"
    path.write_text(text, encoding="utf-8")
    said = shell("start", "--task", str(path))
    assert said.code == 2
    assert re.search(says, said.err)
    assert shell.root.joinpath(".croq_fsm/croq.sqlite3").exists() is False


def test_bad_configuration_in_the_root(shell: Shell) -> None:
    """A broken croq_fsm.toml is named with its path, whatever the command."""
    (shell.root / "croq_fsm.toml").write_text("speed = 'high'\n", encoding="utf-8")
    said = shell("status")
    assert said.code == 2
    assert f"bad configuration in {shell.root}/croq_fsm.toml: speed" in said.err


def test_terminal_controls_in_messages_are_blanked(shell: Shell) -> None:
    """Foreign text in an error cannot steer the terminal."""
    said = shell("start", "\x1b[2Jc")
    assert said.code == 2
    assert "\x1b" not in said.err


def test_unexpected_errors_are_short_and_kept(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug exits 1 with one line; its traceback is in the log, without local variables."""

    def broken(*_: object) -> None:
        password_in_a_local = "hunter2" * 3
        raise KeyError(len(password_in_a_local))

    (shell.root / ".croq_fsm").mkdir()
    monkeypatch.setattr("croq_fsm.cli.status._has_sessions", broken)
    said = shell("status")
    log = shell.root / ".croq_fsm" / "daemon.log"
    assert (said.code, said.out) == (1, "")
    assert said.err == f"croq-fsm: unexpected KeyError: 21; the traceback is in {log}\n"
    text = log.read_text(encoding="utf-8")
    assert "KeyError: 21" in text
    assert "in broken" in text
    assert "hunter2hunter2" not in text


def test_a_full_disk_has_its_own_code(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC outside SQLite exits 6 as well."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("croq_fsm.cli.status._has_sessions", full)
    said = shell("status")
    assert said.code == 6
    assert "no space left" in said.err


def test_exit_codes_of_real_processes(tmp_path: Path) -> None:
    """``python -m croq_fsm`` gives the same codes to the shell."""
    (tmp_path / ".git").mkdir()
    assert run(tmp_path, "status").code == 0
    assert run(tmp_path, "start", "c").code == 2
    assert run(tmp_path, "nonsense").code == 2


def test_help_is_quick_to_import() -> None:
    """Showing the help loads neither the database layer nor the numerics."""
    code = (
        "import sys; from croq_fsm.cli.main import main; main(['--help']);"
        "print([m for m in ('sqlalchemy', 'numpy', 'alembic', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert done.stdout.rstrip().endswith("[]")


def test_a_first_start_that_was_killed_early_is_no_foreign_database(shell: Shell) -> None:
    """A database whose first migration never came is empty, not somebody else's."""
    path = shell.root / ".croq_fsm" / "croq.sqlite3"
    path.parent.mkdir()
    writer(path).dispose()
    assert path.stat().st_size > 0
    said = shell("status")
    assert (said.code, "no session in" in said.out) == (0, True)
    shell.ideator.script = [{"TIME_US": "900"}]
    assert shell("start", "c", "f32", "8x8x8", "--rounds", "1").code == 0


def test_a_newer_database_is_refused_by_every_command(shell: Shell) -> None:
    """Exit code 4 and the cure, for readers as for writers; nothing is changed."""
    shell.ideator.script = [{"TIME_US": "900"}]
    shell("start", "c", "f32", "8x8x8", "--rounds", "1")
    path = shell.root / ".croq_fsm" / "croq.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    for command in (["status"], ["report"], ["logs"], ["start", "c", "f32", "8x8x8"]):
        said = shell(*command)
        assert said.code == 4
        assert "schema 9999, which is newer than this program" in said.err


def test_a_subfolder_is_told_from_no_repository(tmp_path: Path) -> None:
    """Nobody is told to make a repository inside another."""
    inside = tmp_path / "repo" / "inside"
    inside.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    with pytest.raises(UsageError, match=r"subfolder of the git repository .*repo;"):
        find(inside, load(None))


def test_a_state_folder_that_cannot_be_made_is_no_crash(shell: Shell) -> None:
    """A file in its place, or a root that is read-only, is said in one line."""
    (shell.root / ".croq_fsm").write_text("mine", encoding="utf-8")
    said = shell("start", "c", "f32", "8x8x8")
    assert said.code == 2
    assert "state folder" in said.err
    assert "cannot be made" in said.err
    assert (shell.root / ".croq_fsm").read_text(encoding="utf-8") == "mine"
