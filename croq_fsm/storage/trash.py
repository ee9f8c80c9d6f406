"""A trash below the state folder: files are moved there with a manifest, never deleted.

::

    <state>/trash/<stamp>/manifest.json     what was moved, and why
    <state>/trash/<stamp>/<path>            the files, as they lay below the root
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from croq_fsm.errors import UsageError
from croq_fsm.storage import files

MANIFEST: Final = "manifest.json"
_SCHEMA: Final = "croq-trash-v1"


@dataclass(frozen=True)
class Bag:
    """One cleaning.

    Attributes:
        folder: ``<state>/trash/<stamp>``.
        paths: What was to be moved, relative to the root.
        sessions: Sessions that were set aside with it.
        undone: Whether it was brought back.
    """

    folder: Path
    paths: tuple[str, ...]
    sessions: tuple[str, ...]
    undone: bool = False

    @property
    def stamp(self) -> str:
        """Its name."""
        return self.folder.name


def new_stamp(at: int) -> str:
    """Name of a cleaning at a time in UTC microseconds; sorts by time."""
    return datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y%m%dT%H%M%S%fZ")


def announce(trash: Path, stamp: str, paths: tuple[str, ...], sessions: tuple[str, ...]) -> Bag:
    """Write the manifest, durably, before anything moves."""
    bag = Bag(trash / stamp, paths, sessions)
    bag.folder.mkdir(mode=0o700, parents=True)
    _write(bag)
    return bag


def fill(bag: Bag, root: Path) -> list[str]:
    """Move what is there; returns what was moved."""
    return [path for path in bag.paths if _move(files.inside(root, path), bag.folder / path)]


def restore(bag: Bag, root: Path) -> tuple[list[str], list[str]]:
    """Move everything back, except where something new lies by now.

    Returns:
        What was brought back, and what had to stay in the trash.
    """
    back, kept = [], []
    for path in bag.paths:
        source, target = files.inside(bag.folder, path), files.inside(root, path)
        if os.path.lexists(source) and os.path.lexists(target):
            kept.append(path)
        elif _move(source, target):
            back.append(path)
    _write(Bag(bag.folder, bag.paths, bag.sessions, undone=True))
    return back, kept


def newest(trash: Path) -> Bag:
    """The latest cleaning that was not undone.

    Raises:
        UsageError: There is none.
    """
    folders = sorted(trash.iterdir(), reverse=True) if trash.is_dir() else []
    bags = (_read(folder) for folder in folders)
    bag = next((bag for bag in bags if bag is not None and not bag.undone), None)
    if bag is None:
        raise UsageError(f"nothing in {trash} can be brought back")
    return bag


def _read(folder: Path) -> Bag | None:
    try:
        content: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return Bag(
            folder,
            tuple(map(str, content["paths"])),
            tuple(map(str, content["sessions"])),
            undone=bool(content["undone"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(bag: Bag) -> None:
    content = {
        "schema": _SCHEMA,
        "paths": list(bag.paths),
        "sessions": list(bag.sessions),
        "undone": bag.undone,
    }
    text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
    files.write(bag.folder, MANIFEST, text.encode())
    files.fsync_folder(bag.folder.parent)


def _move(source: Path, target: Path) -> bool:
    """Move one file, link or folder as it is; False when it is not there."""
    if not os.path.lexists(source):
        return False
    files.make_folder(target.parent)
    # A state folder on another disk than the root makes a rename impossible.
    shutil.move(source, target)
    files.fsync_folder(target.parent)
    return True
