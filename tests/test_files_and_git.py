"""Durable files, local commits, messages and locks, on real disks and real repositories."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from croq_fsm import inbox
from croq_fsm.config import Deadlines, Storage
from croq_fsm.errors import DiskFailed, LockHeld, UsageError
from croq_fsm.root import Root, RootLock, find, is_locked
from croq_fsm.storage import files, migrate
from croq_fsm.storage.engine import writer
from croq_fsm.storage.git import Git, GitPostponed
from croq_fsm.storage.repository import Repository
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from support.bench import git_root


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Git in a fresh repository."""
    runner = LocalRunner("test", NullJournal(), threading.Event(), Deadlines())
    return Git(git_root(tmp_path / "root"), runner, "croq_fsm <croq-fsm@localhost>", 60.0)


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), "-c", "user.name=u", "-c", "user.email=u@x", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def _write(git: Git, name: str, text: str) -> None:
    (git.root / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize("bad", ["/etc/passwd", "../x", "a/../../x"])
def test_no_path_leaves_the_root(tmp_path: Path, bad: str) -> None:
    """Absolute and climbing paths are refused."""
    with pytest.raises(UsageError, match="leaves the root"):
        files.write(tmp_path, bad, b"x")


def test_no_link_leads_out_of_the_root(tmp_path: Path) -> None:
    """A planted symbolic link is not followed."""
    (tmp_path / "out").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "tuning").symlink_to(tmp_path / "out")
    with pytest.raises(UsageError, match="symbolic link"):
        files.write(tmp_path / "root", "tuning/x", b"x")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_linked_file_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    """Writing replaces a link by a file; what it pointed to stays."""
    (tmp_path / "secret").write_text("keep", encoding="utf-8")
    (tmp_path / "view").symlink_to(tmp_path / "secret")
    files.write(tmp_path, "view", b"new")
    assert (tmp_path / "secret").read_text(encoding="utf-8") == "keep"
    assert not (tmp_path / "view").is_symlink()


def test_appending_twice_is_appending_once(tmp_path: Path) -> None:
    """A repeated append changes nothing; a torn file asks for a rebuild."""
    assert files.append(tmp_path, "log", 0, b"one\n")
    assert files.append(tmp_path, "log", 4, b"two\n")
    assert files.append(tmp_path, "log", 4, b"two\n")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    os.truncate(tmp_path / "log", 6)
    assert not files.append(tmp_path, "log", 4, b"two\n")


def test_a_commit_is_made_once(git: Git) -> None:
    """The trailer makes a repeated commit find the first one."""
    _write(git, "a", "1")
    first = git.commit(["a"], "one\n\nCroq-Attempt: s/1\n", "s/1")
    assert git.commit(["a"], "one\n\nCroq-Attempt: s/1\n", "s/1") == first
    assert git.find("s/2") == ""
    assert _git(git.root, "rev-list", "--count", "HEAD").strip() == "1"


def test_hooks_and_ignores_do_not_stop_a_commit(git: Git) -> None:
    """A hook that refuses is not run, an ignored path is committed all the same."""
    hook = git.root / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    hook.chmod(0o755)
    _write(git, ".gitignore", "a\n")
    _write(git, "a", "1")
    git.commit(["a", "absent"], "m\n\nCroq-Attempt: s/1\n", "s/1")
    assert _git(git.root, "ls-files").split() == ["a"]


def test_a_commit_waits_for_the_users_merge(git: Git) -> None:
    """In the middle of a merge the commit is postponed and nothing is disturbed."""
    _write(git, "base", "0")
    _git(git.root, "add", "base")
    _git(git.root, "commit", "-qm", "base")
    _git(git.root, "checkout", "-qb", "other")
    _write(git, "base", "1")
    _git(git.root, "commit", "-qam", "other")
    _git(git.root, "checkout", "-q", "-")
    _write(git, "base", "2")
    _git(git.root, "commit", "-qam", "mine")
    with pytest.raises(subprocess.CalledProcessError):
        _git(git.root, "merge", "other")
    _write(git, "a", "1")
    with pytest.raises(GitPostponed):
        git.commit(["a"], "m\n\nCroq-Attempt: s/1\n", "s/1")
    assert "base" in _git(git.root, "diff", "--name-only", "--diff-filter=U")
    # What we stage now would ride along with the user's merge.
    assert _git(git.root, "ls-files", "a") == ""


def test_locks_of_a_git_that_was_killed_are_told_from_others(git: Git) -> None:
    """A lock that is not older than a killed git of ours goes; one that was there before stays."""
    lock = git.root / ".git" / "index.lock"
    lock.touch()
    assert git.remove_stale_locks(since=time.time() + 60) == []
    head = git.root / ".git" / "refs" / "heads" / "main.lock"
    head.touch()
    assert sorted(git.remove_stale_locks(since=time.time())) == ["index.lock", "main.lock"]


def test_a_git_that_is_ended_by_our_own_failure_leaves_no_lock(
    git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database fails while git runs: it is ended with its lock in place, which then goes."""

    def failing(_command: object) -> None:
        (git.root / ".git" / "index.lock").touch()
        raise DiskFailed("no row can be written")

    _write(git, "a", "1")
    with monkeypatch.context() as patch:
        patch.setattr(git.runner, "run", failing)
        with pytest.raises(DiskFailed):
            git.commit(["a"], "m\n\nCroq-Attempt: s/1\n", "s/1")
    assert git.commit(["a"], "m\n\nCroq-Attempt: s/1\n", "s/1")


def test_a_git_that_is_dead_or_dying_holds_no_lock(git: Git, tmp_path: Path) -> None:
    """A zombie owns nothing, one that was killed is waited for, one that lives keeps its lock."""
    named = tmp_path / "git"
    shutil.copy("/bin/sleep", named)
    lock = git.root / ".git" / "index.lock"
    for seconds in ("0", "0.3"):
        lock.touch()
        with subprocess.Popen([named, seconds], cwd=git.root) as process:
            if seconds == "0":
                while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
                    time.sleep(0.01)
            assert git.remove_stale_locks(since=time.time()) == ["index.lock"]
    lock.touch()
    with subprocess.Popen([named, "60"], cwd=git.root) as process:
        assert git.remove_stale_locks(since=time.time()) == []
        process.kill()


def test_a_commit_of_the_same_step_after_a_restore_is_another_one(git: Git) -> None:
    """The trailer alone does not make a commit ours: the step may have come to something else."""
    _write(git, "a", "1")
    first = git.commit(["a"], "one\n\nCroq-Attempt: s/1\n", "s/1")
    _write(git, "a", "2")
    assert git.commit(["a"], "one\n\nCroq-Attempt: s/1\n", "s/1") == first
    assert git.commit(["a"], "two\n\nCroq-Attempt: s/1\n", "s/1") != first


def test_a_stale_index_lock_is_removed(git: Git) -> None:
    """A lock that no git process owns does not stop the night."""
    lock = git.root / ".git" / "index.lock"
    lock.touch()
    assert not git.remove_stale_locks(), "a young lock may be an editor's"
    os.utime(lock, (0, 0))
    assert git.remove_stale_locks()
    _write(git, "a", "1")
    git.commit(["a"], "m\n\nCroq-Attempt: s/1\n", "s/1")


def test_a_folder_inside_a_repository_is_no_root(git: Git) -> None:
    """The root is the repository's top folder, nothing below it."""
    inner = git.root / "inner"
    inner.mkdir()
    with pytest.raises(UsageError, match="--root"):
        Git(inner, git.runner, git.author, 60.0).check()
    with pytest.raises(UsageError, match="git init"):
        find(git.root.parent, _Config())  # type: ignore[arg-type]


class _Config:
    """Only the part of the configuration that is looked at."""

    storage = Storage()


def test_one_daemon_per_root_and_the_dead_free_it(tmp_path: Path) -> None:
    """A second holder learns who the first one is; after its death the lock is free."""
    root = Root(git_root(tmp_path), Storage())
    root.prepare()
    code = (
        "import sys,time; from pathlib import Path; from croq_fsm.root import *;"
        "from croq_fsm.config import Storage; r=Root(Path(sys.argv[1]),Storage());"
        "RootLock(r,'x'); print('held',flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert is_locked(root)
        with pytest.raises(LockHeld, match=str(holder.pid)):
            RootLock(root, "y")
        holder.kill()
        holder.wait()
    RootLock(root, "y").release()
    assert not is_locked(root)


def test_messages_wait_as_files_and_bad_ones_are_dropped(tmp_path: Path) -> None:
    """A hint survives a dead daemon; a stop for a dead daemon does not."""
    root = Root(git_root(tmp_path), Storage())
    inbox.leave(root, "hint", "try 'bigger' tiles")
    inbox.leave(root, "stop")
    (root.inbox / "0-bad.json").write_text("{", encoding="utf-8")
    inbox.discard_commands(root)
    assert len(list(root.inbox.glob("*.json"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"id": "\\ud800", "session_id": null, "kind": "hint", "text": "\\udcff", "created_at": 1}',
        '{"id": "a", "session_id": ["x"], "kind": "hint", "text": {"b": 1}, "created_at": 1}',
        '{"id": "a", "session_id": null, "kind": "hint", "text": "b", "created_at": 1e30}',
        '{"id": "a", "session_id": null, "kind": "hint", "text": "b", "created_at": Infinity}',
        '{"id": "a", "session_id": null, "kind": ["hint"], "text": "b", "created_at": 1}',
        "[" * 50_000,
        "[]",
    ],
)
def test_no_message_can_end_a_daemon(tmp_path: Path, text: str) -> None:
    """Whatever lies in the inbox is taken or dropped once; it never stays and never raises."""
    root = Root(git_root(tmp_path), Storage())
    root.prepare()
    engine = writer(root.database)
    migrate.upgrade(engine, root.database)
    (root.inbox / "1-a.json").write_text(text, encoding="utf-8")
    for message in inbox.take(root, Repository(engine, root.database), 1.0):
        assert message["text"].encode()
    engine.dispose()
    assert list(root.inbox.iterdir()) == []
