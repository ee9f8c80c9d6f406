"""Simulated time: it stands still until something takes time, and then leaps."""

from __future__ import annotations

import threading
from dataclasses import dataclass

_MICRO = 1_000_000


@dataclass
class SimulatedClock:
    """A clock that only work and waiting move.

    Times are whole microseconds, as the database keeps them: a session that goes on where its
    last transition stands sees the very times of one that was never stopped.

    Attributes:
        origin: UTC microseconds at which the simulated session began.
        micros: UTC microseconds now.
    """

    origin: int = 0
    micros: int = 0

    def start(self, origin: int, now: int) -> None:
        """Put the clock to a session: when it began, and its last transition; UTC µs."""
        self.origin, self.micros = origin, now

    def now(self) -> float:
        """UTC seconds since the epoch; half a microsecond more, so that rounding down is exact."""
        return (self.micros + 0.5) / _MICRO

    def jumped(self) -> float | None:
        """Nobody sets this clock."""
        return None

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return (self.micros - self.origin) / _MICRO

    def advance(self, seconds: float) -> None:
        """Work took so long."""
        self.micros += round(max(0.0, seconds) * _MICRO)

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Let time pass, unless the daemon drains; whether it does."""
        if not stop.is_set():
            self.advance(seconds)
        return stop.is_set()
