"""Writing all files of a root again from its database and its build cache, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from croq_fsm.storage import expected, files
from croq_fsm.storage.auditing import UNREADABLE, Auditor
from croq_fsm.storage.expected import Expected


@dataclass(frozen=True)
class Restored:
    """What came of it; paths are relative to the root.

    Attributes:
        written: Files that were missing or different.
        unchanged: How many held the right bytes already.
        lost: Files whose content the cache does not hold any more.
        overwritten: Files of this session that a later session of the same task owns now.
        unreadable: Sessions whose rows cannot be read.
    """

    written: tuple[str, ...]
    unchanged: int
    lost: tuple[str, ...]
    overwritten: tuple[str, ...]
    unreadable: tuple[str, ...]


def restore(
    auditor: Auditor,
    root: Path,
    cached: Callable[[str], bytes],
    session_id: str | None,
    *,
    dry_run: bool,
) -> Restored:
    """Write what differs; must run under the root's lock.

    Args:
        auditor: The database.
        root: Top folder of the repository.
        cached: Content of a file in the build cache, by relative path.
        session_id: Only files of this session; None means all.
        dry_run: Look only.

    Raises:
        UsageError: A folder on the way is a symbolic link, or a path leaves the root.
    """
    every, unreadable = _every(auditor)
    owned = expected.owned(every)
    mine = [f for f in every if session_id in (None, f.session_id)]
    written, unchanged, lost = [], 0, []
    for file in (f for f in mine if owned[f.path] is f):
        if _is_right(root, file):
            unchanged += 1
            continue
        data = expected.content(auditor, file, cached)
        if data is None:
            lost.append(file.path)
            continue
        if not dry_run:
            files.write(root, file.path, data, mode=file.mode)
        written.append(file.path)
    others = () if session_id is None else (f.path for f in mine if owned[f.path] is not f)
    return Restored(tuple(written), unchanged, tuple(lost), tuple(others), unreadable)


def _every(auditor: Auditor) -> tuple[list[Expected], tuple[str, ...]]:
    """All files of all sessions, and the sessions that cannot be read."""
    found: list[Expected] = []
    unreadable = []
    for stand in auditor.stands():
        try:
            found += expected.of_session(auditor, auditor.session(stand.id))
        except UNREADABLE:
            unreadable.append(stand.id)
    return found, tuple(unreadable)


def _is_right(root: Path, file: Expected) -> bool:
    """Whether the file holds its bytes and has its mode; raises for a link on the way."""
    path = files.inside(root, file.path)
    if path.is_symlink() or not path.is_file():
        return False
    status = path.stat()
    if status.st_size != file.size or status.st_mode & 0o777 != file.mode:
        return False
    return expected.hash_of(path) == file.sha256
