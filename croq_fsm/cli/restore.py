"""``restore``: back to a backup of the database."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from croq_fsm.cli.place import ConfigOption, RootOption, agreed, place
from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from croq_fsm.storage.backups import Backup

_RUN_ID: Final = "restore"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(restore)


def restore(
    backup: Annotated[
        str | None,
        typer.Argument(
            metavar="[BACKUP]",
            help="File name of a backup, or its beginning; default: the newest that is whole.",
            show_default=False,
        ),
    ] = None,
    *,
    list_: Annotated[bool, typer.Option("--list", help="Show the backups")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Put a backup in the place of the database, damaged or not; that is kept beside it.

    Rounds that are younger than the backup are forgotten; their files and commits stay.
    Exit code 3: a daemon works here.
    """
    from croq_fsm.root import RootLock
    from croq_fsm.storage import backups

    here = place(root, config).root
    if list_:
        typer.echo("\n".join(map(_line, backups.found(here.database))) or "no backup yet")
        return
    if not here.state.is_dir():
        raise UsageError(f"no session was ever made in {here.path}")
    lock = RootLock(here, _RUN_ID)
    try:
        wanted = backups.chosen(here.database, backup)
        typer.echo(f"back to {_line(wanted)}")
        if not yes and not agreed():
            raise typer.Exit(1)
        aside = backups.restore(here.database, wanted)
    finally:
        lock.release()
    if aside is not None:
        typer.echo(f"what was there is in {aside}")
    typer.echo("next: 'croq-fsm rebuild' makes the files match, 'croq-fsm validate' looks at all")


def _line(backup: Backup) -> str:
    if backup.problem:
        return f"{backup.path.name}  cannot be used: {backup.problem}"
    last = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(backup.last_at / 1e6))
    told = f"last transition {last} UTC" if backup.last_at else "no transition yet"
    return f"{backup.path.name}  {backup.sessions} sessions, {backup.rounds} rounds, {told}"
