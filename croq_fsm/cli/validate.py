"""``validate``: does everything that the record claims hold?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from croq_fsm.cli.place import ConfigOption, RootOption, place
from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from croq_fsm.validation import Problem, Report

_PROBLEMS: Final = 1
ALL: Final = "all"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)


def dsl_of(word: str) -> str | None:
    """A DSL, or None for ``all``.

    Raises:
        UsageError: It is none.
    """
    from croq_fsm.toolchain.registry import WORKBENCHES

    known = sorted({*WORKBENCHES, "cuda"})
    if word != ALL and word not in known:
        raise UsageError(f"unknown DSL {word!r}; known: {', '.join([*known, ALL])}")
    return None if word == ALL else word


def validate(
    session: Annotated[
        str | None,
        typer.Argument(
            metavar="[SESSION]",
            help="Session, or the beginning of its name; default: all.",
            show_default=False,
        ),
    ] = None,
    *,
    dsl: Annotated[
        str, typer.Option(help="Only sessions of this DSL: c, croqtile, cuda, all")
    ] = ALL,
    json: Annotated[
        bool, typer.Option("--json", help="Findings as JSON on standard output")
    ] = False,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Recompute every claim from the rows; compare files and commits. Changes nothing.

    Exit code 0: the record holds (warnings are allowed). 1: it does not.
    """
    from croq_fsm.validation import validate as audit

    wanted = dsl_of(dsl)
    report = audit(place(root, config).root, session, wanted)
    typer.echo(_as_json(report) if json else _as_text(report))
    if report.errors:
        raise typer.Exit(_PROBLEMS)


def _as_json(report: Report) -> str:
    return report.model_dump_json(indent=2)


def _as_text(report: Report) -> str:
    lines = [_line(problem) for problem in report.problems]
    counted = (
        f"{_count(len(report.sessions), 'session')}, "
        f"{_count(len(report.errors), 'problem')}, {_count(len(report.warnings), 'warning')}"
    )
    return "\n".join([*lines, counted])


def _line(problem: Problem) -> str:
    told = f" [{problem.session}]" if problem.session else ""
    return (
        f"{problem.severity}: {problem.kind}{told} {problem.where}\n"
        f"    {problem.text}\n"
        f"    cure: {problem.cure}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
