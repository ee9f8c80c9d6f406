"""Signals of the daemon: handlers set flags; what they ask for is done between two steps of work.

====== =====================================================================================
TERM   drain: the step in hand is given up, the session stays where it is, exit code 0
INT    the same; a second TERM or INT ends the process by that signal at once (143 or 130)
HUP    reopen the log
USR1   dump the status into the log, and the stacks of all threads at once
====== =====================================================================================

Nothing is raised from a handler: an exception there could surface inside a commit.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass
class Wanted:
    """What signals have asked for and nobody has done yet.

    Attributes:
        reopen: A log shall be reopened.
        status: The status shall be dumped.
    """

    reopen: threading.Event = field(default_factory=threading.Event)
    status: threading.Event = field(default_factory=threading.Event)

    def serve(self, reopen: Callable[[], None], status: Callable[[], None]) -> None:
        """Do what was asked for, once; called on the main thread between pieces of work."""
        for event, act in ((self.reopen, reopen), (self.status, status)):
            if event.is_set():
                event.clear()
                act()


@contextmanager
def handled(stop: threading.Event, wanted: Wanted) -> Iterator[None]:
    """Handle the signals of the table above; the former handlers come back at the end.

    Ending at once is harmless, because a session survives ``kill -9``.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    def hang_up(_number: int, _frame: FrameType | None) -> None:
        wanted.reopen.set()

    def dump(_number: int, _frame: FrameType | None) -> None:
        wanted.status.set()

    handlers: dict[signal.Signals, Callable[[int, FrameType | None], None]] = {
        **dict.fromkeys(_ENDING, end),
        signal.SIGHUP: hang_up,
        signal.SIGUSR1: dump,
    }
    former = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        signal.signal(number, handler)
    with _stacks():
        try:
            yield
        finally:
            for number, old in former.items():
                signal.signal(number, old)


@contextmanager
def _stacks() -> Iterator[None]:
    """Also dump the stacks on USR1: that works even while the main thread is stuck."""
    try:
        error = sys.stderr.fileno()
    except (OSError, ValueError, io.UnsupportedOperation):
        # Standard error is no file here, for example under a test.
        yield
        return
    faulthandler.register(signal.SIGUSR1, file=error, all_threads=True, chain=True)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            faulthandler.unregister(signal.SIGUSR1)
