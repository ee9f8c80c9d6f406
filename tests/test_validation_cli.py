"""A real session on the CPU, and the commands that judge it: validate, rebuild, clean, doctor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cli_support
import pytest

from croq_fsm.cli.main import main
from croq_fsm.config import Config
from croq_fsm.domain.device import Finding
from croq_fsm.domain.source import sha256
from croq_fsm.environment import examine
from croq_fsm.root import Root, RootLock

_ROUNDS = 3


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root in which the real daemon tuned a small C kernel with the real compiler."""
    root = cli_support.make_root(tmp_path_factory.mktemp("real") / "root")
    said = cli_support.run(root, "start", "c", "f32", "64x64x64", "--rounds", str(_ROUNDS))
    assert said.code == 0, said.err
    return root


@pytest.fixture
def root(tuned: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    target = tmp_path / "root"
    shutil.copytree(tuned, target, symlinks=True)
    return target


@pytest.fixture(autouse=True)
def _quiet_after() -> object:
    """Commands set the logs of this process up; take that back."""
    yield
    cli_support.restore_logging()


def _results(root: Path) -> Path:
    (path,) = root.glob("tuning/*/c/logs/*/*/results.tsv")
    return path


def _say(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(arguments))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_real_session_is_valid(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Real compiles and real samples: nothing is found, and every round was looked at."""
    code, out, _ = _say(capsys, "validate", "--json", "--root", str(root))
    report = json.loads(out)
    assert (code, report["problems"]) == (0, [])
    assert len(report["sessions"]) == 1
    (raw,) = root.glob("tuning/*/c/memory/*/*/rounds.raw.jsonl")
    assert len(raw.read_text().splitlines()) == _ROUNDS


def test_problems_end_in_code_1_and_name_their_cure(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A changed file: code 1, path and cure are told; rebuild is that cure, byte for byte."""
    right = _results(root).read_bytes()
    _results(root).write_bytes(right.replace(b"KEEP", b"keep", 1))
    code, out, _ = _say(capsys, "validate", "--root", str(root))
    assert code == 1
    assert "log-differs" in out
    assert "cure: croq-fsm rebuild" in out
    assert "1 session, 1 problem, 0 warnings" in out
    code, out, _ = _say(capsys, "rebuild", "--dry-run", "--root", str(root))
    assert (code, _results(root).read_bytes() == right) == (0, False)
    assert "would be written: tuning/" in out
    code, out, _ = _say(capsys, "rebuild", "--root", str(root))
    assert (code, _results(root).read_bytes()) == (0, right)
    assert _say(capsys, "validate", "--root", str(root))[0] == 0


def test_everything_below_tuning_can_be_rebuilt(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the whole folder gone, rebuild writes the same bytes with the same modes again."""

    def fingerprint() -> dict[str, tuple[str, int]]:
        return {
            path.relative_to(root).as_posix(): (sha256(path.read_bytes()), path.stat().st_mode)
            for path in (root / "tuning").rglob("*")
            if path.is_file()
        }

    before = fingerprint()
    shutil.rmtree(root / "tuning")
    code, out, _ = _say(capsys, "rebuild", "--root", str(root))
    assert code == 0, out
    assert fingerprint() == before
    assert "0 lost" in out


def test_a_lost_cache_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What neither database nor cache holds is named, with code 1; the rest is written."""
    for path in root.glob("tuning/*/c/bin/*/*/iter001_*"):
        path.unlink()
    shutil.rmtree(root / ".croq_fsm" / "cache")
    _results(root).unlink()
    code, out, _ = _say(capsys, "rebuild", "--root", str(root))
    assert code == 1
    assert "does not hold it any more: tuning/" in out
    assert _results(root).is_file()


def test_a_running_daemon_keeps_rebuild_and_clean_out(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both exit with code 3 and change nothing; validate works all the same."""
    lock = RootLock(Root(root, Config().storage), "daemon")
    try:
        for command in (("rebuild",), ("clean", "--dsl", "all", "--yes")):
            code, _, err = _say(capsys, *command, "--root", str(root))
            assert (code, "another daemon" in err) == (3, True)
        assert _say(capsys, "validate", "--root", str(root))[0] == 0
    finally:
        lock.release()


def test_a_damaged_database_ends_in_code_5(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no database: code 5, and it is left as it is."""
    database = root / ".croq_fsm" / "croq.sqlite3"
    database.write_bytes(b"nonsense" * 1000)
    assert _say(capsys, "validate", "--root", str(root))[0] == 5
    assert database.read_bytes() == b"nonsense" * 1000


def test_clean_asks_shows_and_undoes(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a yes nothing moves; a dry run only tells; undo brings everything back."""
    command = ("clean", "--dsl", "c", "--reset-all", "--root", str(root))
    monkeypatch.setattr("typer.confirm", lambda _text: False)
    assert _say(capsys, *command)[0] == 1
    code, out, _ = _say(capsys, *command, "--dry-run")
    assert (code, "nothing was changed" in out) == (0, True)
    assert _results(root).is_file()
    code, out, _ = _say(capsys, *command, "--yes")
    assert (code, "clean --undo" in out) == (0, True)
    assert not list(root.glob("tuning/*/c/logs/*/*/results.tsv"))
    assert _say(capsys, "validate", "--root", str(root))[0] == 0
    code, out, _ = _say(capsys, "clean", "--undo", "--root", str(root))
    assert (code, "is undone" in out) == (0, True)
    assert _results(root).is_file()
    assert _say(capsys, "validate", "--root", str(root))[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("clean",),
        ("clean", "--dsl", "fortran"),
        ("clean", "--undo", "--invalid-only"),
        ("validate", "nobody"),
        ("validate", "--dsl", "fortran"),
        ("rebuild", "nobody"),
        ("doctor", "--dsl", "fortran"),
    ],
)
def test_what_is_not_clear_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    """A command that does not say what it means, or names nobody, exits with code 2."""
    code, _, err = _say(capsys, *arguments, "--root", str(root))
    assert code == 2
    assert err.startswith("croq-fsm: ")


def test_doctor_works_without_a_root(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of any repository DSL c is found usable, and nothing is written there."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = _say(capsys, "doctor", "--dsl", "c", "--json")
    found = json.loads(out)
    assert (code, found["usable"]) == (0, ["c"])
    assert {f["name"] for f in found["general"]} >= {"python", "git", "sqlite", "disk", "root"}
    assert list(tmp_path.iterdir()) == []
    code, out, _ = _say(capsys, "doctor", "--dsl", "c")
    assert (code, "usable DSLs: c" in out) == (0, True)


def test_doctor_says_when_nothing_is_usable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A required finding of the only DSL is missing: code 2, with what that forbids and a cure."""
    finding = Finding(name="cc", ok=False, forbids="compiling", cure="install a compiler")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "croq_fsm.environment.open_workbench",
        lambda *_: type("Bench", (), {"doctor": lambda _self: [finding]})(),
    )
    code, out, _ = _say(capsys, "doctor", "--dsl", "c")
    assert code == 2
    assert all(word in out for word in ("MISSING", "compiling", "install a compiler", "none"))


def test_doctor_survives_a_broken_adapter(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DSL that cannot be imported is a finding about that DSL, and no end of the report."""

    def broken(*_arguments: object) -> object:
        raise ImportError("no module named driver")

    monkeypatch.setattr("croq_fsm.environment.open_workbench", broken)
    config = Config()
    found = examine(Root(root, config.storage), config, ("c",))
    assert found.usable == []
    assert "no module named driver" in found.by_dsl["c"][0].cure
    assert {f.name for f in found.general} >= {"lock", "file system"}
