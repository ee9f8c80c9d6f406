"""Results are taken out of foreign folders without following anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from croq_fsm.errors import CandidateRefused, CompileFailed
from croq_fsm.sandbox import files
from croq_fsm.toolchain.build_cache import BuildCache

KEY = "ab" * 16


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that is none of the child's."""
    path = tmp_path / "secret"
    path.write_text("secret", encoding="ascii")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The child's folder."""
    path = tmp_path / "own"
    path.mkdir()
    return path


def _link(folder: Path, secret: Path) -> None:
    (folder / "result").symlink_to(secret)


def _hard_link(folder: Path, secret: Path) -> None:
    (folder / "result").hardlink_to(secret)


def _pipe(folder: Path, _secret: Path) -> None:
    os.mkfifo(folder / "result")


def _folder(folder: Path, _secret: Path) -> None:
    (folder / "result").mkdir()


def _large(folder: Path, _secret: Path) -> None:
    with (folder / "result").open("wb") as file:
        file.truncate(files.MOST + 1)


def _nothing(_folder: Path, _secret: Path) -> None:
    """No file at all."""


_ODD = [_link, _hard_link, _pipe, _folder, _large, _nothing]


@pytest.mark.parametrize("plant", _ODD)
def test_what_is_no_plain_file_is_refused(
    folder: Path, secret: Path, plant: Callable[[Path, Path], None]
) -> None:
    """Links of both kinds, pipes, folders, giants: neither read nor copied nor waited for."""
    plant(folder, secret)
    assert not files.is_plain(folder, "result")
    with pytest.raises(CompileFailed, match="result"):
        files.read_bytes(folder, "result", error=CompileFailed)
    with pytest.raises(CandidateRefused, match="result"):
        files.copy_plain(folder / "result", folder / "copy")
    assert not (folder / "copy").exists()


def test_a_linked_parent_is_refused(folder: Path, secret: Path) -> None:
    """A folder on the way may not be a link either, and no path leads upwards."""
    (folder / "keep").symlink_to(secret.parent)
    for path in ("keep/secret", "../secret", str(secret)):
        with pytest.raises(CandidateRefused):
            files.read_bytes(folder, path)


def test_plain_files_are_taken_with_their_mode(folder: Path) -> None:
    """What is meant to be read is read whole; a copy stays runnable and loses odd bits."""
    (folder / "keep").mkdir()
    (folder / "keep" / "result").write_bytes(b"\xffcontent")
    (folder / "keep" / "result").chmod(0o4777)
    assert files.read_bytes(folder, "keep/result") == b"\xffcontent"
    assert files.read_text(folder, "keep/result") == "\ufffdcontent"
    files.copy_plain(folder / "keep" / "result", folder / "copy")
    assert (folder / "copy").read_bytes() == b"\xffcontent"
    assert (folder / "copy").stat().st_mode & 0o7777 == 0o755


def test_writing_goes_through_no_link(folder: Path, secret: Path) -> None:
    """A planted link is replaced, and what it points to stays as it is."""
    (folder / "report.csv").symlink_to(secret)
    path = files.write_bytes(folder, "report.csv", b"ours")
    assert (path.read_bytes(), path.is_symlink()) == (b"ours", False)
    assert secret.read_text(encoding="ascii") == "secret"


def test_copies_do_not_write_through_a_link(folder: Path, secret: Path) -> None:
    """A target that is there already is an error, whatever it is."""
    (folder / "result").write_bytes(b"x")
    (folder / "copy").symlink_to(secret)
    with pytest.raises(FileExistsError):
        files.copy_plain(folder / "result", folder / "copy")
    assert secret.read_text(encoding="ascii") == "secret"


def test_the_build_cache_takes_no_link(tmp_path: Path, folder: Path, secret: Path) -> None:
    """A link in a build's folder does not bring somebody's file into the cache."""
    (folder / "bench").symlink_to(secret)
    cache = BuildCache(tmp_path / "cache")
    with pytest.raises(CandidateRefused, match="bench"):
        cache.put(KEY, {"bench": folder / "bench"}, {})
    assert cache.get(KEY) is None


def test_an_odd_output_is_refused_and_a_missing_one_is_not(folder: Path, secret: Path) -> None:
    """Judges are not asked about a link; that nothing was written is for them to say."""
    files.must_be_plain(folder / "output")
    (folder / "output").symlink_to(secret)
    with pytest.raises(CandidateRefused, match="output is no plain file"):
        files.must_be_plain(folder / "output")
