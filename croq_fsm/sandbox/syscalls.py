"""Numbers of the system calls that the filter speaks of. Standard library only.

x86-64 has its own table; later architectures share the kernel's generic one.
"""

from __future__ import annotations

_X86_64 = {
    "acct": 163, "add_key": 248, "adjtimex": 159, "bpf": 321, "chmod": 90, "chown": 92,
    "chroot": 161, "clock_adjtime": 305, "fchmodat": 268, "fchownat": 260, "lchown": 94,
    "lremovexattr": 198, "lsetxattr": 189, "removexattr": 197, "setxattr": 188,
    "clock_settime": 227, "clone": 56, "connect": 42, "creat": 85, "delete_module": 176,
    "fanotify_init": 300, "fanotify_mark": 301, "finit_module": 313, "fork": 57, "init_module": 175,
    "ioctl": 16, "ioperm": 173, "iopl": 172, "ioprio_set": 251, "kcmp": 312,
    "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250, "kill": 62, "lookup_dcookie": 212,
    "migrate_pages": 256, "mount": 165, "move_pages": 279, "mq_open": 240, "msgget": 68,
    "name_to_handle_at": 303, "nfsservctl": 180, "open": 2, "open_by_handle_at": 304,
    "openat": 257, "perf_event_open": 298, "pivot_root": 155, "prlimit64": 302,
    "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "quotactl": 179,
    "reboot": 169, "request_key": 249, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
    "sched_setaffinity": 203, "sched_setattr": 314, "sched_setparam": 142,
    "sched_setscheduler": 144, "semget": 64, "setdomainname": 171, "sethostname": 170,
    "setns": 308, "setpriority": 141, "settimeofday": 164, "shmat": 30, "shmctl": 31,
    "shmget": 29, "socket": 41, "socketpair": 53, "swapoff": 168, "swapon": 167, "syslog": 103,
    "tgkill": 234, "tkill": 200, "truncate": 76, "umount2": 166, "unshare": 272,
    "userfaultfd": 323, "vfork": 58, "vhangup": 153,
}  # fmt: skip
_GENERIC = {
    "acct": 89, "add_key": 217, "adjtimex": 171, "bpf": 280, "chroot": 51, "clock_adjtime": 266,
    "clock_settime": 112, "clone": 220, "connect": 203, "delete_module": 106,
    "fchmodat": 53, "fchownat": 54, "lremovexattr": 15, "lsetxattr": 6, "removexattr": 14,
    "setxattr": 5,
    "fanotify_init": 262, "fanotify_mark": 263, "finit_module": 273, "init_module": 105,
    "ioctl": 29, "ioprio_set": 30, "kcmp": 272, "kexec_file_load": 294, "kexec_load": 104,
    "keyctl": 219, "kill": 129, "lookup_dcookie": 18, "migrate_pages": 238, "mount": 40,
    "move_pages": 239, "mq_open": 180, "msgget": 186, "name_to_handle_at": 264,
    "nfsservctl": 42, "open_by_handle_at": 265, "openat": 56, "perf_event_open": 241,
    "pivot_root": 41, "prlimit64": 261, "process_vm_readv": 270, "process_vm_writev": 271,
    "ptrace": 117, "quotactl": 60, "reboot": 142, "request_key": 218, "rt_sigqueueinfo": 138,
    "rt_tgsigqueueinfo": 240, "sched_setaffinity": 122, "sched_setattr": 274,
    "sched_setparam": 118, "sched_setscheduler": 119, "semget": 190, "setdomainname": 162,
    "sethostname": 161, "setns": 268, "setpriority": 140, "settimeofday": 170, "shmat": 196,
    "shmctl": 195, "shmget": 194, "socket": 198, "socketpair": 199, "swapoff": 225,
    "swapon": 224, "syslog": 116, "tgkill": 131, "tkill": 130, "truncate": 45, "umount2": 39,
    "unshare": 97, "userfaultfd": 282, "vhangup": 58,
}  # fmt: skip
#: Since Linux 5 a new call has the same number everywhere.
_COMMON = {
    "clone3": 435, "fchmodat2": 452, "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433,
    "io_uring_enter": 426, "io_uring_register": 427, "io_uring_setup": 425, "mount_setattr": 442,
    "move_mount": 429, "open_tree": 428, "openat2": 437, "pidfd_getfd": 438,
    "pidfd_send_signal": 424, "process_madvise": 440, "removexattrat": 466, "setxattrat": 463,
}  # fmt: skip
#: Machine → the audit number of its architecture, and its table.
_MACHINES = {
    "x86_64": (0xC000003E, _X86_64),
    "aarch64": (0xC00000B7, _GENERIC),
    "riscv64": (0xC00000F3, _GENERIC),
    "loongarch64": (0xC0000102, _GENERIC),
}


def table(machine: str) -> tuple[int, dict[str, int]] | None:
    """Audit number and call numbers of a machine; None for one that is not known."""
    found = _MACHINES.get(machine)
    return (found[0], found[1] | _COMMON) if found else None
