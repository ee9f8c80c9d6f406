"""Ending the user's own other processes on the device, if the configuration asks for just that.

``contention.kill = "own-user"``. Never touched are: processes of other users, ourselves, our
ancestors and everything below us, whatever a daemon of ours started, and the holder of a device
lease with its tree. A process id of the driver may be one of another namespace and name somebody
here by chance; so a process is ended only if it has the device open.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import psutil

from croq_fsm.gpu.contention import Occupant, own_tree
from croq_fsm.toolchain.survivors import RUN_MARKER

_GRACE_S: Final = 5.0
_DEVICE_FILES: Final = "/dev/nvidia"


def has_device_open(pid: int) -> bool:
    """Whether a process holds a file of the driver open; False when nobody may know."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(_DEVICE_FILES):  # noqa: PTH115 - a device, no path
                    return True
    return False


def end_own_users(
    occupants: Iterable[Occupant],
    lease_holder: int | None = None,
    *,
    uses_device: Callable[[int], bool] = has_device_open,
) -> list[str]:
    """End what may be ended, politely first; names of what was ended.

    Args:
        occupants: Compute processes on the device, as the driver names them.
        lease_holder: Process that holds the lease of the device, if it is not ours.
        uses_device: Whether a process has the device open.
    """
    protected = set(own_tree()[0]) | _tree(lease_holder)
    ended = []
    for occupant in occupants:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(occupant.pid)
            if (
                occupant.visible
                and occupant.pid not in protected
                and _is_ours_to_end(process)
                and uses_device(occupant.pid)
            ):
                _end(process)
                ended.append(f"{occupant.name} (pid {occupant.pid})")
    return ended


def _is_ours_to_end(process: psutil.Process) -> bool:
    """The same user through and through, and no child of any daemon of croq_fsm."""
    uids = process.uids()
    if {uids.real, uids.effective, uids.saved} != {os.getuid()}:
        return False
    return RUN_MARKER not in process.environ()


def _tree(pid: int | None) -> set[int]:
    if pid is None:
        return set()
    try:
        top = psutil.Process(pid)
        return {pid, *(p.pid for p in (*top.parents(), *top.children(recursive=True)))}
    except psutil.Error:
        return {pid}


def _end(process: psutil.Process) -> None:
    """A signal goes to a process only if it is still the one that was looked at."""
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except psutil.TimeoutExpired:
        process.kill()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(_GRACE_S)
