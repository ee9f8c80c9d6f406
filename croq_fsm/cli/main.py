"""The command line: collects the commands, and turns errors into texts and exit codes."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Final

import typer

from croq_fsm.cli.place import crash_log, remember
from croq_fsm.errors import CroqError

#: Modules that register commands, in the order in which the help shows them.
_MODULES: Final = (
    "start",
    "resume",
    "control",
    "status",
    "logs",
    "report",
    "run_iter",
    "plot",
    "serve",
    "doctor",
    "validate",
    "rebuild",
    "clean",
    "restore",
    "import_",
    "export",
    "tool",
)
_UNEXPECTED: Final = 1
_INTERRUPTED: Final = 130


def build() -> typer.Typer:
    """The application with every command that is installed."""
    app = typer.Typer(
        name="croq-fsm",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in _MODULES:
        module = f"croq_fsm.cli.{name}"
        if find_spec(module) is not None:
            import_module(module).register(app)
    return app


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code; errors are one message on standard error."""
    given = sys.argv[1:] if arguments is None else arguments
    remember(given)
    try:
        build()(args=given, prog_name="croq-fsm")
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else int(bool(exc.code))
    except CroqError as exc:
        _complain(str(exc))
        return exc.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as exc:  # noqa: BLE001 - the last place that can say something about it
        return _unexpected(exc)
    return 0


def run() -> None:
    """Entry point of ``croq-fsm`` and ``python -m croq_fsm``."""
    sys.exit(main())


def _show_version(wanted: bool) -> None:
    if wanted:
        from croq_fsm import __version__

        typer.echo(f"croq-fsm {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Improve GPU kernels while nobody watches, and say what is true about them."""
    del version


def _complain(text: str) -> None:
    """One message; what came from elsewhere must not steer the terminal, nor hold a key."""
    from croq_fsm.log import redacted

    shown = redacted(text)
    safe = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in shown)
    print(f"croq-fsm: {safe}", file=sys.stderr)  # noqa: T201 - this is what users see


def _unexpected(exc: Exception) -> int:
    """A failing disk is the environment; anything else is a bug, and its traceback is kept."""
    from croq_fsm import log
    from croq_fsm.storage import disk

    meant = disk.meaning(exc)
    if meant is not None:
        _complain(str(meant))
        return meant.exit_code

    path = crash_log()
    if path is None:
        _complain(f"unexpected {type(exc).__name__}: {exc}")
        log.print_crash(exc)
        return _UNEXPECTED
    try:
        log.record_crash(path, exc)
        where = f"the traceback is in {path}"
    except OSError as broken:
        where = f"the traceback could not be written: {broken}"
    _complain(f"unexpected {type(exc).__name__}: {exc}; {where}")
    return _UNEXPECTED
