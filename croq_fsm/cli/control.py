"""``pause``, ``stop`` and ``hint``: messages to a daemon, left where it looks between steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from croq_fsm.cli.place import (
    ConfigOption,
    Place,
    RootOption,
    SessionArgument,
    archive_of,
    beside,
    chosen,
    place,
)
from croq_fsm.errors import CroqError, LockHeld, UsageError

if TYPE_CHECKING:
    from croq_fsm.domain.session import Session
    from croq_fsm.root import Root

_STOP_WAIT_S: Final = 3.0
_NOW_WAIT_S: Final = 60.0
_POLL_S: Final = 0.1
_LONGEST_HINT: Final = 4000


class StillRunning(CroqError):
    """The daemon did not end within the time that it was given; it has been asked to."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(pause)
    app.command()(stop)
    app.command()(hint)


def pause(
    session: SessionArgument = None, *, root: RootOption = None, config: ConfigOption = None
) -> None:
    """Let the session rest after the step in hand; 'resume' goes on with it."""
    from croq_fsm import inbox
    from croq_fsm.root import is_locked

    here = place(root, config)
    target = _unfinished(here.root, session)
    if target is None:
        typer.echo("nothing to pause: no session here is unfinished")
        return
    if not is_locked(here.root) and _pause_directly(here, target):
        return
    _refuse_other(here.root, target)
    inbox.leave(here.root, "pause", session_id=target.id)
    typer.echo(
        f"session {target.id} is asked to pause; the step in hand is finished first. "
        f"'croq-fsm resume{beside(here.root)}' goes on"
    )


def stop(
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Do not finish the round; 'resume' does it again")
    ] = False,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """End the daemon of this root after the round in hand, or at once."""
    from croq_fsm import inbox
    from croq_fsm.root import is_locked, read_holder

    here = place(root, config)
    if not is_locked(here.root):
        typer.echo(f"nothing to stop: no daemon works on {here.root.path}")
        return
    pid = read_holder(here.root).get("pid", "?")
    inbox.leave(here.root, "stop-now" if now else "stop")
    wait_s = _NOW_WAIT_S if now else _STOP_WAIT_S
    if _wait_until_free(here.root, wait_s):
        typer.echo(f"the daemon (pid {pid}) has ended")
    elif now:
        raise StillRunning(
            f"the daemon (pid {pid}) was asked to stop and has not ended within {wait_s:.0f} s; "
            f"'croq-fsm status{beside(here.root)}' shows what it waits for"
        )
    else:
        typer.echo(
            f"the daemon (pid {pid}) ends after the round in hand; "
            f"'croq-fsm stop --now{beside(here.root)}' ends it at once"
        )


def hint(
    text: Annotated[str, typer.Argument(help="Advice for the next idea, in words")],
    *,
    session: Annotated[
        str | None, typer.Option(help="Session; default: the one last worked on")
    ] = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Tell the ideator something; it is read when the next idea is looked for."""
    from croq_fsm import inbox
    from croq_fsm.root import is_locked

    here = place(root, config)
    # Bytes that are no UTF-8 arrive as halves of characters, which nothing can write.
    words = text.encode("utf-8", "replace").decode("utf-8").strip()
    if not words:
        raise UsageError("the hint is empty; say what to try, for example 'larger tiles in K'")
    if len(words) > _LONGEST_HINT:
        raise UsageError(f"the hint has {len(words)} characters; {_LONGEST_HINT} are allowed")
    target = _unfinished(here.root, session)
    inbox.leave(here.root, "hint", words, target.id if target else None)
    if target is None:
        typer.echo("hint left; no session here is unfinished, so the next ones will read it")
    else:
        when = "with the next idea" if is_locked(here.root) else "when it is resumed"
        typer.echo(f"hint left for session {target.id}; it is read {when}")


def _unfinished(root: Root, name: str | None) -> Session | None:
    """The named session, or the one last worked on, if it has not ended; else None.

    Raises:
        UsageError: The named session does not exist or has ended.
    """
    if not root.database.is_file():
        if name is None:
            return None
        raise UsageError(f"no session {name!r}: {root.path} has none yet")
    with archive_of(root) as archive, archive.look() as inspector:
        if name is None and all(s.state.is_final for s in inspector.sessions()):
            return None
        session = chosen(inspector, root, name, unfinished=True)
    if session.state.is_final:
        raise UsageError(f"session {session.id} has ended ({session.reason})")
    return session


def _refuse_other(root: Root, target: Session) -> None:
    """A daemon hears only what concerns the session in its hands."""
    with archive_of(root) as archive, archive.look() as inspector:
        worked_on = chosen(inspector, root, None)
    if worked_on.id != target.id:
        raise UsageError(
            f"the daemon works on session {worked_on.id}; {target.id} cannot be paused meanwhile"
        )


def _pause_directly(here: Place, session: Session) -> bool:
    """Record the pause ourselves; False when a daemon came first and must be asked."""
    from croq_fsm.daemon import opened
    from croq_fsm.domain.states import Status

    try:
        with opened(here.root, here.config) as daemon:
            with daemon.repository.read() as reader:
                fresh = reader.session(session.id)
            daemon.repository.set_status(fresh, Status.PAUSED)
    except LockHeld:
        return False
    typer.echo(f"session {session.id} is paused; no daemon was working on it")
    return True


def _wait_until_free(root: Root, seconds: float) -> bool:
    from croq_fsm.root import is_locked

    deadline = time.monotonic() + seconds
    while is_locked(root):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
