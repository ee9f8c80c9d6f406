"""Signals of the daemon: handlers set an event and do nothing else."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def draining(stop: threading.Event) -> Iterator[None]:
    """First SIGTERM or SIGINT sets ``stop``; a second SIGINT ends the process at once.

    Ending at once is harmless, because a session survives ``kill -9``. The former handlers
    come back at the end.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stop.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in former:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
