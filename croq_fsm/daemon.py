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

from croq_fsm import inbox, machine, notify
from croq_fsm.clock import SystemClock
from croq_fsm.config import Config
from croq_fsm.domain import guards
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Outcome, State, Status
from croq_fsm.engine import Engine, Handler, Observer
from croq_fsm.errors import (
    CroqError,
    DatabaseDamaged,
    DeviceWedged,
    DiskFailed,
    DiskFull,
    DiskReadOnly,
    Drained,
    EnvironmentMissing,
    PoisonSession,
    StaleSession,
    UsageError,
)
from croq_fsm.gpu.lease import DeviceLease, lease_folder
from croq_fsm.ideators import load
from croq_fsm.ideators.contract import Ideator
from croq_fsm.ideators.services import Services
from croq_fsm.log import redacted
from croq_fsm.ports import Ports
from croq_fsm.root import Root, RootLock
from croq_fsm.sandbox import probe as sandbox
from croq_fsm.sandbox import secrecy
from croq_fsm.sandbox.policy import Policy
from croq_fsm.service import Service, WatchedChildren, service_of
from croq_fsm.signals import Wanted, handled
from croq_fsm.storage import disk, expected, migrate, retention
from croq_fsm.storage.calls import SessionLedger
from croq_fsm.storage.disk import Ballast
from croq_fsm.storage.effects import Effects
from croq_fsm.storage.engine import mark_used, sqlite_is_safe, writer
from croq_fsm.storage.git import Git
from croq_fsm.storage.history import SessionHistory
from croq_fsm.storage.journal import ChildTable
from croq_fsm.storage.layout import Layout
from croq_fsm.storage.repository import Repository
from croq_fsm.storage.setting_aside import SET_ASIDE
from croq_fsm.toolchain.registry import ON_DEVICES, open_workbench
from croq_fsm.toolchain.runner import LocalRunner, kill_survivors
from croq_fsm.toolchain.simulated.night import Night
from croq_fsm.toolchain.workbench import Workbench
from states import HANDLERS

_log = structlog.get_logger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_INBOX_LOOK_S: Final = 0.5
_SPACE_LOOK_S: Final = 5.0
#: Share of the rounds so far after which leftovers are looked at again.
_TIDY_SHARE: Final = 64
_MIB: Final = 1 << 20

#: Ends after which nobody waits for what was promised: it may be what brought the daemon down.
_CLOSED: Final = frozenset({Outcome.POISONED.name, SET_ASIDE})

#: Errors that concern the machine or the whole root; any other one ends its session's turn only.
_ENDS_ALL: Final = (
    DatabaseDamaged,
    DeviceWedged,
    DiskFailed,
    DiskFull,
    DiskReadOnly,
    Drained,
    StaleSession,
)

#: Exit code of a session that failed, by the outcome that led there.
_FAILED_CODES: Final = {
    Outcome.WEDGED: DeviceWedged.exit_code,
    Outcome.POISONED: PoisonSession.exit_code,
    Outcome.INVALID: EnvironmentMissing.exit_code,
    Outcome.IMPOSSIBLE: UsageError.exit_code,
    Outcome.UNAVAILABLE: EnvironmentMissing.exit_code,
    Outcome.ENVIRONMENT_BROKEN: EnvironmentMissing.exit_code,
}


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
        service: What the outside sees.
        admit: Guards of all sessions; see ``Ports.admit``.
        tidied: By session, the round from which on its leftovers are looked at again.
    """

    root: Root
    config: Config
    repository: Repository
    runner: LocalRunner
    git: Git
    run_id: str
    stop: threading.Event
    service: Service
    clock: SystemClock = field(default_factory=SystemClock)
    wishes: Wishes = field(default_factory=Wishes)
    admit: Callable[[guards.Facts], list[str]] = guards.refusals
    tidied: dict[str, int] = field(default_factory=dict)

    def workbench(self, dsl: str, config: Config) -> Workbench:
        """The workbench of a DSL on this root."""
        return open_workbench(dsl, self.runner, config, self.root.cache, self.root.work)

    def run_session(
        self,
        session_id: str,
        observe: Observer,
        *,
        ideator: Ideator | None = None,
        wrapped: Callable[[State, Handler], Handler] | None = None,
    ) -> Session:
        """Work on one session until it ends, is paused, or the daemon drains.

        Args:
            session_id: The session.
            observe: Called after each transition.
            ideator: Asked in place of the session's own: the hand of whoever drives it.
            wrapped: Looks at what a handler came to before it is committed.
        """
        with self.repository.read() as reader:
            session = reader.session(session_id)
            config = Config.model_validate(reader.config(session.id))
        self.wishes.stop = None
        # A model starts no process; what the CPU needs was looked at at the start.
        if session.task.dsl in ON_DEVICES and not session.task.simulated:
            sandbox.ensure(self.runner, self.config, self.root.work, device=True)
        workbench = self.workbench(session.task.dsl, config)
        simulation = self._simulation(session, workbench)
        loaded: list[Ideator] = [] if ideator is None else [ideator]

        def ports_of(current: Session) -> Ports:
            if not loaded:
                # Here, so that an ideator that brings us down counts against its session.
                loaded.extend(self._ideators(session, config, simulation))
            return Ports(
                workbench=workbench,
                ideators=tuple(loaded),
                history=SessionHistory(self.repository, current.id),
                control=self.wishes,
                clock=simulation.clock if simulation else self.clock,
                config=config,
                layout=Layout(current.device.key, current.task, config.storage.compaction_summary),
                admit=self.admit,
            )

        engine = Engine(
            repository=self.repository,
            ports_of=ports_of,
            effects=self.effects(config, workbench.read),
            handlers={s: wrapped(s, h) if wrapped else h for s, h in HANDLERS.items()},
            run_id=self.run_id,
            stop=self.stop,
            between=self._between,
            observe=self._observed(observe),
            disturbed=_undisturbed if simulation else self._disturbed,
        )
        with self.lease(workbench):
            _check_device(session, workbench)
            came_to = engine.run(session.id)
        if came_to.state.is_final:
            self._secured()
        return came_to

    def _secured(self) -> None:
        """A backup of what has ended. That there is no room for it costs no result."""
        try:
            migrate.end_backup(self.root.database)
        except (DiskFull, DiskFailed, DiskReadOnly, OSError) as exc:
            _log.warning("no backup at the end of the session", reason=str(exc))

    def _ideators(
        self, session: Session, config: Config, simulation: Night | None
    ) -> list[Ideator]:
        """The session's own ideators, subject to the faults of a simulated night."""
        lent = self.lent(session.id, config)
        made = [load.open_ideator(session.task.proposer, config.ideators, lent)]
        return simulation.wrapped(made) if simulation else made

    def _simulation(self, session: Session, workbench: Workbench) -> Night | None:
        """Simulated time and faults of a simulated session, from where its last step left them."""
        if not session.task.simulated:
            return None
        with self.repository.read() as reader:
            last = max((t["at"] for t in reader.transitions(session.id, limit=3)), default=0)
        return Night.of(workbench, session.created_at, last)

    def lent(self, session_id: str, config: Config) -> Services:
        """What ideators of a session may use."""
        return Services(
            ledger=SessionLedger(self.repository, session_id, self.run_id, self.clock.now),
            runner=self.runner,
            folder=self.root.work,
            deadline_s=config.deadlines.ideator_s,
            stopping=self.stop.is_set,
            tick=_inbox_watch(self.root, self.stop, self.service),
            now=self.clock.now,
        )

    def effects(self, config: Config, cached: Callable[[str], bytes]) -> Effects:
        """Performer of the promises of a session with this configuration."""
        return Effects(
            root=self.root.path,
            repository=self.repository,
            cached=cached,
            git=self.git,
            now=self.clock.now,
            summary=config.storage.compaction_summary,
        )

    def _observed(self, observe: Observer) -> Observer:
        def seen(before: Session, step: Step, after: Session) -> None:
            self.service.tell(
                f"session {after.id}: {after.state} of round {after.work.round or after.round}, "
                f"step {after.seq}"
            )
            observe(before, step, after)
            if after.round > before.round:
                self._tidy(after)

        return seen

    def _tidy(self, session: Session) -> None:
        """What is too old or too much, as the configuration says.

        After each round at first, more and more rarely later: looking at all files takes the
        longer the more there are, and a round must not.
        """
        if session.round < self.tidied.get(session.id, 0):
            return
        self.tidied[session.id] = session.round + max(1, session.round // _TIDY_SHARE)
        with self.repository.read() as reader:
            gone = retention.retire(self.root.path, retention.of_session(reader, session))
            most = self.config.storage.cache_mb * _MIB
            trimmed = retention.trim_cache(self.root.cache, reader, most)
        if gone or trimmed:
            _log.info("old binaries and reports were removed", files=gone, builds=len(trimmed))

    def _disturbed(self) -> str | None:
        """Why what was just measured or compiled says nothing about the candidate.

        Raises:
            DiskFull: The disk is full; what failed for want of space did not fail on merit.
        """
        if disk.is_exhausted(self.root.state):
            raise DiskFull(self._space_text(0))
        seconds = self.service.still.stood_still_s()
        return f"this process did not run for {seconds:.0f} s" if seconds else None

    @contextmanager
    def lease(self, workbench: Workbench) -> Iterator[None]:
        """Hold the device, when there is one; INIT says what is missing otherwise."""
        try:
            device = workbench.device()
        except EnvironmentMissing:
            yield
            return
        if device.simulated:  # there may be as many of a model as one likes
            yield
            return
        chosen = self.config.contention.lease_dir
        with DeviceLease(device.uuid, Path(chosen) if chosen else lease_folder(), self.run_id):
            yield

    def _between(self, session: Session) -> None:
        """Take messages and look around; runs between steps, on the main thread."""
        self.service.rest()
        self._take_messages(session)
        ahead = self.clock.jumped()
        if ahead is not None:
            _log.warning("the wall clock was set; time is counted on from the start", ahead_s=ahead)
        self._await_space()
        migrate.daily_backup(self.root.database, self.clock.now())
        self.service.still.begin()

    def _take_messages(self, session: Session) -> None:
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

    def _await_space(self) -> None:
        """Wait for space for a while; a night need not end because a log was rotated late.

        Raises:
            DiskFull: There is still none.
        """
        until = time.monotonic() + self.config.storage.wait_for_space_s
        while (free_mb := self._free_mb()) < self.config.storage.min_free_mb:
            if time.monotonic() >= until:
                raise DiskFull(self._space_text(free_mb))
            if self.service.told != (waiting := f"waiting for space: {free_mb} MiB are free"):
                _log.warning("waiting for space on the disk", free_mb=free_mb)
                self.service.tell(waiting)
            self.service.rest()
            if self.stop.wait(_SPACE_LOOK_S):
                return
            _inbox_stop(self.root, self.stop)

    def _free_mb(self) -> int:
        return shutil.disk_usage(self.root.state).free // _MIB

    def _space_text(self, free_mb: int) -> str:
        return (
            f"only {free_mb} MiB are free on the disk of {self.root.state} "
            f"(storage.min_free_mb = {self.config.storage.min_free_mb}); free some space and "
            "run 'croq-fsm resume'"
        )


def _undisturbed() -> None:
    """A model is not disturbed by what the machine does."""


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
    secrecy.hide()
    notifier = notify.from_environment()
    root.prepare()
    run_id, stop, clock, wanted = uuid.uuid4().hex, threading.Event(), SystemClock(), Wanted()
    service = service_of(root.log, config, notifier, wanted)
    ballast = Ballast(root.state / "ballast", config.storage.ballast_mb * _MIB)
    with ExitStack() as stack:
        lock = RootLock(root, run_id)
        stack.callback(lock.release)
        stack.callback(notifier.stopping)
        stack.enter_context(_freeing(ballast))
        stack.enter_context(handled(stop, wanted))
        # Before the first child runs: what stopped a former daemon must not stop this one.
        inbox.discard_commands(root)
        engine = writer(root.database)
        stack.callback(engine.dispose)
        migrate.upgrade(engine, root.database)
        mark_used(root.database)
        migrate.daily_backup(root.database, clock.now())
        repository = Repository(engine, root.database)
        daemon = _compose(root, config, repository, (run_id, stop, clock, service))
        daemon.git.check()
        _recover(daemon)
        level = sandbox.ensure(daemon.runner, config, root.work, device=False)
        _log.info("sandbox", level=level.text)
        ballast.take(config.storage.min_free_mb * _MIB)
        stack.enter_context(service.still.watched())
        notifier.ready("recovered; working")
        ending = "clean"
        try:
            yield daemon
        except BaseException as exc:
            meant = disk.meaning(exc)
            _free_when_full(ballast, exc)
            ending = f"{type(meant or exc).__name__}: {meant or exc}"
            raise
        finally:
            notifier.stopping()
            _say_goodbye(daemon, redacted(ending))


@contextmanager
def _freeing(ballast: Ballast) -> Iterator[None]:
    """Also when there was not even room for a start: the next one shall have some."""
    try:
        yield
    except BaseException as exc:
        _free_when_full(ballast, exc)
        raise


def _free_when_full(ballast: Ballast, exc: BaseException) -> None:
    if isinstance(exc, DiskFull) or isinstance(disk.meaning(exc), DiskFull):
        ballast.drop()


def _compose(
    root: Root,
    config: Config,
    repository: Repository,
    parts: tuple[str, threading.Event, SystemClock, Service],
) -> Daemon:
    run_id, stop, clock, service = parts
    runner = LocalRunner(
        run_id=run_id,
        journal=WatchedChildren(ChildTable(repository, run_id, clock.now), service.heart),
        stop=stop,
        deadlines=config.deadlines,
        tick=_inbox_watch(root, stop, service),
        policy=Policy.of(config),
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
    return Daemon(root, config, repository, runner, git, run_id, stop, service, clock)


def _inbox_watch(root: Root, stop: threading.Event, service: Service) -> Callable[[], None]:
    """A stop at once must not wait for the running child; looks twice a second at most."""
    last = 0.0

    def tick() -> None:
        nonlocal last
        service.tick()
        if time.monotonic() - last < _INBOX_LOOK_S:
            return
        last = time.monotonic()
        _inbox_stop(root, stop)

    return tick


def _inbox_stop(root: Root, stop: threading.Event) -> None:
    """Set ``stop`` if a message asks for an end at once."""
    for path in root.inbox.glob("*.json"):
        with suppress(OSError):  # it may be taken meanwhile
            if '"stop-now"' in path.read_text(encoding="utf-8", errors="replace"):
                stop.set()


def _recover(daemon: Daemon) -> None:
    """Clear away what a former daemon left: its children, its lock, its folders."""
    with daemon.repository.read() as reader:
        former = reader.open_runs(except_for=daemon.run_id)
        git_since = reader.open_child_since("git")
    for run in former:
        killed = kill_survivors(run, tick=lambda: daemon.service.heart.notifier.extend(30.0))
        if killed:
            _log.warning("survivors of a former daemon were ended", run_id=run, pids=killed)
    now = int(daemon.clock.now() * 1e6)
    daemon.repository.close_children_of_dead_runs(daemon.run_id, now)
    # A git of ours that died with the daemon left its locks; any other lock has to be old.
    locks = daemon.git.remove_stale_locks()
    locks += [] if git_since is None else daemon.git.remove_stale_locks(git_since)
    if locks:
        _log.warning("stale locks of git were removed", root=str(daemon.root.path), locks=locks)
    for leftover in daemon.root.leftovers():
        shutil.rmtree(leftover, ignore_errors=True)
    _keep_promises(daemon)


def _keep_promises(daemon: Daemon) -> None:
    """Files and commits of sessions that have ended; the others keep theirs when taken up."""
    with daemon.repository.read() as reader:
        promised = dict.fromkeys(intent.session_id for intent in reader.open_intents())
        ended = [s for s in map(reader.session, promised) if s.state.is_final]
        lasts = {s.id: reader.transitions(s.id, limit=1)[0]["outcome"] for s in ended}
        configs = {s.id: Config.model_validate(reader.config(s.id)) for s in ended}
    for session in ended:
        if lasts[session.id] not in _CLOSED:
            cached = expected.cache_reader(daemon.root.cache)
            try:
                daemon.effects(configs[session.id], cached).perform_open(session.id)
            except (UsageError, EnvironmentMissing) as exc:
                _log.warning("promised files stay unwritten", session=session.id, why=str(exc))


def _say_goodbye(daemon: Daemon, ending: str) -> None:
    """The end of this run; on a full disk the ballast has just made room for it."""
    try:
        daemon.repository.end_run(daemon.run_id, int(daemon.clock.now() * 1e6), ending)
    except (CroqError, OSError) as exc:
        _log.warning("the end could not be recorded", why=str(exc))


def exit_code(daemon: Daemon, session: Session) -> int:
    """What a session's end means for the process."""
    if session.state is not State.FAILED:
        return 0
    with daemon.repository.read() as reader:
        last = reader.transitions(session.id, limit=1)
    codes = {outcome.name: code for outcome, code in _FAILED_CODES.items()}
    return codes.get(last[0]["outcome"], 1) if last else 1


def goes_on(exc: CroqError) -> bool:
    """Whether the queue goes on after a session that could not be worked on for this reason."""
    return not isinstance(exc, _ENDS_ALL)


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
