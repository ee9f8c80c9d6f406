"""How much a child may leave on the disk: no limit of the system counts a folder."""

from __future__ import annotations

import os
import shutil
import time
from typing import Final

from croq_fsm.toolchain.process import Command

#: Bytes of one file, where a command does not say.
LARGEST_FILE: Final = 8 << 30
_MOST: Final = 8 << 30
_MOST_FILES: Final = 20_000
_BLOCK: Final = 512
_LOOK_S: Final = 0.5


class Quota:
    """Watches a child's working folder; asked often, looks twice a second.

    Args:
        command: What runs; ``disk_cap`` bounds its folder.
    """

    def __init__(self, command: Command) -> None:
        self._folder = command.cwd
        self._cap = command.disk_cap
        self._looked = time.monotonic()
        self._broken = ""

    @property
    def exceeded(self) -> bool:
        """Whether the folder has grown too large; stays true."""
        if not self._broken and time.monotonic() - self._looked >= _LOOK_S:
            self._look()
            self._looked = time.monotonic()
        return bool(self._broken)

    @property
    def text(self) -> str:
        """What was exceeded."""
        return self._broken

    def _look(self) -> None:
        if self._cap is None:
            self._cap = min(_MOST, shutil.disk_usage(self._folder).free // 2)
        used, files = usage(self._folder)
        if used > self._cap:
            self._broken = f"more than {self._cap >> 20} MiB in its folder"
        elif files > _MOST_FILES:
            self._broken = f"more than {_MOST_FILES} files in its folder"


def usage(folder: str | os.PathLike[str]) -> tuple[int, int]:
    """Bytes on disk and number of files below a folder; follows no link, passes what vanishes."""
    used = files = 0
    waiting = [os.fspath(folder)]
    while waiting and files <= _MOST_FILES:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            try:
                used += entry.stat(follow_symlinks=False).st_blocks * _BLOCK
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
            except OSError:
                continue
            files += 1
    return used, files
