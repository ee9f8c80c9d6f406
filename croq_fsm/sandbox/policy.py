"""What each role may see and do; made by the daemon, applied by ``confine`` in the child."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from croq_fsm.config import Config
from croq_fsm.sandbox.levels import Level
from croq_fsm.toolchain.process import Command, Role

_PACKAGE: Final = Path(__file__).resolve().parent.parent
_COUNTERS: Final = Path("/proc/driver/nvidia/params")

#: Programs and libraries of the system.
_PROGRAMS: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_LIBRARIES: Final = (
    *("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64"),
    *("/usr/local/lib", "/usr/local/lib64", "/usr/share/locale", "/usr/share/zoneinfo"),
)
#: Who loads a program; the kernel runs it on the program's behalf.
_LOADERS: Final = ("/lib64/ld-*.so*", "/lib/ld-*.so*", "/lib/*/ld-*.so*", "/usr/lib/ld-*.so*")
#: Of /etc only what loaders and tools look up; no users, no keys, no hosts.
_SETTINGS: Final = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload"),
    *("/etc/alternatives", "/etc/localtime", "/etc/timezone", "/etc/locale.alias"),
)
_FACTS: Final = (
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems"),
    *("/proc/sys/vm", "/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup"),
)
_DEVICE_FACTS: Final = ("/usr", "/proc", "/sys", "/etc/nvidia", "/etc/OpenCL")
_SOURCES_OF_NOTHING: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_DEVICES: Final = ("nvidia*", "nvidia-caps/*", "nvidia-caps-imex-channels/*", "dxg")
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a grant, no temporary file
#: Where programs of others listen at names in the file system.
_COVERED: Final = ("/run", "/var/run", "/tmp", _SHARED_MEMORY)  # noqa: S108 - emptied, not used

#: Parts of a source tree that compiling needs; a user may well have a root beside them.
_OF_CHOREO: Final = (
    *("build", "bin", "lib", "lib64", "include", "runtime", "share"),
    "extern/cutlass/include",
)
_OF_CUTE: Final = ("include", "cute", "cutlass")

#: Processes of one untrusted child at a time; compilers need a dozen.
_PROCESSES: Final = 128
_NEVER: Final = ("/", "/home", "/root", "/etc", "/var", "/tmp")  # noqa: S108 - refused, not used


@dataclass(frozen=True)
class Policy:
    """What untrusted children get on this machine.

    Attributes:
        use: Strongest level to lay on them.
        tools: Folders of compilers, headers and profilers beside the system's own.
    """

    use: Level = Level.FULL
    tools: tuple[Path, ...] = ()

    @classmethod
    def of(cls, config: Config) -> Policy:
        """The policy of a configuration, and of the variables that name toolchains."""
        options = config.croqtile
        choreo = _named(options.choreo_home, "CHOREO_HOME", _OF_CHOREO)
        cute = _named(options.cute_home, "CUTE_HOME", _OF_CUTE)
        cuda = _named(options.cuda_home, "CUDA_HOME", ("",))
        programs = (config.c.compiler or "cc", "gcc", "clang", "nvcc", "ncu", "nm", "ld")
        homes = [*choreo, *cute, *cuda, Path("/usr/local/cuda"), Path("/opt/nvidia")]
        homes += [home for name in programs if (home := _home_of(name))]
        return cls(
            use=Level.named(config.sandbox.use),
            tools=tuple(dict.fromkeys(_safe(homes))),
        )

    def jail(self, command: Command, tmp: Path) -> dict[str, Any] | None:
        """What ``confine`` is to apply to a command; None leaves a trusted child as it is.

        Args:
            command: What will be started.
            tmp: Its private folder for temporary files; it is inside the working folder.
        """
        if not command.untrusted or self.use is Level.NONE:
            return None
        compiles, runs = command.role is Role.COMPILE, command.role is Role.RUN
        sockets = "none" if compiles or not command.device else "listen" if runs else "all"
        return {
            "separate": command.device and self.use >= Level.NO_NETWORK,
            "covers": _covers(self._needed(command)),
            "keep_admin": command.role is Role.PROFILE and _counters_are_restricted(),
            "calls": self.use >= Level.NO_NETWORK,
            "sockets": sockets,
            "fork": not runs,
            "share": command.role is Role.PROFILE,
            "attributes": not runs,
            "files": list(self._files(command, tmp)) if self.use is Level.FULL else None,
            "watches": command.role is Role.PROFILE,
        }

    def processes(self, command: Command) -> int | None:
        """How many processes a child may have at a time; None where it cannot start any."""
        if not command.untrusted or self.use is Level.NONE:
            return None
        if command.role is Role.RUN and self.use >= Level.NO_NETWORK:
            return None
        return _PROCESSES

    def _needed(self, command: Command) -> list[Path]:
        """Everything that must stay in sight."""
        program = shutil.which(command.argv[0]) or command.argv[0]
        return [command.cwd.absolute(), Path(program), *command.reads, *self.tools, _PACKAGE]

    def _files(self, command: Command, tmp: Path) -> Iterator[tuple[str, str]]:
        starts = command.role is not Role.RUN
        program = Path(shutil.which(command.argv[0]) or command.argv[0])
        yield str(program), "exec"
        yield from _granted("exec", _PROGRAMS if starts else ())
        yield from _granted("read", () if starts else _LIBRARIES)
        yield from _granted("exec", (path for glob in _LOADERS for path in _matches(glob)))
        yield from _granted("exec" if starts else "read", self.tools)
        yield from _granted("read", _library_path())
        yield from _granted("read", (*_SETTINGS, *_FACTS, *command.reads))
        yield from _granted("change", ("/proc/self",))
        yield from _granted("device", _SOURCES_OF_NOTHING)
        if command.role is Role.COMPILE:
            yield str(_PACKAGE / "measure"), "read"
        if command.device:
            yield from _granted("read", _DEVICE_FACTS)
            yield from _granted(
                "device", (p for glob in _DEVICES for p in _matches(f"/dev/{glob}"))
            )
            yield _SHARED_MEMORY, "own"
        if command.role is Role.PROFILE:
            yield from _granted("exec", command.reads)
        yield str(command.cwd.absolute()), "own"
        yield str(tmp.absolute()), "own"


def _granted(grant: str, paths: Iterable[str | Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        yield str(path), grant


def _matches(pattern: str) -> list[Path]:
    return sorted(Path("/").glob(pattern.removeprefix("/")))


def _library_path() -> Iterator[Path]:
    yield from _safe(Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p)


def _named(configured: str, variable: str, parts: tuple[str, ...]) -> list[Path]:
    """Parts of a folder that a setting or else a variable names."""
    text = configured or os.environ.get(variable, "")
    return [Path(text).expanduser() / part for part in parts] if text else []


def _home_of(program: str) -> Path | None:
    """Folder that holds a program's ``bin``; system folders are granted anyway."""
    found = shutil.which(program)
    if found is None:
        return None
    return Path(found).resolve().parent.parent


def _safe(folders: Iterable[Path]) -> Iterator[Path]:
    """Those that exist and hold nothing but a toolchain: no home, nor a folder above one."""
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - Path.home() raises without a home
    for folder in folders:
        path = folder.resolve()
        holds_home = home.is_relative_to(path) or path == home / ".local"
        if path.is_dir() and not holds_home and str(path) not in _NEVER:
            yield path


def _covers(needed: list[Path]) -> list[str]:
    """Folders to put out of sight: those that exist and hold nothing that is needed."""
    resolved = [path.resolve() for path in needed] + [path.absolute() for path in needed]
    return [
        folder
        for folder in _COVERED
        if Path(folder).is_dir() and not any(path.is_relative_to(folder) for path in resolved)
    ]


def _counters_are_restricted() -> bool:
    """Whether the driver gives performance counters to administrators only."""
    try:
        return "RmProfilingAdminOnly: 1" in _COUNTERS.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
