"""``status``: how the sessions of a root stand, beside a living daemon or after a dead one."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

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
from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from croq_fsm.report.standing import Standing
    from croq_fsm.storage.inspection import Archive, Inspector

_REFRESH_S: Final = 1.0
_LISTED: Final = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(status)


def status(
    session: SessionArgument = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Again and again, until the session ends")
    ] = False,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Show where a session stands; never disturbs the daemon."""
    here = place(root, config)
    if not _has_sessions(here) and session is None and (only := _imported(here)):
        typer.echo(json.dumps({"sessions": [], "imported": only.as_json}) if as_json else only.text)
        return
    if not _has_sessions(here):
        if session is not None:
            raise UsageError(f"no session {session!r}: {here.root.path} has none yet")
        typer.echo(json.dumps({"sessions": []}) if as_json else _nothing(here))
        return
    with archive_of(here.root) as archive:
        if watch:
            with suppress(KeyboardInterrupt):
                _watch(archive, here, session, as_json=as_json)
            return
        with archive.look() as inspector:
            standing = _standing(inspector, here, session)
            typer.echo(_json(standing) if as_json else _text(inspector, standing, session))
            if not as_json and session is None and (also := _listed(inspector)):
                typer.echo(f"\n{also.text}")


@dataclass(frozen=True)
class _Imports:
    """Sessions of other programs, for both forms of the answer."""

    text: str
    as_json: list[dict[str, Any]]


def _imported(here: Place) -> _Imports | None:
    """What was imported into a root without sessions of its own."""
    if not here.root.database.is_file():
        return None
    try:
        with archive_of(here.root) as archive, archive.look() as inspector:
            return _listed(inspector)
    except UsageError:
        return None


def _listed(inspector: Inspector) -> _Imports | None:
    from croq_fsm.report import imported

    found = inspector.imports()
    return _Imports(imported.table(found), imported.as_json(found)) if found else None


def _nothing(here: Place) -> str:
    return (
        f"no session in {here.root.path} yet; start one with "
        f"'croq-fsm start c f32 512x512x512{beside(here.root)}'"
    )


def _has_sessions(here: Place) -> bool:
    """Whether there is a row; a database that is just being made has none."""
    from croq_fsm.storage.engine import refuse_loss

    refuse_loss(here.root.database)
    if not here.root.database.is_file():
        return False
    try:
        with archive_of(here.root) as archive, archive.look() as inspector:
            return bool(inspector.sessions())
    except UsageError:
        return False


def _standing(inspector: Inspector, here: Place, name: str | None) -> Standing:
    from croq_fsm.report.standing import gather

    return gather(inspector, chosen(inspector, here.root, name), here.root, time.time())


def _json(standing: Standing) -> str:
    from croq_fsm.report.standing import as_json

    return json.dumps(as_json(standing), ensure_ascii=False, indent=2)


def _text(inspector: Inspector, standing: Standing, name: str | None) -> str:
    """The session's block, and a table of all sessions when none was named."""
    from croq_fsm.report import status_text

    block = status_text.block(standing)
    sessions = inspector.sessions()
    if name is not None or len(sessions) == 1:
        return block
    bests = {
        s.id: inspector.iteration(s.id, s.best_iteration)
        for s in sessions[:_LISTED]
        if s.best_iteration is not None
    }
    listed = status_text.table(sessions[:_LISTED], bests, standing.session.id)
    hidden = len(sessions) - _LISTED
    more = f"\n  … and {hidden} older ones" if hidden > 0 else ""
    return f"{block}\n\n{listed}{more}"


def _watch(archive: Archive, here: Place, name: str | None, *, as_json: bool) -> None:
    """Redraw on a terminal; elsewhere a block, or a JSON line, for each change."""
    if sys.stdout.isatty() and not as_json:
        _watch_terminal(archive, here, name)
        return
    seen: Any = None
    while True:
        with archive.look() as inspector:
            standing = _standing(inspector, here, name)
        key = (standing.session.id, standing.session.seq, standing.daemon.alive)
        if key != seen:
            seen = key
            typer.echo(_compact(standing) if as_json else _block(standing) + "\n")
        if _is_over(standing):
            return
        time.sleep(_REFRESH_S)


def _watch_terminal(archive: Archive, here: Place, name: str | None) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        while True:
            with archive.look() as inspector:
                standing = _standing(inspector, here, name)
            live.update(Text(_block(standing), overflow="ellipsis", no_wrap=True), refresh=True)
            if _is_over(standing):
                return
            time.sleep(_REFRESH_S)


def _block(standing: Standing) -> str:
    from croq_fsm.report import status_text

    return status_text.block(standing)


def _compact(standing: Standing) -> str:
    from croq_fsm.report.standing import as_json

    return json.dumps(as_json(standing), ensure_ascii=False)


def _is_over(standing: Standing) -> bool:
    """Nothing more will come: the session has ended, or nobody works on anything here."""
    return standing.session.state.is_final or not standing.daemon.alive
