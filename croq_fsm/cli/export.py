"""``export``: a session for other programs and other people."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

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
    from croq_fsm.domain.measurement import Samples

_EXECUTABLE: Final = 0o755
#: Suffix of generated sources, by DSL.
_GENERATED: Final = {"croqtile": ".cu", "c": ".s"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)


def export(
    session: SessionArgument = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder to make; must not exist, or be empty")],
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Write the best kernel with patches, report and script, and all trials as JSON and CSV.

    The trials are there in the cache format of Kernel Tuner, too. Works beside a living daemon.
    """
    from croq_fsm.exporting.bundle import files
    from croq_fsm.report import facts

    here = place(root, config)
    with archive_of(here.root) as archive, archive.look() as inspector:
        found = chosen(inspector, here.root, session)
        gathered = facts.read(inspector, found, here.root, time.time())

        def samples_of(seq: int) -> Samples | None:
            stored = inspector.measurements(found.id, [seq])
            taken = [m.samples for m in stored if m.samples and m.samples.of("candidate")]
            return taken[0] if taken else None

        best = gathered.standing.best
        key = best.build.key if best is not None and best.build is not None else ""
        generated = inspector.build_texts(found.id, key)[1]
        made = files(gathered, samples_of, generated, _GENERATED.get(found.task.dsl, ""))
    _write(out, made)
    typer.echo(f"{len(made)} files of session {found.id} are in {out}")


def _write(out: Path, made: dict[str, str]) -> None:
    """All of them, into a folder that was empty."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UsageError(f"{out} is not empty; name a folder that is")
        for name, content in made.items():
            path = out / name
            path.write_text(content, encoding="utf-8")
            if name.endswith(".sh"):
                path.chmod(_EXECUTABLE)
    except OSError as exc:
        raise UsageError(f"the export cannot be written to {out}: {exc.strerror}") from exc
