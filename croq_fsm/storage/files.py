"""Durable files inside one folder: temp + fsync + rename + directory fsync, never outside."""

from __future__ import annotations

import os
from pathlib import Path

from croq_fsm import faults
from croq_fsm.errors import UsageError


def inside(root: Path, relative: str) -> Path:
    """Absolute path of ``relative`` below ``root``.

    Raises:
        UsageError: The path is absolute, climbs out, or a folder on the way is a symbolic link.
    """
    path = Path(relative)
    if path.is_absolute() or ".." in path.parts:
        raise UsageError(f"path {relative!r} leaves the root {root}")
    here = root
    for part in path.parts[:-1]:
        here = here / part
        if here.is_symlink():
            raise UsageError(f"{here} is a symbolic link; files are written to real folders only")
    return root / path


def write(root: Path, relative: str, data: bytes, *, mode: int = 0o644) -> None:
    """Make the file hold exactly ``data``, durably. Nothing is written when it does already."""
    path = inside(root, relative)
    if holds(path, data) and (path.stat().st_mode & 0o777) == mode:
        return
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        faults.point("before_rename")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def append(root: Path, relative: str, offset: int, data: bytes) -> bool:
    """Append ``data`` at ``offset``, once.

    Returns:
        False when the file is not what the offset says (torn, edited, missing); the caller
        then writes it whole. True when the data is there, now or from an earlier try.
    """
    path = inside(root, relative)
    size = path.stat().st_size if path.is_file() and not path.is_symlink() else -1
    if offset == 0 and size == -1:
        write(root, relative, data)
        return True
    if size == offset + len(data):
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read() == data
    if size != offset:
        return False
    with path.open("ab") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return True


def holds(path: Path, data: bytes) -> bool:
    """Whether a regular file holds exactly these bytes."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != len(data):
        return False
    return path.read_bytes() == data


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, each durable in its parent."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    fsync_folder(folder.parent)


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
