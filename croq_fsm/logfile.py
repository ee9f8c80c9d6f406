"""The log file of a detached daemon: reopened when asked, set aside when it is too large.

The file is what standard output and standard error lead to, so that whatever writes there, a
traceback of the interpreter included, ends up in it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STANDARD: Final = (1, 2)


@dataclass(frozen=True)
class LogFile:
    """The log of this process, if it has one.

    Attributes:
        path: The file.
        most_bytes: Size at which it is renamed to ``<name>.1``, replacing an older one; so the
            log never takes much more than twice that. 0 for no bound.
    """

    path: Path
    most_bytes: int

    @property
    def is_ours(self) -> bool:
        """Whether standard error leads to the file; a terminal or a pipe is not ours to move."""
        try:
            return os.path.samestat(os.fstat(_STANDARD[1]), self.path.stat())
        except OSError:
            return False

    def reopen(self) -> None:
        """Let standard output and error lead to the file of that name, a new one if it is gone."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            for number in _STANDARD:
                os.dup2(descriptor, number)
        finally:
            if descriptor not in _STANDARD:
                os.close(descriptor)

    def keep_small(self) -> bool:
        """Set the file aside when it is too large; whether it was."""
        if not self.most_bytes or not self.is_ours:
            return False
        if self.path.stat().st_size < self.most_bytes:
            return False
        self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        self.reopen()
        return True
