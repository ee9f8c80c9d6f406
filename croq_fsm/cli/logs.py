"""``logs``: what happened, a transition a line, from the database."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

import typer

from croq_fsm.cli.place import (
    ConfigOption,
    Place,
    RootOption,
    SessionArgument,
    archive_of,
    chosen,
    place,
)
from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from croq_fsm.storage.inspection import Archive

_POLL_S: Final = 0.5


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(logs)


def logs(
    session: SessionArgument = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the session ends")
    ] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", help="How many; 0 means all")] = 50,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Show the transitions of a session, oldest first, each with its reason."""
    if lines < 0:
        raise UsageError("-n must not be negative; 0 means all")
    here = place(root, config)
    with archive_of(here.root) as archive:
        session_id, seq = _show_last(archive, here, session, lines)
        if here.root.log.is_file():
            typer.echo(f"log of the daemon: {here.root.log}", err=True)
        if follow:
            with suppress(KeyboardInterrupt):
                _follow(archive, here, session_id, seq)


def _show_last(archive: Archive, here: Place, name: str | None, count: int) -> tuple[str, int]:
    """Print the latest transitions; returns the session and its step."""
    from croq_fsm.report.transitions import line

    with archive.look() as inspector:
        session = chosen(inspector, here.root, name)
        after = max(0, session.seq - count) if count else 0
        rows = inspector.transitions_after(session.id, after)
    typer.echo(f"session {session.id}: {session.task.dsl} {session.task.shape_key}", err=True)
    for row in rows:
        typer.echo(line(row))
    return session.id, session.seq


def _follow(archive: Archive, here: Place, session_id: str, seq: int) -> None:
    """Print new transitions until the session ends or nobody works here any more."""
    from croq_fsm.report.transitions import line
    from croq_fsm.root import is_locked

    while True:
        alive = is_locked(here.root)
        with archive.look() as inspector:
            rows = inspector.transitions_after(session_id, seq)
            ended = inspector.session(session_id).state.is_final
        for row in rows:
            typer.echo(line(row))
            seq = row["seq"]
        if ended or not alive:
            return
        time.sleep(_POLL_S)
