"""An engine on a real database and a real git repository, with scripted tools."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

from croq_fsm import sessions
from croq_fsm.config import Config, load
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.task import Task
from croq_fsm.engine import Engine
from croq_fsm.ports import Ports
from croq_fsm.root import Root
from croq_fsm.storage import migrate
from croq_fsm.storage.effects import Effects
from croq_fsm.storage.engine import writer
from croq_fsm.storage.git import Git
from croq_fsm.storage.history import SessionHistory
from croq_fsm.storage.layout import Layout
from croq_fsm.storage.repository import Repository
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from states import HANDLERS
from support.scripted import START, ScriptedIdeator, ScriptedWorkbench

TASK = Task(
    dsl="c",
    operator="matmul",
    dtype="f32",
    shape=(64, 64, 64),
    kernel="builtin:matmul",
    model="scripted",
)


def git_root(path: Path) -> Path:
    """A fresh repository."""
    path.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    return path


class TestClock:
    """Time that advances by a second at each look."""

    __test__ = False

    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def now(self) -> float:
        """One second later than before."""
        self.time += 1.0
        return self.time

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Time passes at once."""
        self.time += seconds
        return stop.is_set()


@dataclass
class Wish:
    """A control whose wish the test sets."""

    stop: str | None = None

    def stop_reason(self) -> str | None:
        """The wish."""
        return self.stop


@dataclass
class Bench:
    """Everything of one session; ``run`` works until it ends."""

    path: Path
    ideator: ScriptedIdeator
    config: Config = field(default_factory=lambda: load(None))
    source: str = START
    task: Task = TASK
    reopen: bool = False
    control: Wish = field(default_factory=Wish)
    clock: TestClock = field(default_factory=TestClock)
    stop: threading.Event = field(default_factory=threading.Event)
    steps: list[tuple[Session, Step, Session]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the repository, the database and the session, or open what is there."""
        if not self.reopen:
            git_root(self.path / "root")
        self.root = Root(self.path / "root", self.config.storage)
        self.root.prepare()
        self.engine = writer(self.root.database)
        migrate.upgrade(self.engine, self.root.database)
        self.repository = Repository(self.engine, self.root.database)
        self.workbench = ScriptedWorkbench(self.root.cache)
        runner = LocalRunner("test-run", NullJournal(), self.stop, self.config.deadlines)
        self.git = Git(self.root.path, runner, self.config.git.author, 60.0)
        self.session_id = self._newest() if self.reopen else self._create()

    def _newest(self) -> str:
        with self.repository.read() as reader:
            return reader.sessions()[0].id

    def _create(self) -> str:
        candidate = Candidate(source=self.source)
        return sessions.create(self.repository, self.task, candidate, self.config).id

    def close(self) -> None:
        """Close the database."""
        self.engine.dispose()

    def ports(self, session: Session) -> Ports:
        """Ports of the session."""
        return Ports(
            workbench=self.workbench,
            ideators=(self.ideator,),
            history=SessionHistory(self.repository, session.id),
            control=self.control,
            clock=self.clock,
            config=self.config,
            layout=Layout(session.device.key, session.task, "summary/{dsl}/summary.md"),
        )

    def run(self) -> Session:
        """Work until the session ends."""
        return Engine(
            repository=self.repository,
            ports_of=self.ports,
            effects=self.effects(),
            handlers=dict(HANDLERS),
            run_id="test-run",
            stop=self.stop,
            observe=lambda before, step, after: self.steps.append((before, step, after)),
        ).run(self.session_id)

    def effects(self) -> Effects:
        """Performer of effects."""
        return Effects(
            root=self.root.path,
            repository=self.repository,
            cached=self.workbench.read,
            git=self.git,
            now=self.clock.now,
            summary="summary/{dsl}/summary.md",
        )

    def file(self, relative: str) -> str:
        """Text of a file below the key of the session."""
        kind, name = relative.split("/", 1)
        base = self.root.path / "tuning" / "cpu_test" / "c" / kind
        return (base / self.task.key / name).read_text(encoding="utf-8")

    def session(self) -> Session:
        """The session as it is now."""
        with self.repository.read() as reader:
            return reader.session(self.session_id)

    def log(self) -> list[str]:
        """Subjects of the commits, oldest first."""
        done = subprocess.run(
            ["git", "-C", str(self.root.path), "log", "--reverse", "--format=%s"],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.splitlines()
