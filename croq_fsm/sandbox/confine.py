"""Laying every restriction on the calling process, between fork and exec.

Standard library only. A layer that the kernel does not have is passed over: what is then left
open is what the probe finds, and the demanded level decides whether to go on. A layer that the
kernel has and refuses is an error, and the program is not started.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

from croq_fsm.sandbox import capabilities, landlock, namespaces, seccomp

_PR_SET_NO_NEW_PRIVS = 38
_TRUNCATE_SINCE = 3
_SCOPES_SINCE = 6


def confine(jail: dict[str, Any]) -> None:
    """Apply a jail as ``policy.jail`` describes it.

    Raises:
        OSError: A restriction that the kernel has is refused.
    """
    os.umask(0o077)
    separate = bool(jail["separate"]) and namespaces.separate(jail["covers"])
    _no_new_privileges()
    capabilities.drop(keep_admin=jail["keep_admin"])
    version = landlock.abi() if jail["files"] else 0
    if version:
        landlock.restrict(_rules(jail), network=separate)
    if jail["calls"]:
        sockets = jail["sockets"]
        if sockets == "all" and not separate:
            sockets = "unix"
        seccomp.install(
            {
                "sockets": sockets,
                "fork": jail["fork"],
                "share": jail["share"],
                "attributes": jail["attributes"],
                "signals": version >= _SCOPES_SINCE,
                "truncate": version >= _TRUNCATE_SINCE or not version,
            }
        )


def _rules(jail: dict[str, Any]) -> list[tuple[str, str]]:
    """The jail's rules; changing ``/proc`` is granted only where that reaches no setting."""
    rules = [(str(path), str(grant)) for path, grant in jail["files"]]
    if jail["watches"] and not namespaces.system_is_writable():
        rules.append(("/proc", "change"))
    return rules


def _no_new_privileges() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
