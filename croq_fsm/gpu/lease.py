"""One lease per device: two daemons never measure on the same device at the same time.

The lease is an ``flock`` on a file named after the device's UUID. The kernel frees it at any
death of the holder, so there is nothing stale to clean up. The file is never removed: a file
that is deleted and made again would have two holders. What stands in it is for people only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import re
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from croq_fsm.errors import EnvironmentMissing, LockHeld

_SHARED: Final = Path("/run/lock")
_NAME: Final = "croq_fsm"
_MAX_NOTE: Final = 4096


def lease_folder() -> Path:
    """Folder of the leases: shared by all users where that is possible, else our own.

    Raises:
        EnvironmentMissing: The fall-back belongs to somebody else.
    """
    shared = _SHARED / _NAME
    with contextlib.suppress(OSError):
        if not shared.exists():
            shared.mkdir()
            shared.chmod(0o1777)
        if shared.is_dir() and not shared.is_symlink() and os.access(shared, os.W_OK | os.X_OK):
            return shared
    own = Path("/tmp") / f"{_NAME}-{os.getuid()}"  # noqa: S108 - ownership is checked below
    own.mkdir(mode=0o700, exist_ok=True)
    if own.is_symlink() or own.stat().st_uid != os.getuid():
        raise EnvironmentMissing(f"{own} belongs to somebody else; remove it")
    return own


class DeviceLease:
    """Holds a device for this process; use as a context manager or by acquire and release.

    Args:
        uuid: Identity of the device.
        folder: Where the lock files are; see ``lease_folder``.
        run_id: Named in the file for whoever finds the device taken.
    """

    def __init__(self, uuid: str, folder: Path, run_id: str = "") -> None:
        self.uuid = uuid
        self.path = folder / (re.sub(r"[^A-Za-z0-9._-]", "_", uuid) + ".lock")
        self._run_id = run_id
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object holds the lease."""
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lease at once or not at all; taking it twice is no error.

        Raises:
            LockHeld: Another process has it; the text names it.
            EnvironmentMissing: The lock file cannot be made or opened.
        """
        if self.held:
            return
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = self.holder()
            os.close(descriptor)
            if exc.errno not in (errno.EAGAIN, errno.EACCES):
                raise EnvironmentMissing(f"cannot lock {self.path}: {exc}") from exc
            raise LockHeld(f"device {self.uuid} is taken by {_name(holder)}") from None
        self._descriptor = descriptor
        self._sign(descriptor)

    def release(self) -> None:
        """Give the lease back; always safe to call."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def holder(self) -> dict[str, str]:
        """What the latest holder wrote about itself; empty when nothing readable is there."""
        try:
            note = json.loads(self.path.read_text(encoding="utf-8", errors="replace")[:_MAX_NOTE])
        except (OSError, ValueError):
            return {}
        return {str(k): str(v) for k, v in note.items()} if isinstance(note, dict) else {}

    def __enter__(self) -> Self:
        """Take the lease."""
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it back."""
        self.release()

    def _open(self) -> int:
        """Open the file, and make it if need be, without following a link.

        First without O_CREAT: the kernel refuses that flag on another user's file in a folder
        that everybody may write to.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        for attempt in (os.O_RDWR, os.O_RDWR | os.O_CREAT, os.O_RDONLY):
            with contextlib.suppress(OSError):
                return os.open(self.path, attempt | flags, 0o644)
        raise EnvironmentMissing(f"cannot open {self.path} to take the device")

    def _sign(self, descriptor: int) -> None:
        """Say who we are. A file of another user cannot be signed, and is locked all the same."""
        note = {"pid": os.getpid(), "host": platform.node(), "run_id": self._run_id}
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(note).encode(), 0)


def _name(holder: dict[str, str]) -> str:
    if not holder:
        return "another process"
    return f"pid {holder.get('pid')} on {holder.get('host')} (run {holder.get('run_id')})"
