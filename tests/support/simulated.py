"""Nights of the real daemon on the simulator, and what must not differ between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from croq_fsm import daemon, faults, sessions
from croq_fsm.config import Config, load
from croq_fsm.domain.records import Attempt, Iteration, Round, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.task import Task
from croq_fsm.engine import Observer
from croq_fsm.root import Root
from croq_fsm.storage.inspection import archive
from croq_fsm.toolchain.simulated.workbench import SimulatedWorkbench
from croq_fsm.validation import Report, validate
from support.bench import git_root

TASK = Task(
    dsl="croqtile",
    operator="matmul",
    dtype="f16",
    shape=(2048, 2048, 2048),
    kernel="builtin:matmul",
    model="rules",
    rounds=4,
    simulated=True,
)

#: No failures and no others on the device, unless a test asks for them.
CALM = {
    "simulation.on": True,
    "simulation.contention": 0.0,
    **{
        f"simulation.{kind}": 0.0
        for kind in (
            "compile_fail", "compiler_abort", "compiler_hang", "wrong_result", "crash", "hang",
        )
    },
}  # fmt: skip


@dataclass
class Night:
    """One root with one simulated session.

    Attributes:
        path: Folder of the repository.
        config: Of the session.
        task: What is tuned.
    """

    path: Path
    config: Config
    task: Task = TASK

    @classmethod
    def of(cls, path: Path, script: str = "", rounds: int = 4, **settings: Any) -> Night:
        """A calm night; dotted settings are written with two underscores."""
        folder = git_root(path / "root")
        values: dict[str, Any] = {**CALM}
        values |= {name.replace("__", "."): value for name, value in settings.items()}
        if script:
            file = path / "faults.toml"
            file.write_text(script, encoding="utf-8")
            values["simulation.script"] = str(file)
        task = TASK.model_copy(update={"rounds": rounds})
        return cls(folder, load(None, values), task)

    @property
    def root(self) -> Root:
        """The root."""
        return Root(self.path, self.config.storage)

    def run(self, observe: Callable[[daemon.Daemon], Observer] | None = None) -> Session:
        """Work until the session ends or something stops it; make the session if need be."""
        with daemon.opened(self.root, self.config) as running:
            with running.repository.read() as reader:
                known = reader.sessions()
            session = known[0] if known else self._create(running)
            watch = observe(running) if observe else daemon.silent
            return running.run_session(session.id, watch)

    def _create(self, running: daemon.Daemon) -> Session:
        bench = running.workbench(self.task.dsl, self.config)
        return sessions.create(
            running.repository, self.task, bench.start_kernel(self.task), self.config
        )

    def another(self) -> Session:
        """One more session in the same root."""
        with daemon.opened(self.root, self.config) as running:
            return self._create(running)

    def killed(self, fault: str) -> int:
        """Run in a child process that dies at a fault point; its wait status."""
        pid = os.fork()
        if pid == 0:
            try:
                faults.arm(fault)
                self.run()
            finally:
                os._exit(0)
        return os.waitpid(pid, 0)[1]

    def bench(self) -> SimulatedWorkbench:
        """A workbench like the session's, which knows the truth."""
        with daemon.opened(self.root, self.config) as running:
            made = running.workbench(self.task.dsl, self.config)
        assert isinstance(made, SimulatedWorkbench)
        return made

    def record(self) -> tuple[Session, list[Round], list[Iteration], list[Attempt]]:
        """Session, rounds, measured kernels and failed attempts."""
        with archive(self.root.database) as stored, stored.look() as reader:
            session = reader.sessions()[0]
            rounds = reader.recent_rounds(session.id, 10_000)
            numbers = range(session.next_iteration)
            iterations = [reader.iteration(session.id, n) for n in numbers]
            attempts = [
                attempt
                for done in rounds
                for attempt, _ in reader.attempts_of_round(session.id, done.round)
            ]
        return session, rounds, iterations, attempts

    def kinds(self, round_: int) -> list[str]:
        """Kinds of the measurements of a round, in order."""
        with archive(self.root.database) as stored, stored.look() as reader:
            session = reader.sessions()[0]
            return [m.kind for m in reader.measurements_of_round(session.id, round_)]

    def waits(self) -> int:
        """How often the session backed off."""
        with archive(self.root.database) as stored, stored.look() as reader:
            steps = reader.transitions(reader.sessions()[0].id)
        return sum(step["outcome"] in ("CONTENDED", "BUSY") for step in steps)

    def audit(self) -> Report:
        """What validate says."""
        return validate(self.root)

    def outcome(self) -> tuple[object, ...]:
        """All that must be the same however often the night was disturbed."""
        session, rounds, iterations, attempts = self.record()
        return (
            session.state,
            session.reason,
            [(r.round, r.decision, r.tflops, r.ratio, r.reason) for r in rounds],
            [(i.number, i.name, i.seconds, i.estimate) for i in iterations],
            [(a.round, a.number, a.kind, a.message) for a in attempts],
        )


def stopping(after: int) -> Callable[[daemon.Daemon], Observer]:
    """Drain the daemon after so many transitions of this run."""

    def make(running: daemon.Daemon) -> Observer:
        seen: list[Step] = []

        def observe(_before: Session, step: Step, _after: Session) -> None:
            seen.append(step)
            if len(seen) >= after:
                running.stop.set()

        return observe

    return make


def decisions(rounds: Iterable[Round]) -> list[str]:
    """Names of the decisions, in order."""
    return [done.decision.name for done in rounds]
