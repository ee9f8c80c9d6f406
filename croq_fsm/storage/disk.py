"""What errors of the operating system mean for the state, and a reserve for the worst of them."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from croq_fsm.errors import CroqError, DiskFailed, DiskFull, DiskReadOnly

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_BROKEN: Final = frozenset({errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EUCLEAN})
#: Below this SQLite cannot even grow its log by a few pages.
_NOTHING_BYTES: Final = 1 << 20
_BLOCK: Final = 1 << 20


def meaning(exc: BaseException) -> CroqError | None:
    """The error of ours that an error of the system, or its cause, stands for; else None."""
    seen: BaseException | None = exc
    while seen is not None:
        if isinstance(seen, OSError):
            found = _of_number(seen)
            if found is not None:
                return found
        seen = seen.__cause__
    return None


def _of_number(exc: OSError) -> CroqError | None:
    where = f" for {exc.filename}" if exc.filename else ""
    if exc.errno in _FULL:
        return DiskFull(f"no space left{where}; free some and run 'croq-fsm resume'")
    if exc.errno == errno.EROFS:
        return DiskReadOnly(
            f"the file system is read-only{where}; mount it writable and run 'croq-fsm resume'"
        )
    if exc.errno in _BROKEN:
        return failed(f"{exc.strerror}{where}")
    return None


def failed(what: str) -> DiskFailed:
    """The error for a disk that answers with errors."""
    return DiskFailed(
        f"the disk failed: {what}. Nothing after the last transition is lost but time; look at "
        "the kernel log, then run 'croq-fsm resume'"
    )


def is_exhausted(folder: Path) -> bool:
    """Whether next to nothing can be written below a folder any more."""
    try:
        return shutil.disk_usage(folder).free < _NOTHING_BYTES
    except OSError:
        return False


def is_read_only(folder: Path) -> bool:
    """Whether the file system of a folder is mounted read-only."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


@dataclass(frozen=True)
class Ballast:
    """A file whose only use is to be deleted: then the end can be recorded on a full disk.

    Attributes:
        path: The file.
        nbytes: Its size; 0 for none.
    """

    path: Path
    nbytes: int

    def take(self, spare_bytes: int) -> bool:
        """Allocate it where that leaves at least ``spare_bytes``; whether it is there."""
        try:
            if self.path.is_file() and self.path.stat().st_size == self.nbytes:
                return True
            if not self.nbytes:
                self.drop()
                return False
            if shutil.disk_usage(self.path.parent).free < self.nbytes + spare_bytes:
                return False
            self._write()
        except OSError:
            self.drop()
            return False
        return True

    def drop(self) -> bool:
        """Give the space back; whether there was any."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True

    def _write(self) -> None:
        """Real blocks: a sparse file would free nothing. Some file systems allocate by writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.nbytes)
        finally:
            os.close(descriptor)
