"""The notify protocol of service managers (``sd_notify``), and when to say that we are alive.

Without ``NOTIFY_SOCKET`` nothing is sent. The variables are taken out of the environment, so
that no child can speak for the daemon.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

#: The manager gives up after its interval; half of it leaves room for a late ping.
_SHARE: Final = 0.5
_LONGEST_STATUS: Final = 400
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Notifier:
    """Sends messages to the service manager.

    Attributes:
        address: Path of its socket, or an abstract name with ``@``; "" for none.
        watchdog_s: Seconds after which the manager kills a silent daemon; None for no watchdog.
    """

    address: str = ""
    watchdog_s: float | None = None

    def ready(self, status: str) -> None:
        """Lock, migration and recovery are done."""
        self._send(f"READY=1\nSTATUS={_line(status)}\nMAINPID={os.getpid()}")

    def status(self, status: str) -> None:
        """One line for people."""
        self._send(f"STATUS={_line(status)}")

    def stopping(self) -> None:
        """An orderly end has begun."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def extend(self, seconds: float) -> None:
        """Ask for more time, for a start or an end that takes long."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def _send(self, message: str) -> None:
        """A manager that does not listen must not end the night."""
        if not self.address:
            return
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), name)
        except OSError as exc:
            _log.warning("the service manager was not reached", why=str(exc))


def from_environment(environment: dict[str, str] | None = None) -> Notifier:
    """The notifier that the service manager asks for; its variables are removed."""
    variables = os.environ if environment is None else environment
    address = variables.pop("NOTIFY_SOCKET", "")
    period = variables.pop("WATCHDOG_USEC", "")
    meant = variables.pop("WATCHDOG_PID", "")
    watchdog = None
    if meant in ("", str(os.getpid())):
        with contextlib.suppress(ValueError):
            watchdog = int(period) / 1e6
    return Notifier(address if address[:1] in ("/", "@") else "", watchdog or None)


@dataclass
class Heartbeat:
    """Feeds the watchdog, but only while there is progress.

    A daemon that spins without getting anywhere is as dead as one that sleeps: progress is a
    transition, the start or end of a child, or a look between two steps. A child may take as
    long as its own deadline lets it.

    Attributes:
        notifier: Where pings go.
        patience_s: Longest time without progress that is still alive: the longest deadline of a
            child, and what ending it may take.
        now: Monotonic seconds.
    """

    notifier: Notifier
    patience_s: float
    now: Callable[[], float] = time.monotonic
    _progress: float = field(default=0.0, init=False)
    _pinged: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        """A start is progress."""
        self._progress = self.now()

    def progress(self) -> None:
        """Something was got done."""
        self._progress = self.now()
        self.tick()

    def tick(self) -> None:
        """Called all the time; pings when one is due and deserved."""
        if self.notifier.watchdog_s is None:
            return
        now = self.now()
        if now - self._pinged < self.notifier.watchdog_s * _SHARE:
            return
        if now - self._progress <= self.patience_s:
            self._pinged = now
            self.notifier.alive()


def _line(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_STATUS]
