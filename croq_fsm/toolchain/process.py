"""Port of the process runner: what to start, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol


class Ending(Enum):
    """How a child ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    DEADLINE = "deadline"
    FLOODED = "flooded"
    DRAINED = "drained"


class Role(Enum):
    """What an untrusted child is there for, which decides what it may see and do.

    COMPILE: a compiler or linker over foreign source; may start programs of the system.
    RUN: a program with a candidate in it; starts nothing.
    PROFILE: a profiler that starts such a program.
    """

    COMPILE = "compile"
    RUN = "run"
    PROFILE = "profile"


@dataclass(frozen=True)
class Limits:
    """Resource limits of a child; None leaves the limit as it is.

    Attributes:
        cpu_s: CPU seconds.
        file_bytes: Largest file that the child may write.
        memory_bytes: Address space; not usable for CUDA processes.
        processes: Number of processes of the user.
    """

    cpu_s: int | None = None
    file_bytes: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class Command:
    """A child process to run; never through a shell.

    Attributes:
        argv: Program and arguments.
        cwd: Working folder, private to the child.
        deadline_s: Seconds after which the whole tree is killed.
        label: What it is, for logs and the children table (``cc``, ``ncu``, ``bench`` …).
        env: Variables in addition to the allow-list.
        stdin: Bytes for its standard input; empty means /dev/null.
        output_cap: Bytes of stdout and of stderr that are kept, each.
        flood_cap: Bytes of output at which the child is killed.
        limits: Resource limits.
        untrusted: Whether candidate code is compiled or runs in it: sandbox, no network. Such a
            child changes nothing outside ``cwd``, and its HOME is its private TMPDIR.
        role: What an untrusted child is there for.
        device: Whether an untrusted child uses the GPU.
        reads: Files and folders that an untrusted child reads beside ``cwd``, the system and the
            toolchains.
        disk_cap: Bytes in ``cwd`` at which an untrusted child is killed; None takes half of what
            is free on its disk, at most 8 GiB.
    """

    argv: tuple[str, ...]
    cwd: Path
    deadline_s: float
    label: str
    env: dict[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    output_cap: int = 1 << 20
    flood_cap: int = 64 << 20
    limits: Limits = field(default_factory=Limits)
    untrusted: bool = False
    role: Role = Role.RUN
    device: bool = False
    reads: tuple[Path, ...] = ()
    disk_cap: int | None = None


@dataclass(frozen=True)
class Completed:
    """What came of a child.

    Attributes:
        ending: How it ended.
        returncode: Exit status, or minus the signal number; None if it had to be killed.
        stdout: Kept head of standard output, decoded with replacement.
        stderr: Kept head of standard error.
        seconds: Wall time.
        truncated: Whether output was dropped.
        breach: Which bound of the sandbox it broke, or "".
    """

    ending: Ending
    returncode: int | None
    stdout: str
    stderr: str
    seconds: float
    truncated: bool = False
    breach: str = ""

    @property
    def ok(self) -> bool:
        """Exited with status 0."""
        return self.ending is Ending.EXITED and self.returncode == 0

    @property
    def output(self) -> str:
        """Standard error after standard output, for logs; then what the sandbox has to say."""
        breach = f"\nstopped by the sandbox: {self.breach}\n" if self.breach else ""
        return self.stdout + self.stderr + breach


class ChildJournal(Protocol):
    """Who is told about children, so that a later start can find survivors."""

    def started(self, child_id: str, pid: int, start_time: float, command: Command) -> None:
        """A child runs. Called before anything waits for it; must be durable on return.

        Args:
            child_id: Value of its ``CROQ_CHILD_ID`` marker.
            pid: Its process, session and group id.
            start_time: When the system says it was created, seconds since the epoch.
            command: What was started.
        """

    def ended(self, child_id: str, completed: Completed) -> None:
        """The child and its tree are gone. Not called for a child that could not be reaped."""


class NullJournal:
    """Remembers nothing; for probes and tests."""

    def started(self, child_id: str, pid: int, start_time: float, command: Command) -> None:
        """Ignore it."""

    def ended(self, child_id: str, completed: Completed) -> None:
        """Ignore it."""


class Conversation(Protocol):
    """A child that answers one JSON line on a private pipe for each request line on stdin."""

    def ask(self, request: dict[str, object], deadline_s: float) -> dict[str, object]:
        """Send a request and wait for its answer.

        Raises:
            CandidateCrashed: The child ended; the text names the signal and the last output.
            CandidateHung: No answer within the deadline; the tree has been killed.
            CandidateRefused: The answer is no JSON object, or the output flooded.
            Drained: A stop was asked for; the tree has been killed.
            DeviceWedged: The child could not be reaped after SIGKILL.
        """

    def cpu_seconds(self) -> float | None:
        """CPU time of the main threads of the child's tree so far, seconds; None where unknown.

        Harness work is done by the main thread, and what helpers do while it waits for them is
        part of the reported times.
        """

    def close(self) -> None:
        """End the child and its tree; always safe to call."""


class Runner(Protocol):
    """The one place that starts children.

    Attributes:
        sandbox: Level that untrusted children were found to be confined to (``none``, ``limits``,
            ``no-network``, ``full``); "" while nobody has looked.
    """

    sandbox: str

    def run(self, command: Command) -> Completed:
        """Run to the end.

        Raises:
            EnvironmentMissing: The program does not exist or cannot be executed.
            Drained: A stop was asked for; the tree has been killed.
            DeviceWedged: The child could not be reaped within 30 s of SIGKILL.
        """

    def converse(self, command: Command) -> Conversation:
        """Start a child that answers requests; its answers come on file descriptor 3.

        ``deadline_s`` of the command bounds the child's whole life.
        """
