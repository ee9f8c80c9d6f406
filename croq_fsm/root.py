"""A root: the git repository that a daemon works in, and where its state lives in it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from croq_fsm.config import Config, Storage
from croq_fsm.errors import LockHeld, UsageError

#: Private folders of children, as tempfile names them; what lasts has other names.
_PRIVATE: Final = re.compile(r"^[a-z]+-[a-z0-9_]{8}$")

#: A full disk has an exit code of its own.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

#: ``is_locked`` holds the lock for an instant, shared; that is no other daemon.
_LOOKS: Final = 5
_LOOK_S: Final = 0.02


@dataclass(frozen=True)
class Root:
    """Paths of one root.

    Attributes:
        path: Top folder of the git repository.
        storage: Where the state lives below it.
    """

    path: Path
    storage: Storage

    @property
    def state(self) -> Path:
        """Folder of everything that is not a view."""
        return self.path / self.storage.state_dir

    @property
    def database(self) -> Path:
        """The database."""
        return self.state / self.storage.database

    @property
    def inbox(self) -> Path:
        """Messages from the faces to the daemon, a file each."""
        return self.state / "inbox"

    @property
    def cache(self) -> Path:
        """Content-addressed builds and reports."""
        return self.state / "cache"

    @property
    def work(self) -> Path:
        """Folders of running children."""
        return self.state / "work"

    @property
    def log(self) -> Path:
        """Log of a detached daemon."""
        return self.state / "daemon.log"

    @property
    def lock(self) -> Path:
        """Lock of the one daemon."""
        return self.state / "lock"

    def leftovers(self) -> list[Path]:
        """Private folders of children; under the lock nobody uses them any more."""
        return [
            folder
            for folder in sorted(self.work.glob("*"))
            if _PRIVATE.match(folder.name) and folder.is_dir() and not folder.is_symlink()
        ]

    def prepare(self) -> None:
        """Create the state folder, private and invisible to git.

        Raises:
            UsageError: It cannot be made or written there.
        """
        try:
            self._prepare()
        except OSError as exc:
            if exc.errno in _FULL:
                raise
            raise UsageError(
                f"the state folder {self.state} cannot be made: {exc.strerror}; make that place "
                "writable, or set storage.state_dir to another"
            ) from exc

    def _prepare(self) -> None:
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.inbox, self.cache, self.work):
            folder.mkdir(mode=0o700, exist_ok=True)
        ignore = self.state / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")


def find(path: Path | None, config: Config) -> Root:
    """The root that a command means: ``--root``, else the repository around the current folder.

    Raises:
        UsageError: No such folder, or no git repository there.
    """
    start = (path or Path.cwd()).resolve()
    if not start.is_dir():
        raise UsageError(f"{start} is no folder; make it and run 'git init {start}' first")
    for folder in [start] if path else [start, *start.parents]:
        if (folder / ".git").exists():
            return Root(folder, config.storage)
    for folder in start.parents:
        if (folder / ".git").exists():
            raise UsageError(
                f"{start} is a subfolder of the git repository {folder}; name that with --root"
            )
    raise UsageError(
        f"{start} is no git repository; run 'git init {start}' first, or name one with --root"
    )


class RootLock:
    """The flock that makes a root have one daemon; freed by the kernel on any death.

    Raises:
        LockHeld: Another live process holds it; the text names it.
    """

    def __init__(self, root: Root, run_id: str) -> None:
        self._descriptor = os.open(root.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._acquire()
        except BlockingIOError as exc:
            holder = read_holder(root)
            os.close(self._descriptor)
            raise LockHeld(
                f"another daemon works on {root.path}: pid {holder.get('pid', '?')} on "
                f"{holder.get('host', '?')}; 'croq-fsm status' shows it, 'croq-fsm stop' ends it"
            ) from exc
        content = {"pid": os.getpid(), "host": socket.gethostname(), "run_id": run_id}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(content).encode(), 0)

    def _acquire(self) -> None:
        """At once, except that a look of ``is_locked`` is let pass."""
        for _ in range(_LOOKS):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(_LOOK_S)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Give the lock up. The file stays: deleting it would allow two holders."""
        os.close(self._descriptor)


def read_holder(root: Root) -> dict[str, Any]:
    """What the last holder wrote into the lock file; says nothing about whether it lives."""
    try:
        value = json.loads(root.lock.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def is_locked(root: Root) -> bool:
    """Whether a live process holds the lock."""
    try:
        descriptor = os.open(root.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
