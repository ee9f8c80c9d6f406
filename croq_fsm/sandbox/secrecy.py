"""Keeping what the daemon knows to itself, also where children are not confined well."""

from __future__ import annotations

import ctypes
from typing import Final

_PR_SET_DUMPABLE: Final = 4


def hide() -> None:
    """Let no other process of this user read our memory or environment, or trace us.

    Keys for ideators are in there. Also leaves no core file. What we start can be looked at as
    ever: it has nothing of this.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(0), 0, 0, 0)
