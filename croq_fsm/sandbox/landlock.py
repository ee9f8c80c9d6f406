"""Landlock: which files a process may touch, whatever its user may. Standard library only.

The kernel's rights grow with its ABI; what a kernel does not know is left out, and what that
leaves open is for the probe to find. Rights are given for a path and everything below it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_REMOVE_DIR = 1 << 4
_REMOVE_FILE = 1 << 5
_MAKE_DIR = 1 << 7
_MAKE_REG = 1 << 8
_MAKE_SOCK = 1 << 9
_MAKE_FIFO = 1 << 10
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15

#: Number of file rights that an ABI knows; later ones know no more than 16.
_KNOWN = {1: 13, 2: 14, 3: 15, 4: 15}
#: Rights that a plain file can have; others are refused for it.
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_NET_SINCE = 4
_SCOPES_SINCE = 6

_READ = _READ_FILE | _READ_DIR
#: Names of grants. ``own`` has no links, no devices and no execution.
GRANTS = {
    "read": _READ,
    "exec": _READ | _EXECUTE,
    "change": _READ | _WRITE_FILE | _TRUNCATE,
    "device": _READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV,
    "own": (
        _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE
        | _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _REFER
    ),
}  # fmt: skip


def abi() -> int:
    """Version that the kernel speaks; 0 when it has none or it is turned off."""
    version: int = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    return max(0, version)


def restrict(rules: list[tuple[str, str]], *, network: bool) -> None:
    """Confine the calling process and all that it will start.

    Args:
        rules: Paths and names of grants; a path that does not exist is passed over.
        network: Whether the kernel's TCP rules are left off, because a namespace rules already.

    Raises:
        OSError: The kernel has Landlock, and refuses.
    """
    version = abi()
    if version == 0:
        return
    known = (1 << _KNOWN.get(version, 16)) - 1
    attributes = [known]
    if version >= _NET_SINCE:
        attributes.append(0 if network else _TCP)
    if version >= _SCOPES_SINCE:
        attributes.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    packed = struct.pack(f"={len(attributes)}Q", *attributes)
    ruleset = _call(_CREATE_RULESET, packed, ctypes.c_size_t(len(packed)), 0)
    try:
        for path, grant in rules:
            _allow(ruleset, path, GRANTS[grant] & known)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as exc:
        if exc.errno in (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENXIO):
            return
        raise
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: object) -> int:
    result: int = _libc().syscall(number, *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return result


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
