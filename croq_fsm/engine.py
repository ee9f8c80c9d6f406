"""The loop of one session: begin, work, commit, perform effects; until it ends or is drained.

A loop and not a recursion; handlers never fire transitions. Whatever leaves a handler as an
exception is a bug or the environment: the session stays where it is and the step is begun
again, a bounded number of times.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from croq_fsm import FSM_VERSION, faults
from croq_fsm.config import Config
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Outcome, State, Status
from croq_fsm.errors import (
    CroqError,
    DatabaseDamaged,
    DeviceWedged,
    DiskFailed,
    DiskFull,
    DiskReadOnly,
    Drained,
    ForeignSchema,
    StaleSession,
)
from croq_fsm.machine import SessionMachine
from croq_fsm.ports import Ports
from croq_fsm.storage import disk
from croq_fsm.storage.effects import Effects
from croq_fsm.storage.repository import Repository

_log = structlog.get_logger(__name__)

Handler = Callable[[Session, Ports], Step]
Observer = Callable[[Session, Step, Session], None]

#: Errors that no repetition mends; they end the daemon with their exit code.
_FATAL = (
    DatabaseDamaged,
    DeviceWedged,
    DiskFailed,
    DiskFull,
    DiskReadOnly,
    Drained,
    ForeignSchema,
    StaleSession,
)
#: How often a step is repeated because it was disturbed, before it is taken as it is.
_REPEATS = 3


@dataclass
class Engine:
    """Runs one session.

    Attributes:
        repository: The database.
        ports_of: Ports for a session; asked again when the device becomes known.
        effects: Performs promised effects.
        handlers: Handler of each work state.
        run_id: Identity of this start of the daemon.
        stop: Set when the daemon shall drain.
        between: Called before each step: messages, watchdog, free space.
        observe: Called after each committed transition.
        disturbed: Asked after each step's work: why it is worthless, or None. It may raise.
        repeated: How often steps were repeated for that.
    """

    repository: Repository
    ports_of: Callable[[Session], Ports]
    effects: Effects
    handlers: dict[State, Handler]
    run_id: str
    stop: threading.Event
    between: Callable[[Session], None] = lambda _session: None
    observe: Observer = lambda _before, _step, _after: None
    disturbed: Callable[[], str | None] = lambda: None
    repeated: dict[tuple[str, int], int] = field(default_factory=dict)

    def run(self, session_id: str) -> Session:
        """Work until the session ends, is paused, or the daemon drains.

        Raises:
            CroqError: A fatal error of the environment, with its exit code.
        """
        session = self._load(session_id)
        if session.state.is_final:
            self.effects.perform_open(session_id)
            return session
        session, ports = self._take_up(session)
        while not session.state.is_final and session.status is Status.ACTIVE:
            self.between(session)
            session = self._load(session_id)
            if self.stop.is_set() or session.status is not Status.ACTIVE:
                break
            self._wait(session, ports)
            if self.stop.is_set():
                break
            after = self._step(session, ports)
            if after.device.key != session.device.key:
                ports = self.ports_of(after)
            session = after
        return session

    def _take_up(self, session: Session) -> tuple[Session, Ports]:
        """Keep what was promised, and make the ports.

        A crash in here counts as one of the step in hand: a promise that kills the daemon must
        not do so for ever. Once there were too many, the step parks the session, unperformed.
        """
        began = session.begins
        session = self.repository.begin_step(session)
        faults.point("take_up")
        if began < self._limit(session):
            self.effects.perform_open(session.id)
        ports = self.ports_of(session)
        return self.repository.forget_begins(session, to=began), ports

    def _limit(self, session: Session) -> int:
        with self.repository.read() as reader:
            config = Config.model_validate(reader.config(session.id))
        return config.limits.resumes_per_step

    def _load(self, session_id: str) -> Session:
        with self.repository.read() as reader:
            session = reader.session(session_id)
        if session.fsm_version != FSM_VERSION:
            raise ForeignSchema(
                f"session {session.id} was made by version {session.fsm_version} of the state "
                f"machine, this program has version {FSM_VERSION}; finish it with that program"
            )
        return session

    def _wait(self, session: Session, ports: Ports) -> None:
        """Sit a back-off out; ends at once when the daemon drains."""
        if session.work.not_before is None:
            return
        # A clock that was set back since the wait began must not make it longer.
        longest = ports.clock.now() + ports.config.contention.wait_s
        until = min(session.work.not_before, longest)
        while ports.clock.now() < until:
            self.between(session)
            if ports.clock.wait(min(1.0, max(0.0, until - ports.clock.now())), self.stop):
                return

    def _step(self, session: Session, ports: Ports) -> Session:
        limit = ports.config.limits.resumes_per_step
        if session.begins >= limit:
            # What was promised may be the very thing that kills us.
            return self._fire(session, ports, _poisoned(session), perform=False)
        session = self.repository.begin_step(session)
        with structlog.contextvars.bound_contextvars(
            session=session.id, seq=session.seq, state=str(session.state), round=session.work.round
        ):
            try:
                faults.point(f"handler_{session.state}")
                step = self.handlers[session.state](session, ports)
                faults.point(f"handled_{session.state}")
                why = self._worthless(session)
            except _FATAL:
                self._not_begun(session)
                raise
            except Exception as exc:
                meant = disk.meaning(exc)
                if meant is not None:
                    self._not_begun(session)
                    raise meant from exc
                # A bug in a handler must not end the night.
                _log.exception("step failed", begins=session.begins, limit=limit)
                return session
            if why is not None:
                _log.warning("step is repeated", why=why)
                return self.repository.forget_begins(session, to=session.begins - 1)
            return self._fire(session, ports, step)

    def _worthless(self, session: Session) -> str | None:
        """Why the work of this step says nothing; a few times at most, for it may be wrong."""
        why = self.disturbed()
        if why is None:
            return None
        key = (session.id, session.seq)
        self.repeated[key] = self.repeated.get(key, 0) + 1
        return why if self.repeated[key] <= _REPEATS else None

    def _not_begun(self, session: Session) -> None:
        """An orderly end is no failed try; on a dead disk that cannot be written down."""
        with contextlib.suppress(CroqError):
            self.repository.forget_begins(session, to=session.begins - 1)

    def _fire(self, session: Session, ports: Ports, step: Step, *, perform: bool = True) -> Session:
        committed: list[Session] = []

        def commit(source: State, outcome: Outcome, target: State) -> None:
            if (source, outcome) != (session.state, step.outcome):
                raise StaleSession(f"asked to commit {source}/{outcome} for {session.state}")
            at = int(ports.clock.now() * 1e6)
            committed.append(self.repository.commit_step(session, step, target, self.run_id, at))

        SessionMachine(session.state, commit).fire(step.outcome)
        after = committed[0]
        _log.info(
            "transition",
            session=session.id,
            seq=after.seq,
            source=str(session.state),
            outcome=str(step.outcome),
            target=str(after.state),
            **{k: v for k, v in step.detail.items() if isinstance(v, str | int | float)},
        )
        if perform:
            self.effects.perform_open(session.id)
        self.observe(session, step, after)
        return after


def _poisoned(session: Session) -> Step:
    reason = (
        f"state {session.state} was begun {session.begins} times without coming to an end; "
        "the session is parked. 'croq-fsm resume --reopen' tries it again"
    )
    return Step(Outcome.POISONED, session.work, {"reason": reason}, reason=reason)
