"""``clean``: work state out of the way, into the trash, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from croq_fsm.cli.place import ConfigOption, RootOption, agreed, place
from croq_fsm.cli.validate import ALL, dsl_of
from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from croq_fsm.cleaning import Cleaner, Plan, Undone
    from croq_fsm.storage.setting_aside import Aside


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(clean)


def clean(
    *,
    dsl: Annotated[
        str | None, typer.Option(help="DSL whose sessions are meant: c, croqtile, cuda, all")
    ] = None,
    invalid_only: Annotated[
        bool, typer.Option("--invalid-only", help="Only what 'validate' finds broken")
    ] = False,
    reset_all: Annotated[
        bool, typer.Option("--reset-all", help="Ended sessions too, and all files of all of them")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Bring the latest cleaning back")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask")] = False,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Set sessions that have not ended aside, and move the files that one resumes from.

    Files go into the trash below the state folder, with a manifest. The history in the
    database and in git stays whole. Exit code 3: a daemon works here.
    """
    from croq_fsm.cleaning import opened

    chosen = _checked(dsl, invalid_only=invalid_only, reset_all=reset_all, undo=undo)
    with opened(place(root, config).root) as cleaner:
        if undo:
            typer.echo(_undone(cleaner.undo()))
            return
        plan = _plan(cleaner, chosen, invalid_only=invalid_only, reset_all=reset_all)
        typer.echo(_told(plan, dry_run=dry_run))
        if plan.is_empty or dry_run:
            return
        if not yes and not agreed():
            raise typer.Exit(1)
        bag = cleaner.carry_out(plan)
        typer.echo(f"moved to {bag.folder}; 'croq-fsm clean --undo' brings it back")


def _checked(dsl: str | None, *, invalid_only: bool, reset_all: bool, undo: bool) -> str | None:
    """The DSL that is meant, None for all; what is not named is not touched."""
    if sum((invalid_only, reset_all, undo)) > 1:
        raise UsageError("--invalid-only, --reset-all and --undo exclude each other")
    if dsl is None and not (invalid_only or undo):
        raise UsageError("say whose work state is meant: --dsl c, --dsl croqtile or --dsl all")
    return dsl_of(dsl or ALL)


def _plan(cleaner: Cleaner, dsl: str | None, *, invalid_only: bool, reset_all: bool) -> Plan:
    if invalid_only:
        return cleaner.plan_invalid(dsl)
    return cleaner.plan_all(dsl) if reset_all else cleaner.plan_active(dsl)


def _told(plan: Plan, *, dry_run: bool) -> str:
    if plan.is_empty:
        return "nothing to clean"
    lines = [line for aside in plan.sessions for line in _session(aside)]
    lines += [f"move {path} (no session owns it)" for path in plan.loose]
    if dry_run:
        lines.append("nothing was changed")
    return "\n".join(lines)


def _session(aside: Aside) -> list[str]:
    stand = aside.stand
    ends = aside.ends and stand.status != "ENDED"
    head = f"session {stand.id} ({stand.dsl}): {'ends, ' if ends else ''}{aside.reason}"
    return [head, *(f"  move {path}" for path in aside.paths)]


def _undone(done: Undone) -> str:
    lines = [f"session {name} is as it was before" for name in done.sessions]
    lines += [f"back: {path}" for path in done.back]
    lines += [f"left in the trash, something new lies there: {path}" for path in done.kept]
    return "\n".join([*lines, f"cleaning {done.stamp} is undone"])
