"""Time that nobody can set back or forth while the daemon runs, and whether we slept through some.

A clock that is put right at three in the morning, by a time service or by hand, must neither end
a night of eight hours after two nor make a back-off of a minute last for days. So the wall clock
is read once, at the start; from then on seconds are counted by the boot clock, which includes the
time that the machine was suspended and which nobody can change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

#: A difference from the wall clock that is worth a warning; time services slew by less.
_JUMP_S: Final = 5.0


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass
class SystemClock:
    """The machine's clock, immune to being set.

    Attributes:
        wall: UTC seconds as the machine says them.
        counted: Seconds since boot, suspended time included.
    """

    wall: Callable[[], float] = time.time
    counted: Callable[[], float] = _boot_seconds
    _offset: float = field(default=0.0, init=False)
    _told: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Read the wall clock, this once."""
        self._offset = self.wall() - self.counted()

    def now(self) -> float:
        """UTC seconds since the epoch, as of the start of the daemon; never runs backwards."""
        return self.counted() + self._offset

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Let time pass, or less when the daemon is asked to drain; whether it is."""
        return stop.wait(seconds)

    def jumped(self) -> float | None:
        """Seconds by which the wall clock has left this one, once for each jump; else None."""
        ahead = self.wall() - self.now()
        if abs(ahead - self._told) < _JUMP_S:
            return None
        self._told = ahead
        return ahead


@dataclass
class Stillness:
    """Notices that this process did not run for a while: stopped, frozen, or suspended.

    What was measured meanwhile, and every deadline that passed meanwhile, says nothing about the
    candidate. A thread that does nothing but look at the clock leaves a gap where nobody ran,
    however busy the main thread is.

    Attributes:
        longest_s: Gap that is still taken for a busy machine.
        now: Seconds since boot; time in which the machine was suspended counts.
    """

    longest_s: float = 5.0
    now: Callable[[], float] = _boot_seconds
    _last: float = field(default=0.0, init=False)
    _still: float = field(default=0.0, init=False)

    def begin(self) -> None:
        """A step begins; nothing before it counts."""
        self._last, self._still = self.now(), 0.0

    def tick(self) -> None:
        """We run."""
        now = self.now()
        if now - self._last > self.longest_s:
            self._still += now - self._last
        self._last = now

    def stood_still_s(self) -> float:
        """Seconds of this step in which the process did not run; 0.0 when it always did."""
        self.tick()
        return self._still

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at the clock several times within each gap that would count."""
        over = threading.Event()
        self.begin()

        def look() -> None:
            while not over.wait(self.longest_s / 10):
                self.tick()

        thread = threading.Thread(target=look, name="stillness", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
