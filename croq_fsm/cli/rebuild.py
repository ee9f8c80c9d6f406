"""``rebuild``: all files below ``tuning/`` again, from the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from croq_fsm.cli.place import ConfigOption, RootOption, place

if TYPE_CHECKING:
    from croq_fsm.storage.restoring import Restored

_INCOMPLETE: Final = 1
_RUN_ID: Final = "rebuild"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(rebuild)


def rebuild(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION]",
            help="Session, or the beginning of its name; default: all.",
            show_default=False,
        ),
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be written")] = False,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Write missing and different files again, byte for byte; others stay as they are.

    Exit code 0: every file is as the database says. 1: some content is lost. 3: a daemon runs.
    """
    from croq_fsm.root import RootLock
    from croq_fsm.storage import auditing, restoring
    from croq_fsm.storage.expected import cache_reader

    here = place(root, config).root
    with auditing.opened(here.database) as auditor:
        chosen = None if session is None else auditor.session(session).id
    lock = RootLock(here, _RUN_ID)
    try:
        with auditing.opened(here.database) as auditor:
            done = restoring.restore(
                auditor, here.path, cache_reader(here.cache), chosen, dry_run=dry_run
            )
    finally:
        lock.release()
    typer.echo(_told(done, dry_run=dry_run))
    if done.lost or done.unreadable:
        raise typer.Exit(_INCOMPLETE)


def _told(done: Restored, *, dry_run: bool) -> str:
    verb = "would be written" if dry_run else "written"
    lines = [f"{verb}: {path}" for path in done.written]
    lines += [f"lost, the build cache does not hold it any more: {path}" for path in done.lost]
    lines += [f"left, a later session of the task owns it: {path}" for path in done.overwritten]
    lines += [f"session {name} cannot be read; see 'croq-fsm validate'" for name in done.unreadable]
    counted = f"{len(done.written)} {verb}, {done.unchanged} right already"
    return "\n".join([*lines, f"{counted}, {len(done.lost)} lost"])
