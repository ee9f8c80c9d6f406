"""``validate``: does everything that the record claims hold?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from croq_fsm.cli.place import ConfigOption, Place, RootOption, place
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
    remeasure: Annotated[
        bool,
        typer.Option("--remeasure", help="Also build, verify and time the best kernels again"),
    ] = False,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Recompute every claim from the rows; compare files and commits. Changes nothing.

    Exit code 0: the record holds (warnings are allowed). 1: it does not. With --remeasure each
    best kernel is said to pass, or to be wrong, slower, or of another toolchain or device.
    """
    from croq_fsm.validation import validate as audit

    wanted = dsl_of(dsl)
    here = place(root, config)
    report = audit(here.root, session, wanted)
    if remeasure:
        report = _remeasured(here, report)
    typer.echo(_as_json(report) if json else _as_text(report))
    if report.errors:
        raise typer.Exit(_PROBLEMS)


def _remeasured(here: Place, report: Report) -> Report:
    """The report with what the champions of its sessions came to; refused beside a daemon."""
    from croq_fsm.daemon import opened
    from croq_fsm.validation import remeasure

    if not report.sessions:
        return report
    found = []
    with opened(here.root, here.config) as daemon:
        for name in report.sessions:
            if name in report.broken:
                continue  # what it claims does not hold anyhow
            with daemon.repository.read() as reader:
                session = reader.session(name)
                subject = remeasure.champion(reader, session)
            if subject is None:
                continue
            workbench = daemon.workbench(session.task.dsl, subject.config)
            with daemon.lease(workbench):
                done = remeasure.remeasure(subject, workbench)
            typer.echo(f"{done.session} {done.kernel}: {done.verdict}; {done.text}", err=True)
            found.append(done.problem(session.task.dsl))
    problems = (*report.problems, *(p for p in found if p is not None))
    return report.model_copy(update={"problems": problems})


def _as_json(report: Report) -> str:
    return report.model_dump_json(indent=2)


def _as_text(report: Report) -> str:
    lines = [_line(problem) for problem in report.problems]
    marked = f" ({len(report.simulated)} SIMULATED)" if report.simulated else ""
    counted = (
        f"{_count(len(report.sessions), 'session')}{marked}, "
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
