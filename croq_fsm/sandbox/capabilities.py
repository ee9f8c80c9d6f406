"""Giving up what root may do more than others. Standard library only."""

from __future__ import annotations

import ctypes
import struct

_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 47, 4
_VERSION_3 = 0x20080522
_LAST = 63
_SYS_ADMIN = 21


def drop(*, keep_admin: bool = False) -> None:
    """Leave the calling process without capabilities, and what it starts as well.

    Together with "no new privileges" a program of root gets none back.

    Args:
        keep_admin: Keep the one that profilers need where counters are for administrators; a
            process that does not have it does not get it.

    Raises:
        OSError: The kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    kept = _kept() if keep_admin else 0
    for number in range(_LAST + 1):
        if not kept >> number & 1:
            # Fails for those without the right to, who gain nothing by exec either.
            libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
    libc.prctl(_PR_CAP_AMBIENT, ctypes.c_ulong(_AMBIENT_CLEAR_ALL), 0, 0, 0)
    low, high = kept & 0xFFFFFFFF, kept >> 32
    header = struct.pack("=Ii", _VERSION_3, 0)
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")


def _kept() -> int:
    """What profilers need, as far as this process has it."""
    with open("/proc/self/status", "rb") as file:  # noqa: PTH123 - pathlib costs start-up time
        line = next(row for row in file if row.startswith(b"CapEff:"))
    return int(line.split()[1], 16) & (1 << _SYS_ADMIN)
