"""What the outside sees of a running daemon: pings, a status line, the log, answers to signals."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import structlog

from croq_fsm import notify
from croq_fsm.clock import Stillness
from croq_fsm.config import Config, Deadlines
from croq_fsm.logfile import LogFile
from croq_fsm.signals import Wanted
from croq_fsm.toolchain.process import ChildJournal, Command, Completed

_log = structlog.get_logger(__name__)


@dataclass
class Service:
    """What the outside sees of a daemon: pings, status line, log, answers to signals.

    Attributes:
        heart: Feeds the watchdog.
        wanted: What signals asked for.
        log: The log file.
        owns_log: Whether standard error leads to it, so that it is ours to move.
        still: Notices that we did not run.
        told: Where the session stands, in a line.
    """

    heart: notify.Heartbeat
    wanted: Wanted
    log: LogFile
    owns_log: bool
    still: Stillness = field(default_factory=Stillness)
    told: str = "starting"

    def tell(self, text: str) -> None:
        """A new status line."""
        self.told = text
        self.heart.notifier.status(text)

    def tick(self) -> None:
        """Serve signals and watchdog; called many times a second."""
        self.wanted.serve(self._reopen, lambda: _log.warning("status", told=self.told))
        self.heart.tick()

    def rest(self) -> None:
        """Between two steps: progress, and a look at the size of the log."""
        self.heart.progress()
        self.tick()
        if self.owns_log:
            self.log.keep_small()

    def _reopen(self) -> None:
        if self.owns_log:
            self.log.reopen()
        _log.warning("log reopened", ours=self.owns_log)


@dataclass(frozen=True)
class WatchedChildren:
    """The children table; each start and end of a child is progress."""

    table: ChildJournal
    heart: notify.Heartbeat

    def started(self, child_id: str, pid: int, start_time: float, command: Command) -> None:
        """A child runs."""
        self.table.started(child_id, pid, start_time, command)
        self.heart.progress()

    def ended(self, child_id: str, completed: Completed) -> None:
        """It is gone."""
        self.table.ended(child_id, completed)
        self.heart.progress()


def service_of(log: Path, config: Config, notifier: notify.Notifier, wanted: Wanted) -> Service:
    """The service of one start of the daemon."""
    file = LogFile(log, config.storage.log_mb << 20)
    heart = notify.Heartbeat(notifier, _patience_s(config.deadlines))
    return Service(heart, wanted, file, file.is_ours)


def _patience_s(deadlines: Deadlines) -> float:
    """Longest life of a child, and what ending it may take."""
    longest = max(
        deadlines.compile_s,
        deadlines.verify_s,
        deadlines.block_s,
        deadlines.profile_s,
        deadlines.ideator_s,
        deadlines.git_s,
    )
    return longest + deadlines.kill_grace_s + deadlines.reap_s
