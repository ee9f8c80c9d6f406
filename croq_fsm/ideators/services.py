"""What the engine lends to ideators that need more than a context; see ``contract.Equipped``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from croq_fsm.domain.calls import CallBegun, CallEnded, Spent
from croq_fsm.toolchain.process import Runner


class Ledger(Protocol):
    """Where calls are recorded, each before it is started."""

    def begin(self, call: CallBegun) -> None:
        """A call is about to start; from now on it counts with all that it may cost."""

    def end(self, call_id: str, ended: CallEnded) -> None:
        """It ended."""

    def spent(self, *, since: float | None = None) -> Spent:
        """Cost of this session's calls, or of everybody's since a UTC time."""


class NullLedger:
    """Records nothing; for ideators that are used outside of a session."""

    def begin(self, call: CallBegun) -> None:
        """Forget it."""

    def end(self, call_id: str, ended: CallEnded) -> None:
        """Forget it."""

    def spent(self, *, since: float | None = None) -> Spent:
        """Nothing."""
        del since
        return Spent()


@dataclass(frozen=True)
class Services:
    """Lent to ideators for one session.

    Attributes:
        ledger: Records of calls.
        runner: Starts child processes; None outside of a daemon.
        folder: Private folder for work files; None outside of a daemon.
        deadline_s: Longest time that one question may take, seconds.
        stopping: Whether the daemon drains.
        tick: To be called several times a second while something is waited for.
        now: UTC seconds.
        sleep: Waits so many seconds.
    """

    ledger: Ledger = field(default_factory=NullLedger)
    runner: Runner | None = None
    folder: Path | None = None
    deadline_s: float = 300.0
    stopping: Callable[[], bool] = lambda: False
    tick: Callable[[], None] = lambda: None
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
