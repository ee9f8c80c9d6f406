"""A filter of system calls: no network, no reach for other processes, nothing of the system's.

Standard library only. The filter names what is refused, because compilers and drivers need most
of the rest; a refused call fails like one that is not permitted. What depends on a path is not
decided here: a filter sees numbers only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from croq_fsm.sandbox.syscalls import table

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_LOAD = 0x20
_AND = 0x54
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
_KILL = 0x80000000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_AF_UNIX = 1
_SOCK_MASK, _SOCK_DGRAM = 0xF, 2
_O_ACCMODE, _O_TRUNC = 0o3, 0o1000
_TERMINAL_INJECTION = (0x5412, 0x541C)

_SYSTEM = (
    "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime",
    "delete_module", "fanotify_init", "fanotify_mark", "finit_module", "fsconfig", "fsmount",
    "fsopen", "fspick", "init_module", "ioperm", "iopl", "kexec_file_load", "kexec_load",
    "keyctl", "lookup_dcookie", "mount", "mount_setattr", "move_mount", "name_to_handle_at",
    "nfsservctl", "open_by_handle_at", "open_tree", "pivot_root", "quotactl", "reboot",
    "request_key", "setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon",
    "syslog", "umount2", "unshare", "userfaultfd", "vhangup",
)  # fmt: skip
#: The first of them would go round every other rule here.
_OTHERS = (
    "io_uring_setup", "io_uring_enter", "io_uring_register", "kcmp", "migrate_pages",
    "move_pages", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev",
    "ptrace",
)  # fmt: skip
#: What is known of a file beside its content; no right of Landlock's covers it.
_ATTRIBUTES = (
    "chmod", "chown", "fchmodat", "fchmodat2", "fchownat", "lchown", "lremovexattr", "lsetxattr",
    "removexattr", "removexattrat", "setxattr", "setxattrat",
)  # fmt: skip
_SHARED = ("mq_open", "msgget", "semget", "shmat", "shmctl", "shmget")
#: Calls that change a process by its number, and which argument that is.
_BY_PID = {
    "ioprio_set": 1,
    "prlimit64": 0,
    "sched_setaffinity": 0,
    "sched_setattr": 0,
    "sched_setparam": 0,
    "sched_setscheduler": 0,
    "setpriority": 1,
}
_SIGNALS = ("kill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "tkill")

Instruction = tuple[int, int, int, int]


class _Filter:
    """Instructions, one rule behind the other; each begins with the call's number loaded."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self._numbers = numbers
        self.code: list[Instruction] = []

    def refuse(self, names: tuple[str, ...], code: int = errno.EPERM) -> None:
        """Let calls fail; one that the machine does not have is passed over."""
        for name in names:
            self.when(name, [(_RETURN, 0, 0, _REFUSE | code)])

    def when(self, name: str, body: list[Instruction]) -> None:
        """Do something in a call; falls through to the next rule when it does not return."""
        number = self._numbers.get(name)
        if number is not None:
            self.code.append((_IF_EQUAL, 0, len(body) + 1, number))
            self.code += [*body, (_LOAD, 0, 0, _NUMBER)]


def install(policy: dict[str, object]) -> bool:
    """Put the calling process under the filter; whether the kernel and the machine can do it.

    Args:
        policy: What is allowed: ``sockets`` (``none``, ``listen``: unix sockets that do not call
            others, ``unix``, ``all``), ``fork``, ``attributes`` (of files, by their path),
            ``share`` (System V memory), ``signals`` and ``truncate`` (where Landlock guards
            others against them).
    """
    code = build(os.uname().machine, policy, os.getpid())
    if not code:
        return False
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("@HP", len(code), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    mode, unused = ctypes.c_ulong(_MODE_FILTER), ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_SECCOMP, mode, program, unused, unused) == 0:
        return True
    if ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(ctypes.get_errno(), "the filter of system calls is refused")


def build(machine: str, policy: dict[str, object], pid: int) -> list[Instruction]:
    """The filter's program; empty for a machine whose numbers are not known."""
    known = table(machine)
    if known is None:
        return []
    arch, numbers = known
    made = _Filter(numbers)
    made.code += [
        (_LOAD, 0, 0, _ARCH),
        (_IF_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        made.code += [(_IF_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)]
    made.refuse(_SYSTEM)
    made.refuse(_OTHERS)
    # Its flags lie in memory, where a filter cannot look; C libraries then take the older call.
    made.refuse(("clone3",), errno.ENOSYS)
    _processes(made, fork=bool(policy["fork"]))
    _sockets(made, str(policy["sockets"]))
    for name, place in _BY_PID.items():
        made.when(name, _unless_own(place, pid))
    for request in _TERMINAL_INJECTION:
        made.when("ioctl", _if_argument(1, request))
    if not policy["share"]:
        made.refuse(_SHARED)
    if not policy["attributes"]:
        made.refuse(_ATTRIBUTES)
    if not policy["signals"]:
        made.refuse(_SIGNALS)
        made.when("tgkill", _unless_own(0, pid))
    if not policy["truncate"]:
        _truncation(made)
    return [*made.code, (_RETURN, 0, 0, _ALLOW)]


def _processes(made: _Filter, *, fork: bool) -> None:
    argument = (_LOAD, 0, 0, _ARGUMENTS)
    refused = (_RETURN, 0, 0, _REFUSE | errno.EPERM)
    made.when("clone", [argument, (_AND, 0, 0, _CLONE_NAMESPACES), (_IF_EQUAL, 1, 0, 0), refused])
    if not fork:
        made.refuse(("fork", "vfork"), errno.EAGAIN)
        busy = (_RETURN, 0, 0, _REFUSE | errno.EAGAIN)
        made.when("clone", [argument, (_AND, 0, 0, _CLONE_THREAD), (_IF_EQUAL, 0, 1, 0), busy])


def _sockets(made: _Filter, allowed: str) -> None:
    if allowed == "all":
        return
    refused = (_RETURN, 0, 0, _REFUSE | errno.EACCES)
    family = [(_LOAD, 0, 0, _ARGUMENTS), (_IF_EQUAL, 1, 0, _AF_UNIX), refused]
    made.when("socketpair", family)
    if allowed == "none":
        made.refuse(("socket", "connect"), errno.EACCES)
        return
    made.when("socket", family)
    if allowed == "listen":
        # A datagram would reach a name without a call.
        kind = [(_LOAD, 0, 0, _ARGUMENTS + 8), (_AND, 0, 0, _SOCK_MASK)]
        made.when("socket", [*kind, (_IF_EQUAL, 0, 1, _SOCK_DGRAM), refused])
        made.refuse(("connect",), errno.ECONNREFUSED)


def _truncation(made: _Filter) -> None:
    """Emptying a file that may be read only: old kernels have no right of its own for it."""
    made.refuse(("truncate",))
    made.refuse(("openat2",), errno.ENOSYS)
    refused = (_RETURN, 0, 0, _REFUSE | errno.EACCES)
    for name, place in (("open", 1), ("openat", 2)):
        load = (_LOAD, 0, 0, _ARGUMENTS + 8 * place)
        flags = (_AND, 0, 0, _O_ACCMODE | _O_TRUNC)
        made.when(name, [load, flags, (_IF_EQUAL, 0, 1, _O_TRUNC), refused])


def _unless_own(place: int, pid: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * place),
        (_IF_EQUAL, 2, 0, 0),
        (_IF_EQUAL, 1, 0, pid),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
    ]


def _if_argument(place: int, value: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * place),
        (_IF_EQUAL, 0, 1, value),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
    ]
