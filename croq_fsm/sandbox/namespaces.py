"""Private views of network, mounts and shared memory, where the kernel permits them.

Standard library only. What a process of root could write below ``/proc`` although it has no
capability left (``core_pattern`` runs programs on the host) is made read-only; folders in which
others have their sockets are covered.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_NEWNS = 0x00020000
_NEWIPC = 0x08000000
_NEWUSER = 0x10000000
_NEWNET = 0x40000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_OF_THE_SYSTEM = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr")


def separate(covers: list[str]) -> bool:
    """Give the calling process namespaces of its own; whether that was permitted.

    Args:
        covers: Folders to put an empty one over.
    """
    if not _unshare():
        return False
    _mount("none", "/", None, _MS_REC | _MS_PRIVATE)
    for name in _OF_THE_SYSTEM:
        with contextlib.suppress(OSError):
            _freeze(f"/proc/{name}")
    for folder in covers:
        with contextlib.suppress(OSError):
            _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    return True


def system_is_writable() -> bool:
    """Whether this process could change settings of the kernel through ``/proc``."""
    paths = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/sys/kernel/modprobe")
    return any(os.access(path, os.W_OK) for path in paths)


def _unshare() -> bool:
    """As root outright; else through a user namespace in which everybody keeps his number."""
    kinds = _NEWNS | _NEWIPC | _NEWNET
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(kinds) == 0:
        return True
    user, group = os.geteuid(), os.getegid()
    if libc.unshare(kinds | _NEWUSER) != 0:
        return False
    with contextlib.suppress(OSError):
        _write("setgroups", "deny")
        _write("uid_map", f"{user} {user} 1")
        _write("gid_map", f"{group} {group} 1")
    return True


def _freeze(path: str) -> None:
    _mount(path, path, None, _MS_BIND | _MS_REC)
    _mount("none", path, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def _mount(source: str, target: str, kind: str | None, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    as_bytes = (source.encode(), target.encode(), kind.encode() if kind else None)
    if libc.mount(*as_bytes, ctypes.c_ulong(flags), None) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


def _write(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib costs start-up time
        file.write(text)
