"""The build cache: whole entries or none, verified on reading, safe with other writers."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from croq_fsm.errors import DiskFull
from croq_fsm.toolchain import build_cache
from croq_fsm.toolchain.build_cache import META, BuildCache

KEY = "ab" * 32
OTHER = "cd" * 32


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    """An empty cache."""
    return BuildCache(tmp_path / "cache")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """An executable file."""
    path = tmp_path / "program"
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return path


def test_what_is_put_is_got(cache: BuildCache, program: Path) -> None:
    """Files come back with content and mode, and so does what is known about them."""
    assert cache.get(KEY) is None
    cache.put(KEY, {"bench": program, "log.txt": b"text"}, {"build": {"key": KEY}})
    entry = cache.get(KEY)
    assert entry is not None
    assert os.access(entry / "bench", os.X_OK)
    assert (entry / "log.txt").read_bytes() == b"text"
    assert cache.meta(KEY) == {"build": {"key": KEY}}
    assert [path.name for path in cache.folder.iterdir()] == [KEY]


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "a.bin").write_bytes(b"datA"),
        lambda entry: (entry / "a.bin").unlink(),
        lambda entry: (entry / META).unlink(),
        lambda entry: (entry / META).write_text(""),
        lambda entry: (entry / META).write_text("[]"),
        lambda entry: (entry / META).write_text(
            (entry / META).read_text().replace('"note": 1', '"note": 2')
        ),
    ],
)
def test_damaged_entry_is_dropped(cache: BuildCache, damage: object) -> None:
    """A flipped, missing or torn file makes the entry vanish, and it can be put again."""
    entry = cache.put(KEY, {"a.bin": b"data"}, {"note": 1})
    damage(entry)  # type: ignore[operator]
    assert cache.get(KEY) is None
    assert not entry.exists()
    cache.put(KEY, {"a.bin": b"data"}, {"note": 1})
    assert cache.get(KEY) == entry


def test_second_writer_keeps_the_first_entry(cache: BuildCache) -> None:
    """When two builds of one key race, one entry remains and both get it."""
    first = cache.put(KEY, {"a.bin": b"first"}, {})
    assert cache.put(KEY, {"a.bin": b"second"}, {}) == first
    assert (first / "a.bin").read_bytes() == b"first"


def test_damaged_entry_is_replaced_by_a_writer(cache: BuildCache) -> None:
    """A broken entry does not keep a new one out."""
    entry = cache.put(KEY, {"a.bin": b"first"}, {})
    (entry / "a.bin").write_bytes(b"rotten")
    cache.put(KEY, {"a.bin": b"second"}, {})
    assert (entry / "a.bin").read_bytes() == b"second"


def test_many_processes_write_one_key(cache: BuildCache) -> None:
    """Concurrent processes neither fail nor leave anything but one sound entry."""
    code = textwrap.dedent(
        f"""
        from pathlib import Path
        from croq_fsm.toolchain.build_cache import BuildCache
        cache = BuildCache(Path({str(cache.folder)!r}))
        for i in range(20):
            key = f"{{i:02x}}" * 32
            cache.put(key, {{"a.bin": b"x" * 1000}}, {{}})
            assert cache.get(key) is not None
        """
    )
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(list(cache.folder.iterdir())) == 20


def test_writer_killed_in_the_middle_leaves_no_entry(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the rename there is nothing to see; the remains are swept when they are old."""
    code = textwrap.dedent(
        f"""
        import os, signal
        from pathlib import Path
        from croq_fsm.toolchain import build_cache
        build_cache.BuildCache._publish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        build_cache.BuildCache(Path({str(cache.folder)!r})).put({KEY!r}, {{"a": b"x"}}, {{}})
        """
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert cache.get(KEY) is None
    assert len(list(cache.folder.iterdir())) == 1
    monkeypatch.setattr(build_cache, "_STALE_S", -1.0)
    cache.trim(1 << 30, set())
    assert list(cache.folder.iterdir()) == []


def test_everything_is_synced_before_it_is_visible(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, their folder, the rename, and then the parent folder reach the disk in this order."""
    events: list[str] = []
    real_sync, real_rename = build_cache._sync, Path.rename

    def sync(path: Path) -> None:
        events.append(f"sync {'entry' if path.name.startswith('.tmp') else path.name}")
        real_sync(path)

    def rename(path: Path, target: Path) -> Path:
        events.append("rename")
        return real_rename(path, target)

    monkeypatch.setattr(build_cache, "_sync", sync)
    monkeypatch.setattr(Path, "rename", rename)
    cache.put(KEY, {"a.bin": b"x"}, {})
    assert events == ["sync a.bin", "sync meta.json", "sync entry", "rename", "sync cache"]


def test_trim_removes_the_least_recently_used(cache: BuildCache) -> None:
    """Old entries go first, kept ones never, and no more than needed."""
    keys = [f"{i:02x}" * 32 for i in range(4)]
    for age, key in enumerate(keys):
        entry = cache.put(key, {"a.bin": b"x" * 10_000}, {})
        os.utime(entry / META, (1000 + age, 1000 + age))
    assert cache.get(keys[1]) is not None
    size = sum(file.stat().st_size for file in (cache.folder / keys[0]).iterdir())
    assert cache.trim(2 * size, keep={keys[0]}) == [keys[2], keys[3]]
    assert cache.get(keys[0]) is not None
    assert set(cache.trim(0, keep=set())) == {keys[0], keys[1]}


def test_full_disk_is_told_and_leaves_nothing(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC becomes DiskFull, and no half-written entry stays."""

    def full(_path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build_cache, "_sync", full)
    with pytest.raises(DiskFull):
        cache.put(KEY, {"a.bin": b"x"}, {})
    assert list(cache.folder.iterdir()) == []


@pytest.mark.parametrize("key", ["", "../x", "AB" * 16, "abc", "g" * 32])
def test_strange_keys_are_refused(cache: BuildCache, key: str) -> None:
    """A key can never be a path."""
    with pytest.raises(ValueError, match="key"):
        cache.get(key)


@pytest.mark.parametrize("name", ["../x", "a/b", "", META, ".hidden"])
def test_strange_file_names_are_refused(cache: BuildCache, name: str) -> None:
    """A file name can never be a path."""
    with pytest.raises(ValueError, match="plain file name"):
        cache.put(OTHER, {name: b"x"}, {})
    assert list(cache.folder.iterdir()) == []


def test_meta_is_readable_json(cache: BuildCache) -> None:
    """People can read what an entry is."""
    entry = cache.put(KEY, {"a.bin": b"x"}, {"build": {"key": KEY}})
    recorded = json.loads((entry / META).read_text())
    assert recorded["meta"]["build"]["key"] == KEY
    assert set(recorded["files"]) == {"a.bin"}
