"""The daemon: one root, its lock, a queue of sessions, orderly ends. The composition root.

This is the only module of ``croq_fsm`` that imports ``states``.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from croq_fsm import inbox, machine
from croq_fsm.config import Config
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Outcome, State, Status
from croq_fsm.engine import Engine, Observer
from croq_fsm.errors import (
    CroqError,
    DeviceWedged,
    DiskFull,
    Drained,
    EnvironmentMissing,
    PoisonSession,
    UsageError,
)
from croq_fsm.gpu.lease import DeviceLease, lease_folder
from croq_fsm.ideators import load
from croq_fsm.ports import Ports
from croq_fsm.root import Root, RootLock
from croq_fsm.signals import draining
from croq_fsm.storage import migrate
from croq_fsm.storage.effects import Effects
from croq_fsm.storage.engine import mark_used, sqlite_is_safe, writer
from croq_fsm.storage.git import Git
from croq_fsm.storage.history import SessionHistory
from croq_fsm.storage.journal import ChildTable
from croq_fsm.storage.layout import Layout
from croq_fsm.storage.repository import Repository
from croq_fsm.toolchain.registry import open_workbench
from croq_fsm.toolchain.runner import LocalRunner, kill_survivors
from croq_fsm.toolchain.workbench import Workbench
from states import HANDLERS

_log = structlog.get_logger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_INBOX_LOOK_S: Final = 0.5

#: Exit code of a session that failed, by the outcome that led there.
_FAILED_CODES: Final = {
    Outcome.WEDGED: DeviceWedged.exit_code,
    Outcome.POISONED: PoisonSession.exit_code,
    Outcome.INVALID: EnvironmentMissing.exit_code,
    Outcome.IMPOSSIBLE: UsageError.exit_code,
    Outcome.UNAVAILABLE: EnvironmentMissing.exit_code,
    Outcome.ENVIRONMENT_BROKEN: EnvironmentMissing.exit_code,
}


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        """UTC seconds since the epoch."""
        return time.time()


@dataclass
class Wishes:
    """What the user asked for through the inbox."""

    stop: str | None = None

    def stop_reason(self) -> str | None:
        """Why the session shall end after this round, or None."""
        return self.stop


@dataclass
class Daemon:
    """One start of the daemon on one root; use it through ``opened``.

    Attributes:
        root: The root.
        config: Configuration of this start; sessions keep the one they were started with.
        repository: The database.
        runner: Starts all children.
        git: Commits.
        run_id: Identity of this start.
        stop: Set when the daemon shall drain.
    """

    root: Root
    config: Config
    repository: Repository
    runner: LocalRunner
    git: Git
    run_id: str
    stop: threading.Event
    clock: SystemClock = field(default_factory=SystemClock)
    wishes: Wishes = field(default_factory=Wishes)

    def workbench(self, dsl: str, config: Config) -> Workbench:
        """The workbench of a DSL on this root."""
        return open_workbench(dsl, self.runner, config, self.root.cache, self.root.work)

    def run_session(self, session_id: str, observe: Observer) -> Session:
        """Work on one session until it ends, is paused, or the daemon drains."""
        with self.repository.read() as reader:
            session = reader.session(session_id)
            config = Config.model_validate(reader.config(session.id))
        self.wishes.stop = None
        workbench = self.workbench(session.task.dsl, config)
        ideators = tuple(
            load.load(name, config.ideators.get(name, {})) for name in session.task.model.split(",")
        )

        def ports_of(current: Session) -> Ports:
            return Ports(
                workbench=workbench,
                ideators=ideators,
                history=SessionHistory(self.repository, current.id),
                control=self.wishes,
                clock=self.clock,
                config=config,
                layout=Layout(current.device.key, current.task, config.storage.compaction_summary),
            )

        engine = Engine(
            repository=self.repository,
            ports_of=ports_of,
            effects=Effects(
                root=self.root.path,
                repository=self.repository,
                cached=workbench.read,
                git=self.git,
                now=self.clock.now,
                summary=config.storage.compaction_summary,
            ),
            handlers=dict(HANDLERS),
            run_id=self.run_id,
            stop=self.stop,
            between=self._between,
            observe=observe,
        )
        with self.lease(workbench):
            _check_device(session, workbench)
            return engine.run(session.id)

    @contextmanager
    def lease(self, workbench: Workbench) -> Iterator[None]:
        """Hold the device, when there is one; INIT says what is missing otherwise."""
        try:
            uuid_ = workbench.device().uuid
        except EnvironmentMissing:
            yield
            return
        chosen = self.config.contention.lease_dir
        with DeviceLease(uuid_, Path(chosen) if chosen else lease_folder(), self.run_id):
            yield

    def _between(self, session: Session) -> None:
        """Take messages and look at the disk; runs between steps, on the main thread."""
        for message in inbox.take(self.root, self.repository, self.clock.now()):
            if message["session_id"] not in (None, session.id):
                continue
            if message["kind"] == "stop":
                self.wishes.stop = "stopped by the user"
            elif message["kind"] == "stop-now":
                self.stop.set()
            elif message["kind"] == "pause":
                with self.repository.read() as reader:
                    current = reader.session(session.id)
                self.repository.set_status(current, Status.PAUSED)
        self._check_space()

    def _check_space(self) -> None:
        free_mb = shutil.disk_usage(self.root.state).free >> 20
        if free_mb < self.config.storage.min_free_mb:
            raise DiskFull(
                f"only {free_mb} MiB are free on the disk of {self.root.state} "
                f"(storage.min_free_mb = {self.config.storage.min_free_mb}); free some space and "
                "run 'croq-fsm resume'"
            )


def _check_device(session: Session, workbench: Workbench) -> None:
    """A session may move to another device of the same kind, and to no other kind."""
    if not session.device.uuid or session.state.is_final:
        return
    device = workbench.device()
    if device.key != session.device.key:
        raise UsageError(
            f"session {session.id} was measured on {session.device.key}, this machine has "
            f"{device.key}; resume it there, or start a new session here"
        )
    if device.uuid != session.device.uuid:
        _log.warning("another device of the same kind", was=session.device.uuid, now=device.uuid)


@contextmanager
def opened(root: Root, config: Config) -> Iterator[Daemon]:
    """Lock, migrate, recover; then a daemon, and at the end an orderly farewell.

    Raises:
        CroqError: Lock held, foreign or damaged database, no git repository, …
    """
    machine.validate()
    root.prepare()
    run_id, stop = uuid.uuid4().hex, threading.Event()
    with ExitStack() as stack:
        lock = RootLock(root, run_id)
        stack.callback(lock.release)
        # Before the first child runs: what stopped a former daemon must not stop this one.
        inbox.discard_commands(root)
        engine = writer(root.database)
        stack.callback(engine.dispose)
        migrate.upgrade(engine, root.database)
        mark_used(root.database)
        migrate.daily_backup(root.database, SystemClock().now())
        repository = Repository(engine, root.database)
        daemon = _compose(root, config, repository, run_id, stop)
        daemon.git.check()
        _recover(daemon)
        stack.enter_context(draining(stop))
        ending = "clean"
        try:
            yield daemon
        except BaseException as exc:
            ending = f"{type(exc).__name__}: {exc}"
            raise
        finally:
            _say_goodbye(daemon, ending)


def _compose(
    root: Root, config: Config, repository: Repository, run_id: str, stop: threading.Event
) -> Daemon:
    clock = SystemClock()
    runner = LocalRunner(
        run_id=run_id,
        journal=ChildTable(repository, run_id, clock.now),
        stop=stop,
        deadlines=config.deadlines,
        tick=_inbox_watch(root, stop),
    )
    git = Git(root.path, runner, config.git.author, config.deadlines.git_s)
    repository.start_run(
        {
            "run_id": run_id,
            "pid": os.getpid(),
            "boot_id": _BOOT_ID.read_text(encoding="ascii").strip(),
            "host": socket.gethostname(),
            "started_at": int(clock.now() * 1e6),
        }
    )
    if not sqlite_is_safe():
        _log.info("this SQLite can corrupt a WAL database with two writers; one is allowed here")
    return Daemon(root, config, repository, runner, git, run_id, stop, clock)


def _inbox_watch(root: Root, stop: threading.Event) -> Callable[[], None]:
    """A stop at once must not wait for the running child; looks twice a second at most."""
    last = 0.0

    def tick() -> None:
        nonlocal last
        if time.monotonic() - last < _INBOX_LOOK_S:
            return
        last = time.monotonic()
        for path in root.inbox.glob("*.json"):
            with suppress(OSError):  # it may be taken meanwhile
                if '"stop-now"' in path.read_text(encoding="utf-8", errors="replace"):
                    stop.set()

    return tick


def _recover(daemon: Daemon) -> None:
    """Clear away what a former daemon left: its children, its lock, its folders."""
    with daemon.repository.read() as reader:
        former = reader.open_runs(except_for=daemon.run_id)
    for run in former:
        killed = kill_survivors(run)
        if killed:
            _log.warning("survivors of a former daemon were ended", run_id=run, pids=killed)
    now = int(daemon.clock.now() * 1e6)
    daemon.repository.close_children_of_dead_runs(daemon.run_id, now)
    if daemon.git.remove_stale_lock():
        _log.warning("a stale index.lock was removed", root=str(daemon.root.path))
    for leftover in daemon.root.leftovers():
        shutil.rmtree(leftover, ignore_errors=True)


def _say_goodbye(daemon: Daemon, ending: str) -> None:
    try:
        daemon.repository.end_run(daemon.run_id, int(daemon.clock.now() * 1e6), ending)
    except CroqError as exc:
        _log.warning("the end could not be recorded", why=str(exc))


def exit_code(daemon: Daemon, session: Session) -> int:
    """What a session's end means for the process."""
    if session.state is not State.FAILED:
        return 0
    with daemon.repository.read() as reader:
        last = reader.transitions(session.id, limit=1)
    codes = {outcome.name: code for outcome, code in _FAILED_CODES.items()}
    return codes.get(last[0]["outcome"], 1) if last else 1


def run_queue(daemon: Daemon, session_ids: list[str], observe: Callable[..., None]) -> int:
    """Work on sessions one after the other; a failed one does not end the queue.

    Returns:
        The first exit code that is not 0, else 0.
    """
    code = 0
    for session_id in session_ids:
        try:
            session = daemon.run_session(session_id, observe)
        except Drained:
            break
        code = code or exit_code(daemon, session)
        if daemon.stop.is_set():
            break
    return code


def silent(_before: Session, _step: Step, _after: Session) -> None:
    """An observer that shows nothing."""
