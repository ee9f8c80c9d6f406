"""Every error that croq_fsm raises on purpose, and the exit code that each one means.

::

    CroqError
    ├── UsageError            2  bad input or configuration
    ├── EnvironmentMissing    2  a tool, a device or a permission is absent
    │   └── DiskReadOnly      2  the state lies on a file system that takes no writes
    ├── LockHeld              3  another daemon owns this root or device
    ├── ForeignSchema         4  database newer than this program, or not ours
    ├── DatabaseDamaged       5
    ├── DiskFull              6
    ├── DiskFailed            1  the disk answered with an error; what is on it is the truth
    ├── DeviceWedged          7
    ├── PoisonSession         8
    ├── SandboxTooWeak        9
    ├── Drained               0  asked to stop; the session can be resumed
    ├── StaleSession          1  somebody else moved the session on
    └── CompileError …           expected failures of a candidate (never leave a state handler)

The text of an error says what is wrong and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class CroqError(Exception):
    """Base of all errors raised on purpose."""

    exit_code: ClassVar[int] = 1


class UsageError(CroqError):
    """The command line, a task or the configuration asks for something impossible."""

    exit_code = 2


class EnvironmentMissing(CroqError):
    """A compiler, profiler, device or permission that the task needs is not there."""

    exit_code = 2


class LockHeld(CroqError):
    """Another live process owns this root or this device."""

    exit_code = 3


class ForeignSchema(CroqError):
    """The database was written by a newer program, or by another program."""

    exit_code = 4


class DatabaseDamaged(CroqError):
    """SQLite says that the database file is damaged."""

    exit_code = 5


class DiskFull(CroqError):
    """No space is left where the state lives."""

    exit_code = 6


class DiskReadOnly(EnvironmentMissing):
    """The state lies on a file system that takes no writes (any more)."""


class DiskFailed(CroqError):
    """The disk answered with an I/O error.

    A failed fsync is final: the kernel may have dropped the data, and a second try may claim
    success. The daemon ends, and the next start goes on from what the disk holds.
    """


class DeviceWedged(CroqError):
    """A child could not be reaped after SIGKILL: the device driver holds it."""

    exit_code = 7


class PoisonSession(CroqError):
    """The session brought the daemon down at the same place too often."""

    exit_code = 8


class SandboxTooWeak(CroqError):
    """The configured sandbox level cannot be reached on this machine."""

    exit_code = 9


class Drained(CroqError):
    """A stop was asked for; the work in hand was given up and will be redone on resume."""

    exit_code = 0


class StaleSession(CroqError):
    """The session row is no longer where this process believed it to be."""


class BackendDown(CroqError):
    """An ideator cannot answer now (network, quota, crash); another may."""


class BackendBarred(BackendDown):
    """An ideator will not answer before somebody acts or time passes (credentials, budget)."""


class HarnessChanged(CroqError):
    """Something changed the files that measure; what they measure does not count any more."""


class BadReply(CroqError):
    """What an ideator answered is no proposal; the text says why, for its next try."""


class EditError(CroqError):
    """A proposal's edit does not apply to its base, or touches what it must not."""


class CandidateError(CroqError):
    """Base of the expected failures of a candidate; carries what a repair needs to know.

    Attributes:
        log: Full tool output or explanation, already capped.
    """

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class CompileFailed(CandidateError):
    """A compiler refused the candidate; ``log`` holds its messages."""


class CompilerCrashed(CompileFailed):
    """The compiler itself aborted on this input."""


class CompileTimeout(CompileFailed):
    """The compiler did not end within its deadline."""


class CandidateCrashed(CandidateError):
    """The candidate died of a signal or a device fault while running."""


class CandidateHung(CandidateError):
    """The candidate did not end within its deadline and was killed."""


class CandidateRefused(CandidateError):
    """The candidate ran but broke a rule of the harness (launch error, flood, forgery)."""


class Contended(CroqError):
    """Somebody else uses the device now; the measurement is postponed, not failed."""
