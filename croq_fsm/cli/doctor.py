"""``doctor``: what is there, what is missing, what that forbids, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from croq_fsm.cli.place import ConfigOption, RootOption, place
from croq_fsm.cli.validate import ALL
from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from croq_fsm.config import Config
    from croq_fsm.domain.device import Finding
    from croq_fsm.environment import Examination
    from croq_fsm.root import Root

_UNUSABLE: Final = 2
#: Columns of a table that goes to a file or a pipe.
_WIDE: Final = 160


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(
    *,
    dsl: Annotated[str, typer.Option(help="Only this DSL: c, croqtile, cuda, all")] = ALL,
    json: Annotated[
        bool, typer.Option("--json", help="Findings as JSON on standard output")
    ] = False,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Look at tools, devices, disk and lock. Works without a root.

    Exit code 0: at least one DSL is usable. 2: none is.
    """
    from croq_fsm.environment import examine
    from croq_fsm.toolchain.registry import WORKBENCHES, check_dsl

    dsls = tuple(sorted(WORKBENCHES)) if dsl == ALL else (check_dsl(dsl),)
    found, effective = _where(root, config)
    examination = examine(found, effective, dsls)
    if json:
        typer.echo(_as_json(examination))
    else:
        _show(examination)
    if not examination.usable:
        raise typer.Exit(_UNUSABLE)


def _where(root: Path | None, config: Path | None) -> tuple[Root | None, Config]:
    """Root and configuration; no root is no error unless one was named."""
    from croq_fsm import config as configuration
    from croq_fsm.root import find

    try:
        find(root, configuration.load(None))
    except UsageError:
        if root is not None:
            raise
        return None, configuration.load(config)
    here = place(root, config)
    return here.root, here.config


def _as_json(examination: Examination) -> str:
    import json

    return json.dumps(
        {
            "usable": examination.usable,
            "general": [f.model_dump() for f in examination.general],
            "dsls": {
                dsl: [f.model_dump() for f in found] for dsl, found in examination.by_dsl.items()
            },
        },
        ensure_ascii=False,
        indent=2,
    )


def _show(examination: Examination) -> None:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    console.print(_table("everywhere", examination.general))
    for dsl, findings in examination.by_dsl.items():
        console.print(_table(f"DSL {dsl}", findings))
    usable = ", ".join(examination.usable) or "none"
    console.print(f"usable DSLs: {usable}", highlight=False)


def _table(title: str, findings: tuple[Finding, ...]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in ("what", "found", "state", "its absence forbids", "cure"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        cells = (finding.name, finding.found, _state(finding), finding.forbids, finding.cure)
        table.add_row(*(escape(cell) for cell in cells))
    return table


def _state(finding: Finding) -> str:
    if finding.ok:
        return "ok"
    return "MISSING" if finding.required else "optional"
