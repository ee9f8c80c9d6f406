"""``import``: records of a prompt-driven harness, as claims."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from croq_fsm.cli.place import ConfigOption, RootOption, place

if TYPE_CHECKING:
    from croq_fsm.importing.reading import Imported


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("import")(import_)


def import_(
    tree: Annotated[Path, typer.Argument(help="Folder with <gpu>/<dsl>/logs/… in it")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="What was found as one object")] = False,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Take over old records; each row keeps its text, and the reasons against it.

    Nothing imported counts as a record. Importing the same tree again changes nothing.
    """
    from croq_fsm.daemon import opened
    from croq_fsm.importing.reading import read_tree
    from croq_fsm.importing.storing import store

    found = read_tree(tree)
    here = place(root, config)
    with opened(here.root, here.config) as daemon:
        done = store(daemon.repository, found, int(daemon.clock.now() * 1e6))
    typer.echo(_as_json(found, done) if as_json else _as_text(found, done))


def _totals(found: list[Imported]) -> Counter[str]:
    total: Counter[str] = Counter()
    for session in found:
        total.update(session.findings)
    return total


def _as_json(found: list[Imported], done: dict[str, str]) -> str:
    sessions = [
        {
            "session": s.id,
            "gpu": s.gpu,
            "dsl": s.dsl,
            "shape_key": s.shape_key,
            "model": s.model,
            "rows": len(s.rows),
            "suspect_rows": s.suspect,
            "state": done[s.id],
            "findings": s.findings,
        }
        for s in found
    ]
    totals = dict(sorted(_totals(found).items()))
    return json.dumps({"sessions": sessions, "findings": totals}, ensure_ascii=False, indent=2)


def _as_text(found: list[Imported], done: dict[str, str]) -> str:
    lines = [
        f"{s.id}  {s.dsl} {s.shape_key} {s.model or '-'}: {len(s.rows)} rows, {s.suspect} suspect "
        f"({done[s.id]})"
        for s in found
    ]
    lines += ["", "irregularities, by kind:"]
    lines += [f"  {kind:<30} {count}" for kind, count in sorted(_totals(found).items())]
    states = Counter(done.values())
    shown = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    lines += ["", f"{len(found)} sessions: {shown}; all unverified"]
    return "\n".join(lines)
