"""Finding and ending processes that carry one of our markers in their environment.

A marker survives ``setsid``, re-parenting and the death of the daemon. Only processes that
carry it are touched, and it is read again, through a handle that cannot be re-used for another
process, just before the kill.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from croq_fsm.errors import DeviceWedged
from croq_fsm.toolchain import launcher

RUN_MARKER: Final = "CROQ_RUN_ID"
CHILD_MARKER: Final = "CROQ_CHILD_ID"

_PAUSE_S: Final = 0.02
_PROC: Final = Path("/proc")


def kill_survivors(
    run_id: str, reap_s: float = 30.0, tick: Callable[[], None] = lambda: None
) -> list[int]:
    """End every process that a former run started and that still lives.

    Args:
        run_id: The former run; never one that may still be alive.
        reap_s: Seconds to wait until they are gone.
        tick: Called while waiting.

    Returns:
        Pids that were killed.

    Raises:
        DeviceWedged: Some did not go in spite of SIGKILL.
    """
    return kill_marked(RUN_MARKER, run_id, reap_s, tick)


def kill_marked(
    marker: str, value: str, reap_s: float, tick: Callable[[], None] = lambda: None
) -> list[int]:
    """SIGKILL all processes with ``marker=value`` until none is left; see ``kill_survivors``."""
    killed: set[int] = set()
    until = time.monotonic() + reap_s
    while alive := _sweep(lambda pid: _carries(pid, marker, value)):
        killed.update(alive)
        if time.monotonic() > until:
            raise DeviceWedged(
                f"processes {alive} do not end in spite of SIGKILL; a driver probably holds them"
            )
        tick()
        time.sleep(_PAUSE_S)
    return sorted(killed)


def marked(marker: str, value: str) -> list[int]:
    """Pids of living processes, other than this one, with ``marker=value``."""
    return [pid for pid in _newest_first() if _carries(pid, marker, value)]


def kill_below(root: int) -> list[int]:
    """SIGKILL what descends from ``root`` now; pids that were signalled.

    Works for processes that cleared their environment, as long as ``root`` is a subreaper.
    """
    orphans = _sweep(lambda pid: _parent(pid) == root)
    below = launcher.descendants(root)
    family = {root, *below}
    return orphans + [pid for pid in below if _kill(pid, lambda p: _parent(p) in family)]


def _sweep(is_meant: Callable[[int], bool]) -> list[int]:
    """Look at every process once and kill the meant ones at once; pids that were signalled.

    Newest first and without delay: a process that does nothing but fork and exit is always the
    newest one, and gone a moment later.
    """
    return [pid for pid in _newest_first() if is_meant(pid) and _kill(pid, is_meant)]


def _newest_first() -> list[int]:
    """Pids of all other processes, by descending number."""
    own = os.getpid()
    pids = (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return sorted((pid for pid in pids if pid != own), reverse=True)


def cpu_seconds(root: int) -> float | None:
    """CPU time that the main threads below ``root`` have had, seconds; None where it is not kept.

    Reads the scheduler's own count, which is exact to the nanosecond, unlike process times.
    """
    total = 0
    try:
        for pid in launcher.descendants(root):
            text = (_PROC / str(pid) / "task" / str(pid) / "schedstat").read_text(encoding="ascii")
            total += int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return total * 1e-9


def _carries(pid: int, marker: str, value: str) -> bool:
    """Whether the process has the marker; the dead and the foreign have not."""
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{marker}={value}".encode() in environment.split(b"\0")


def _parent(pid: int) -> int:
    """Parent of a living process; 0 for one that is gone or dead."""
    try:
        state, parent = launcher.state_and_parent(str(pid))
    except (OSError, ValueError, IndexError):
        return 0
    return 0 if state in "ZX" else parent


def _kill(pid: int, is_meant: Callable[[int], bool]) -> bool:
    """Kill the process if it still is the one that was meant, proven through a fixed handle."""
    try:
        handle = os.pidfd_open(pid)
    except OSError as exc:
        # Kernels before 5.3 have no handles; the moment between look and kill is short there.
        return exc.errno == errno.ENOSYS and is_meant(pid) and _signal(pid)
    try:
        return is_meant(pid) and _signal(handle, signal.pidfd_send_signal)
    finally:
        os.close(handle)


def _signal(target: int, send: Callable[[int, int], None] = os.kill) -> bool:
    with contextlib.suppress(OSError):
        send(target, signal.SIGKILL)
        return True
    return False
