"""``report``: what a session was asked, what it did, and what to do next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from croq_fsm.cli.place import (
    ConfigOption,
    RootOption,
    SessionArgument,
    archive_of,
    chosen,
    place,
)
from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from croq_fsm.storage.inspection import Inspector


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    session: SessionArgument = None,
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Write it to this file")] = None,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Tell the whole story of a session as text; works at any time."""
    from croq_fsm.report import facts, text

    here = place(root, config)
    with archive_of(here.root) as archive, archive.look() as inspector:
        rendered = _of_import(inspector, session)
        if rendered is None:
            found = chosen(inspector, here.root, session)
            rendered = text.render(facts.read(inspector, found, here.root, time.time()))
    if out is None:
        typer.echo(rendered, nl=False)
        return
    try:
        out.write_text(rendered, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"the report cannot be written to {out}: {exc.strerror}") from exc
    typer.echo(f"report written to {out}")


def _of_import(inspector: Inspector, name: str | None) -> str | None:
    """The report of an imported session, when one is named."""
    from croq_fsm.report import imported

    if name is None or not name.startswith("imported-"):
        return None
    found = next((s for s in inspector.imports() if s.id.startswith(name)), None)
    if found is None:
        raise UsageError(f"no imported session {name!r}; 'croq-fsm status' lists them")
    return imported.render(found, inspector.imported_rows(found.id))
