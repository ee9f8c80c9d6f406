"""The level that this machine reaches, found out by a child that tries what is forbidden."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from croq_fsm.config import Config
from croq_fsm.errors import EnvironmentMissing, SandboxTooWeak
from croq_fsm.sandbox import attempts, landlock
from croq_fsm.sandbox.levels import Level
from croq_fsm.toolchain.process import Command, Role, Runner
from croq_fsm.toolchain.runner import LocalRunner

#: Attempts that a level stops.
_STOPPED_BY: Final = {
    Level.LIMITS: ("gains_privileges",),
    Level.NO_NETWORK: (
        *("connects", "sends_datagram", "opens_raw_socket", "reaches_abstract_socket"),
        *("reaches_socket_file", "signals_starter", "reads_environment_of_starter"),
        *("limits_starter", "starts_programs"),
    ),
    Level.FULL: (
        *("reads_outside", "lists_outside", "reads_users", "appends_outside", "links_to_outside"),
        *("borrows_outside", "writes_outside", "removes_outside", "empties_outside"),
    ),
}
#: Attempts that a role is allowed: a profiler talks to its target through a socket.
_ALLOWED: Final = {
    Role.COMPILE: ("starts_programs",),
    Role.RUN: (),
    Role.PROFILE: ("starts_programs", "reaches_socket_file"),
}
_EVERYDAY: Final = ((Role.COMPILE, False), (Role.RUN, False))
_ON_DEVICES: Final = ((Role.RUN, True), (Role.PROFILE, True))
_SCOPES_SINCE: Final = 6
_CURES: Final = (
    (0, "use a kernel 5.13 or newer with Landlock (lsm=landlock,… on its command line)"),
    (_SCOPES_SINCE, "use a kernel 6.12 or newer, whose Landlock also guards other processes"),
)


@dataclass(frozen=True)
class Report:
    """What the probe found.

    Attributes:
        level: What every role reaches.
        open: Role → attempts that worked although the strongest level would stop them.
        landlock: ABI of the kernel's Landlock; 0 for none.
        use: What the configuration allows.
    """

    level: Level
    open: dict[str, tuple[str, ...]]
    landlock: int
    use: Level

    @property
    def text(self) -> str:
        """``full (Landlock ABI 7)``, or the level and what is left open."""
        gaps = dict.fromkeys(
            name.replace("_", " ") for names in self.open.values() for name in names
        )
        kernel = f"Landlock ABI {self.landlock}" if self.landlock else "no Landlock"
        worked = f"; a child {', '.join(gaps)}" if gaps else ""
        return f"{self.level.title} ({kernel}){worked}"

    @property
    def cure(self) -> str:
        """How to reach more; "" at the top."""
        if self.level is Level.FULL:
            return ""
        if self.level is self.use:
            return f'set sandbox.use above "{self.use.title}"'
        for abi, cure in _CURES:
            if self.landlock <= abi:
                return cure
        return "run on x86-64 or ARM with seccomp in the kernel, and outside of other sandboxes"


def probe(runner: Runner, use: Level, work: Path, deadline_s: float, *, device: bool) -> Report:
    """Try everything in each role.

    Args:
        runner: Starts the children.
        use: What the configuration allows; for the report.
        work: Where private folders are made.
        deadline_s: Seconds for one role.
        device: Also the roles of programs on a GPU.

    Raises:
        EnvironmentMissing: A child of a role cannot be started.
    """
    roles = _EVERYDAY + (_ON_DEVICES if device else ())
    found = {
        f"{role.value}{' on a device' if on_device else ''}": _gaps(
            runner, role, work, deadline_s, device=on_device
        )
        for role, on_device in roles
    }
    level = min((_level(gaps) for gaps in found.values()), default=Level.NONE)
    return Report(level, found, landlock.abi(), use)


def ensure(runner: LocalRunner, config: Config, work: Path, *, device: bool) -> Report:
    """Probe, write the level on the runner, and see that it is enough; run before any candidate.

    Raises:
        SandboxTooWeak: It is below ``sandbox.demand``.
        EnvironmentMissing: A child cannot be started.
    """
    report = probe(runner, runner.policy.use, work, config.deadlines.probe_s, device=device)
    demand(report, Level.named(config.sandbox.demand))
    runner.sandbox = report.level.title
    return report


def demand(report: Report, least: Level) -> Level:
    """The level of a report. Raises SandboxTooWeak when it is below what is demanded."""
    if report.level >= least:
        return report.level
    raise SandboxTooWeak(
        f"the sandbox reaches {report.text}, and sandbox.demand is {least.title}; {report.cure}, "
        f'or set sandbox.demand = "{report.level.title}"'
    )


def _level(gaps: tuple[str, ...]) -> Level:
    reached = Level.NONE
    for level, names in _STOPPED_BY.items():
        if set(names) & set(gaps):
            break
        reached = level
    return reached


def _gaps(
    runner: Runner, role: Role, work: Path, deadline_s: float, *, device: bool
) -> tuple[str, ...]:
    with _playground(work) as (folder, orders):
        argv = (sys.executable, "-I", "-S", attempts.__file__, json.dumps(orders))
        reads = (Path(sys.base_prefix), Path(attempts.__file__))
        done = runner.run(
            Command(
                argv,
                folder,
                deadline_s,
                "sandbox probe",
                untrusted=True,
                role=role,
                device=device,
                reads=reads,
            )
        )
    if not done.ok:
        raise EnvironmentMissing(f"the sandbox cannot be probed: {done.output.strip()[-300:]}")
    worked = [str(name) for name in json.loads(done.stdout)]
    return tuple(name for name in worked if name not in _ALLOWED[role])


@contextmanager
def _playground(work: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder for the child, and things outside of it to try."""
    with ExitStack() as stack:
        top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="probe-", dir=work)))
        own, outside = top / "own", top / "outside"
        own.mkdir()
        outside.mkdir()
        (outside / "canary").write_text("nobody else's business", encoding="ascii")
        (outside / "doomed").touch()
        port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        name = f"croq-probe-{os.urandom(8).hex()}"
        _listen(stack, "\0" + name)
        # Its name must be short, whatever the root's is.
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="croq-probe-")))
        _listen(stack, str(short / "socket"))
        yield (
            own,
            {
                "outside": str(outside),
                "starter": os.getpid(),
                "port": port,
                "name": name,
                "path": str(short / "socket"),
            },
        )


def _listen(stack: ExitStack, address: str) -> None:
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(address)
    listener.listen()
