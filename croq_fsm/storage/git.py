"""Local commits of our own files in the user's repository, durable and exactly once.

Only the named paths are committed; whatever the user has staged stays staged and stays out.
Hooks, signing, background packing and pushing never happen.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from croq_fsm import faults
from croq_fsm.errors import CroqError, EnvironmentMissing, UsageError
from croq_fsm.toolchain.process import Command, Completed, Ending, Runner

TRAILER: Final = "Croq-Attempt"
_SEARCH_DEPTH: Final = 500
_STALE_S: Final = 300.0
#: File systems keep times no finer than this, seconds.
_GRAIN_S: Final = 1.0
#: Longest wait for a git of ours that was killed, and how often it is looked for, seconds.
_DYING_S, _LOOK_S = 2.0, 0.02
#: File or folder in the repository's folder → what the user is in the middle of.
_MIDDLES: Final = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
}
_OPTIONS: Final = (
    "-c", "core.hooksPath=/dev/null",
    "-c", "commit.gpgsign=false",
    "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
    # Without this a power cut can leave the whole repository unreadable.
    "-c", "core.fsync=all",
    "-c", "core.quotePath=false",
    "-c", "advice.detachedHead=false",
)  # fmt: skip


class GitPostponed(CroqError):
    """The repository is in the middle of something of the user's; the commit waits."""


@dataclass(frozen=True)
class Git:
    """Git in one repository.

    Attributes:
        root: Top folder of the repository.
        runner: Starts the children.
        author: ``Name <mail>`` of the commits.
        deadline_s: Seconds for each call.
    """

    root: Path
    runner: Runner
    author: str
    deadline_s: float

    def check(self) -> None:
        """Raises UsageError unless ``root`` is the top folder of a repository."""
        done = self._git("rev-parse", "--show-toplevel")
        if not done.ok:
            raise UsageError(
                f"{self.root} is no git repository; run 'git init {self.root}' first, "
                "or name one with --root"
            )
        top = Path(done.stdout.rstrip("\n"))
        if top.resolve() != self.root.resolve():
            raise UsageError(f"{self.root} lies inside the repository {top}; use --root {top}")

    def commit(self, paths: list[str], message: str, trailer: str) -> str:
        """Commit exactly these paths and return the commit's hash.

        A commit with this trailer that exists already is returned instead.

        Raises:
            GitPostponed: A merge, a rebase or another git process is at work.
        """
        known = self.find(trailer, message)
        if known:
            # It may be from just before a power cut that did not come.
            self._sync()
            return known
        self._refuse_middle()
        present = [p for p in paths if (self.root / p).is_file()]
        listed = "\0".join(present).encode()
        pathspec = ("--pathspec-from-file=-", "--pathspec-file-nul")
        self._must("add", "--force", *pathspec, stdin=listed)
        faults.point("git_added")
        done = self._git(
            "commit", "--quiet", "--no-verify", "--only", f"--author={self.author}",
            f"--message={message}", "--cleanup=verbatim", *pathspec,
            stdin=listed,
        )  # fmt: skip
        if not done.ok and "nothing to commit" not in done.output:
            raise self._problem("commit", done)
        faults.point("git_committed")
        self._sync()
        return self._must("rev-parse", "HEAD").stdout.strip()

    def find(self, trailer: str, message: str | None = None) -> str:
        """Hash of a recent commit that carries the trailer, or "".

        Args:
            trailer: Value of the trailer.
            message: Its message, if that is known. After a database was restored, a step of the
                same number can come to something else; its commit is another one then.
        """
        done = self._git(
            "log", "--all", f"--max-count={_SEARCH_DEPTH}", "--fixed-strings",
            f"--grep={TRAILER}: {trailer}",
            f"--format=%H%x00%(trailers:key={TRAILER},valueonly,separator=%x2C)%x00%B%x00%x1e",
        )  # fmt: skip
        for entry in done.stdout.split("\x1e") if done.ok else ():
            commit, _, rest = entry.strip().partition("\0")
            found, _, body = rest.partition("\0")
            same = message is None or body.strip("\0\n") == message.strip("\n")
            if found.strip() == trailer and same:
                return commit
        return ""

    def trailers(self, session_id: str) -> dict[str, str]:
        """Commits of a session on any branch, by trailer; grows with the history.

        Raises:
            EnvironmentMissing: Git cannot read the repository.
        """
        done = self._must(
            "log", "--all", "--fixed-strings",
            f"--grep={TRAILER}: {session_id}/",
            f"--format=%H %(trailers:key={TRAILER},valueonly,separator=%x2C)",
        )  # fmt: skip
        pairs = (line.partition(" ") for line in done.stdout.splitlines())
        return {trailer.strip(): commit for commit, _, trailer in pairs}

    def _refuse_middle(self) -> None:
        """Before anything is staged: what is staged now would ride along with the user's merge.

        Raises:
            GitPostponed: The user is in the middle of something.
        """
        for name, what in _MIDDLES.items():
            if (self._folder / name).exists():
                raise GitPostponed(f"git commit has to wait: {what} is under way in {self.root}")

    @property
    def _folder(self) -> Path:
        """The repository's own folder; that of a further worktree lies elsewhere."""
        dot = self.root / ".git"
        if not dot.is_file():
            return dot
        named = dot.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        return (self.root / named).resolve()

    def remove_stale_locks(self, since: float | None = None) -> list[str]:
        """Remove locks that no living git process can own; returns their names.

        Args:
            since: Start of a git child of ours that was killed, UTC seconds. A lock that is not
                older than that is its; any other one has to be old, for an editor may hold it.
        """
        oldest = time.time() - _STALE_S if since is None else since - _GRAIN_S
        doomed = []
        for lock in (self._folder / "index.lock", *self._ref_locks()):
            with contextlib.suppress(FileNotFoundError):
                made = lock.stat().st_mtime
                if made >= oldest if since is not None else made <= oldest:
                    doomed.append(lock)
        if not doomed or not self._is_quiet(0.0 if since is None else _DYING_S):
            return []
        for lock in doomed:
            lock.unlink(missing_ok=True)
        return [lock.name for lock in doomed]

    def _ref_locks(self) -> list[Path]:
        common = self._folder / "commondir"
        shared = self._folder
        if common.is_file():
            shared = (shared / common.read_text(encoding="utf-8").strip()).resolve()
        found = [self._folder / "HEAD.lock", shared / "packed-refs.lock"]
        return [*found, *(shared / "refs" / "heads").rglob("*.lock")]

    def _is_quiet(self, patience_s: float) -> bool:
        """Whether no git works here; one that was killed may take a moment to go."""
        until = time.monotonic() + patience_s
        while self._git_alive():
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
        return True

    def _git_alive(self) -> bool:
        for process in psutil.process_iter(["name", "cwd", "status"]):
            if process.info["name"] == "git" and process.info["status"] != psutil.STATUS_ZOMBIE:
                cwd = process.info["cwd"]
                if cwd is None or Path(cwd).is_relative_to(self.root.resolve()):
                    return True
        return False

    def _sync(self) -> None:
        """Make objects and refs durable before anybody says "done"."""
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
                raise OSError(ctypes.get_errno(), "syncfs failed")
        finally:
            os.close(descriptor)

    def _must(self, *arguments: str, stdin: bytes = b"") -> Completed:
        done = self._git(*arguments, stdin=stdin)
        if not done.ok:
            raise self._problem(arguments[0], done)
        return done

    def _problem(self, what: str, done: Completed) -> CroqError:
        text = done.output.strip()
        if (
            ".lock': File exists" in text
            or "index.lock" in text
            or "partial commit during" in text
            or "unmerged" in text
        ):
            return GitPostponed(f"git {what} has to wait: {text}")
        return EnvironmentMissing(f"git {what} failed in {self.root}: {text}")

    def _git(self, *arguments: str, stdin: bytes = b"") -> Completed:
        name, _, mail = self.author.partition(" <")
        identity = {
            "GIT_COMMITTER_NAME": name,
            "GIT_COMMITTER_EMAIL": mail.rstrip(">"),
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C",
        }
        command = Command(
            argv=("git", *_OPTIONS, *arguments),
            cwd=self.root,
            deadline_s=self.deadline_s,
            label="git",
            env=identity,
            stdin=stdin,
        )
        began, ended = time.time(), False
        try:
            done = self.runner.run(command)
            ended = done.ending is Ending.EXITED
        finally:
            if not ended:
                # It had no chance to take its locks away, and nobody else will.
                self.remove_stale_locks(began)
        return done
