"""``resume``: go on where a session stands, or open an ended one again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from croq_fsm.cli.place import ConfigOption, Place, RootOption, SessionArgument, archive_of, place
from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from croq_fsm.cli.work import Turn
    from croq_fsm.config import Config
    from croq_fsm.daemon import Daemon
    from croq_fsm.domain.session import Session
    from croq_fsm.domain.states import State
    from croq_fsm.domain.task import Task
    from croq_fsm.storage.reading import Reader


@dataclass(frozen=True)
class Limits:
    """New limits, counted from now; None where nothing was said."""

    rounds: int | None
    seconds: float | None

    @property
    def given(self) -> bool:
        """Whether any was said."""
        return self.rounds is not None or self.seconds is not None


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(resume)


def resume(
    session: SessionArgument = None,
    *,
    reopen: Annotated[
        bool, typer.Option("--reopen", help="Put a session that has ended back to work")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(help="Stop after this many more rounds; replaces old limits")
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", help="Stop after this time from now: 30m, 8h")
    ] = None,
    or_start: Annotated[
        bool,
        typer.Option("--or-start", help="Without anything to resume, work on the configured queue"),
    ] = False,
    root: RootOption = None,
    config: ConfigOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Work in the background, without a terminal")
    ] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Progress and log as JSON lines on standard error")
    ] = False,
) -> None:
    """Go on with the session last worked on, or with a named one.

    Sessions of a queue that have not begun follow. A paused session becomes active again.
    """
    from croq_fsm.cli.durations import parse_duration

    if rounds is not None and rounds < 1:
        raise UsageError("--rounds must be at least 1")
    limits = Limits(rounds, None if for_ is None else parse_duration(for_))
    here = place(root, config, json_log=log_json)
    if session is None and not reopen:
        kept = _keep_last_promises(here)
        if kept and not or_start:
            raise typer.Exit
        if or_start and not _unfinished(here):
            from croq_fsm.cli.start import queue

            raise typer.Exit(queue(here, detach=detach, as_log=log_json))
    _check(here, session, reopen=reopen, limits=limits)
    if detach:
        from croq_fsm.cli.detach import background

        raise typer.Exit(background(here))
    raise typer.Exit(_work(here, session, reopen=reopen, limits=limits, as_log=log_json))


def _unfinished(here: Place) -> bool:
    """Whether there is a session that has not ended."""
    if not here.root.database.is_file():
        return False
    with archive_of(here.root) as archive, archive.look() as reader:
        return any(not s.state.is_final for s in reader.sessions())


def _keep_last_promises(here: Place) -> bool:
    """Every session has ended, but the last daemon died before it wrote what it had promised."""
    from croq_fsm.daemon import opened
    from croq_fsm.errors import ForeignSchema

    if not here.root.database.is_file():
        return False
    try:
        with archive_of(here.root) as archive, archive.look() as reader:
            ended = all(s.state.is_final for s in reader.sessions())
            promised = bool(reader.open_intents())
    except ForeignSchema:
        return False
    if ended and promised:
        with opened(here.root, here.config):
            typer.echo("files and commits that an ended session had promised are written now")
    return ended and promised


def _check(here: Place, name: str | None, *, reopen: bool, limits: Limits) -> None:
    """Say what is wrong before the lock is taken; asked again under the lock.

    Only a database of this very revision can be asked; an older one is migrated first.
    """
    from croq_fsm.errors import ForeignSchema
    from croq_fsm.storage.engine import refuse_loss

    refuse_loss(here.root.database)
    if not here.root.database.is_file():
        raise UsageError(f"no session in {here.root.path} yet; 'croq-fsm start' makes one")
    try:
        with archive_of(here.root) as archive, archive.look() as reader:
            session = _pick(reader, name, reopen=reopen)
            _target(reader, session, limits, reopen=reopen)
    except ForeignSchema:
        return


def _work(here: Place, name: str | None, *, reopen: bool, limits: Limits, as_log: bool) -> int:
    from croq_fsm.cli.work import Turn, refuse_taken_device, work_on
    from croq_fsm.daemon import opened

    with opened(here.root, here.config) as daemon:
        with daemon.repository.read() as reader:
            session = _pick(reader, name, reopen=reopen)
            target = _target(reader, session, limits, reopen=reopen)
            queue = [] if name is not None else _queue(reader, session)
        if not session.task.simulated:
            refuse_taken_device(daemon, session.task.dsl, here.config)
        _put_back(daemon, session, target, limits)
        turns = [Turn(session.id), *(_turn(daemon, waiting) for waiting in queue)]
        return work_on(daemon, turns, until=None, as_log=as_log)


def _turn(daemon: Daemon, waiting: str) -> Turn:
    """A session that has not begun has its own share of time before it."""
    from croq_fsm.cli.work import Turn

    with daemon.repository.read() as reader:
        hours = reader.session(waiting).task.hours
    return Turn(waiting, None if hours is None else 3600.0 * hours)


def _pick(reader: Reader, name: str | None, *, reopen: bool) -> Session:
    """The named session; else the one last worked on that has not ended; else, to reopen, the last.

    Raises:
        UsageError: There is nothing to resume.
    """
    from croq_fsm.report.standing import current

    if name is not None:
        return reader.session(name)
    sessions = reader.sessions()
    unfinished = [s for s in sessions if not s.state.is_final]
    session = current(sessions if reopen else unfinished, alive=False)
    if session is not None:
        return session
    if not sessions:
        raise UsageError("there is no session yet; 'croq-fsm start' makes one")
    raise UsageError(
        "nothing to resume: every session here has ended; 'croq-fsm resume --reopen --rounds 10' "
        "goes on with the last one"
    )


def _target(reader: Reader, session: Session, limits: Limits, *, reopen: bool) -> State | None:
    """State to put an ended session back to; None for one that has not ended.

    Raises:
        UsageError: It has ended and is not to be reopened, or would end at once again.
    """
    from croq_fsm.config import Config
    from croq_fsm.domain.states import State

    if not session.state.is_final:
        return None
    if not reopen:
        raise UsageError(
            f"session {session.id} has ended ({session.state.name}: {session.reason}); "
            "add --reopen to go on with it all the same"
        )
    config = Config.model_validate(reader.config(session.id))
    _refuse_used_up(session, _limited(session, limits, _now()), config)
    if session.state is State.DONE:
        return State.PROFILE
    last = reader.transitions(session.id, limit=1)[0]
    return State[last["from_state"]]


def _refuse_used_up(session: Session, task: Task, config: Config) -> None:
    """A limit that is used up already would end the session after one more round."""
    rounds = task.rounds or config.limits.rounds
    if rounds and rounds <= session.round:
        raise UsageError(
            f"session {session.id} has used its {rounds} rounds; say how many more with --rounds"
        )
    if task.deadline is not None and task.deadline <= _now():
        raise UsageError(
            f"the deadline of session {session.id} has passed; give it time with --for 8h, "
            "or rounds with --rounds 10"
        )


def _limited(session: Session, limits: Limits, now: float) -> Task:
    """The task with new limits; if any is given, the old ones are gone."""
    if not limits.given:
        return session.task
    rounds = None if limits.rounds is None else session.round + limits.rounds
    deadline = None if limits.seconds is None else now + limits.seconds
    return session.task.model_copy(update={"rounds": rounds, "deadline": deadline})


def _queue(reader: Reader, session: Session) -> list[str]:
    """Sessions that were queued and have not begun, oldest first."""
    from croq_fsm.domain.states import Status

    waiting = [
        s
        for s in reader.sessions()
        if s.seq == 0 and s.status is Status.ACTIVE and s.id != session.id
    ]
    return [s.id for s in sorted(waiting, key=lambda s: (s.created_at, s.id))]


def _put_back(daemon: Daemon, session: Session, target: State | None, limits: Limits) -> None:
    from croq_fsm.domain.states import Status

    now = daemon.clock.now()
    if target is not None or limits.given:
        task = _limited(session, limits, now)
        daemon.repository.revise(session, task, target, int(now * 1e6))
    elif session.status is Status.PAUSED:
        daemon.repository.set_status(session, Status.ACTIVE)


def _now() -> float:
    import time

    return time.time()
