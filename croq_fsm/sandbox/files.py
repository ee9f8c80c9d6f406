"""Taking results out of a folder that foreign code could write to.

What lies there may be a link to somebody's file, a pipe that never ends, a device, or larger than
the memory. No link is followed in any part of the path below the folder, only plain files are
read, and what is opened is what was looked at.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Final

from croq_fsm.errors import CandidateError, CandidateRefused

#: Bytes that a result may have where nobody says.
MOST: Final = 1 << 30
_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC
#: A pipe without a writer must not hold us up.
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | _FLAGS
_CHUNK: Final = 1 << 20


def read_bytes(
    folder: Path,
    relative: str,
    *,
    most: int = MOST,
    error: type[CandidateError] = CandidateRefused,
) -> bytes:
    """Content of a plain file.

    Args:
        folder: Folder of the child; itself ours, and no link.
        relative: Path below it.
        most: Largest number of bytes that is taken.
        error: What to raise for anything else than a plain file of that size.

    Raises:
        CandidateError: As said; its text names the file and what it is.
    """
    descriptor = _open(folder, relative, most, error)
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise error(f"{relative} has grown beyond {most >> 20} MiB")
    return content


def read_text(
    folder: Path,
    relative: str,
    *,
    most: int = MOST,
    error: type[CandidateError] = CandidateRefused,
) -> str:
    """The same as text, decoded with replacement."""
    return read_bytes(folder, relative, most=most, error=error).decode("utf-8", "replace")


def is_plain(folder: Path, relative: str) -> bool:
    """Whether a plain file is there."""
    try:
        os.close(_open(folder, relative, MOST, CandidateRefused))
    except CandidateRefused:
        return False
    return True


def must_be_plain(path: Path) -> None:
    """Raise CandidateRefused when something is there, and it is no plain file."""
    if os.path.lexists(path):
        os.close(_open(path.parent, path.name, sys.maxsize, CandidateRefused))


def write_bytes(folder: Path, name: str, content: bytes) -> Path:
    """Write a file of ours into the folder, in place of whatever has that name.

    Returns:
        Its path.

    Raises:
        OSError: A folder has that name, or the system refuses.
    """
    path = folder / name
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return path


def copy_plain(source: Path, target: Path, most: int = MOST) -> None:
    """Copy a file with its mode; never what a link points to.

    Raises:
        CandidateRefused: The source is no plain file, or too large.
        OSError: Anything else that the system says.
    """
    descriptor = _open(source.parent, source.name, most, CandidateRefused)
    with os.fdopen(descriptor, "rb") as taken, target.open("xb") as given:
        left = most
        while piece := taken.read(min(_CHUNK, left + 1)):
            left -= len(piece)
            if left < 0:
                raise CandidateRefused(f"{source.name} has grown beyond {most >> 20} MiB")
            given.write(piece)
        os.fchmod(given.fileno(), stat.S_IMODE(os.fstat(taken.fileno()).st_mode) & 0o755)


def _open(folder: Path, relative: str, most: int, error: type[CandidateError]) -> int:
    """Descriptor of a plain file below a folder, every part of its path looked at."""
    *parents, name = Path(relative).parts
    if Path(relative).is_absolute() or ".." in parents or name == "..":
        raise error(f"{relative} is not below the folder")
    where = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parents:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | _FLAGS, dir_fd=where)
            os.close(where)
            where = below
        descriptor = os.open(name, _READ, dir_fd=where)
    except OSError as exc:
        raise error(f"{relative} is no plain file: {exc.strerror}") from exc
    finally:
        os.close(where)
    found = os.fstat(descriptor)
    problem = ""
    if not stat.S_ISREG(found.st_mode):
        problem = "is no plain file"
    elif found.st_nlink != 1:
        problem = "has another name elsewhere"
    elif found.st_size > most:
        problem = f"has {found.st_size >> 20} MiB, more than {most >> 20}"
    if problem:
        os.close(descriptor)
        raise error(f"{relative} {problem}")
    return descriptor
