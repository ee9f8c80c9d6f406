"""Working on sessions in the foreground of this process: what ``start`` and ``resume`` share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from croq_fsm.cli import detach
from croq_fsm.cli.progress import Progress, shown
from croq_fsm.daemon import Daemon, goes_on, run_queue
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Status
from croq_fsm.errors import CroqError
from croq_fsm.report import summary

if TYPE_CHECKING:
    from croq_fsm.config import Config
    from croq_fsm.domain.records import Iteration


@dataclass(frozen=True)
class Turn:
    """A session whose turn comes.

    Attributes:
        session_id: The session.
        seconds: Its own limit, counted from the moment at which its turn comes; None keeps the
            deadline that is stored.
    """

    session_id: str
    seconds: float | None = None


def work_on(daemon: Daemon, turns: list[Turn], *, until: float | None, as_log: bool) -> int:
    """Work on sessions one after the other and say at the end what came of it.

    Args:
        daemon: An opened daemon.
        turns: The sessions, in order.
        until: UTC seconds at which the whole queue ends; None for no such end.
        as_log: Show progress as log events.

    Returns:
        The first exit code that is not 0, else 0.
    """
    detach.announce([turn.session_id for turn in turns])
    code, done = 0, 0
    with shown(as_log=as_log) as progress:
        for done, turn in enumerate(turns, 1):
            session = _ready(daemon, turn, until)
            progress.begins(session, _best(daemon, session))
            try:
                ended = run_queue(daemon, [session.id], progress.observe)
            except CroqError as exc:
                if done == len(turns) or not goes_on(exc):
                    raise
                # It stays as it is; the others have their night all the same.
                progress.say(f"session {session.id} cannot be worked on: {exc}")
                ended = exc.exit_code
            code = code or ended
            session = _load(daemon, session.id)
            _conclude(daemon, session, progress)
            if _is_over(daemon, session, until):
                break
        if done < len(turns):
            left = " ".join(turn.session_id for turn in turns[done:])
            progress.say(f"not begun: {left}; 'croq-fsm resume' takes them up")
    return code


def refuse_taken_device(daemon: Daemon, dsl: str, config: Config) -> None:
    """Look before a session is made or changed; asked again when the work begins.

    Raises:
        LockHeld: Another daemon has the device.
    """
    with daemon.lease(daemon.workbench(dsl, config)):
        return


def _ready(daemon: Daemon, turn: Turn, until: float | None) -> Session:
    """The session with a deadline that counts from now."""
    session = _load(daemon, turn.session_id)
    now = daemon.clock.now()
    own = None if turn.seconds is None else now + turn.seconds
    ends = [end for end in (own or session.task.deadline, until) if end is not None]
    deadline = min(ends, default=None)
    if deadline == session.task.deadline:
        return session
    task = session.task.model_copy(update={"deadline": deadline})
    return daemon.repository.revise(session, task, None, int(now * 1e6))


def _is_over(daemon: Daemon, session: Session, until: float | None) -> bool:
    """Whether the rest of the queue shall wait: a stop, a pause, or no time left."""
    asked = daemon.stop.is_set() or daemon.wishes.stop is not None
    late = until is not None and daemon.clock.now() >= until
    return asked or late or session.status is Status.PAUSED


def _load(daemon: Daemon, session_id: str) -> Session:
    with daemon.repository.read() as reader:
        return reader.session(session_id)


def _best(daemon: Daemon, session: Session) -> Iteration | None:
    if session.best_iteration is None:
        return None
    with daemon.repository.read() as reader:
        return reader.iteration(session.id, session.best_iteration)


def _conclude(daemon: Daemon, session: Session, progress: Progress) -> None:
    """The short summary with the next commands."""
    with daemon.repository.read() as reader:
        start = reader.iteration(session.id, 1) if session.best_iteration is not None else None
    found = summary.of(session, start, _best(daemon, session), daemon.root.path)
    progress.ends(session, found)
