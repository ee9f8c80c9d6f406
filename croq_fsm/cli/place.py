"""Where a command works: the root, its configuration, and the options that name them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from croq_fsm.errors import UsageError

if TYPE_CHECKING:
    from croq_fsm.config import Config
    from croq_fsm.domain.session import Session
    from croq_fsm.root import Root
    from croq_fsm.storage.inspection import Archive, Inspector

CONFIG_NAME: Final = "croq_fsm.toml"

RootOption = Annotated[
    Path | None,
    typer.Option("--root", help="Git repository to work in; default: the one around this folder."),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help=f"Configuration; default: {CONFIG_NAME} in the root, if there."),
]
SessionArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[SESSION]",
        help="Session, or the beginning of its name; default: the one last worked on.",
        show_default=False,
    ),
]

#: Root of this process, for the report of a crash.
_known: list[Root] = []
#: Arguments of this process, for doing the same again in the background.
_arguments: list[str] = []


@dataclass(frozen=True)
class Place:
    """A root with its effective configuration.

    Attributes:
        root: The root.
        config: The configuration.
        source: File that it was read from; None for the defaults.
    """

    root: Root
    config: Config
    source: Path | None


def place(root: Path | None, config: Path | None, *, json_log: bool = False) -> Place:
    """Find the root, read its configuration and set the logs up.

    Raises:
        UsageError: No repository, or a bad configuration.
    """
    from croq_fsm import config as configuration
    from croq_fsm import log
    from croq_fsm.root import Root, find

    log.configure(as_json=json_log)
    found = find(root, configuration.load(None))
    usual = found.path / CONFIG_NAME
    source = config or (usual if usual.is_file() else None)
    effective = configuration.load(source)
    exact = Root(found.path, effective.storage)
    _known[:] = [exact]
    return Place(exact, effective, source)


def remember(arguments: list[str]) -> None:
    """Keep the arguments of this process."""
    _arguments[:] = arguments


def remembered() -> list[str]:
    """The arguments of this process."""
    return list(_arguments)


def beside(root: Root) -> str:
    """What a command needs in addition to mean this root from the current folder; maybe ""."""
    here = Path.cwd()
    inside = root.path == here or root.path in here.parents
    return "" if inside else f" --root {shlex.quote(str(root.path))}"


def crash_log() -> Path | None:
    """Log of the root that this process works in; None before there is one."""
    return _known[0].log if _known and _known[0].state.is_dir() else None


@contextmanager
def archive_of(root: Root) -> Iterator[Archive]:
    """The root's database, read-only."""
    from croq_fsm.storage.inspection import archive

    with archive(root.database) as opened:
        yield opened


def chosen(
    inspector: Inspector, root: Root, name: str | None, *, unfinished: bool = False
) -> Session:
    """The named session, else the one last worked on.

    Args:
        inspector: Queries.
        root: The root.
        name: Name or its beginning; None for the one last worked on.
        unfinished: Without a name, look only among those that have not ended.

    Raises:
        UsageError: There is none, or the name is ambiguous.
    """
    from croq_fsm.report.standing import current
    from croq_fsm.root import is_locked

    if name is not None:
        return inspector.session(name)
    sessions = [s for s in inspector.sessions() if not (unfinished and s.state.is_final)]
    session = current(sessions, alive=is_locked(root))
    if session is None:
        raise UsageError(f"no session in {root.path} yet; 'croq-fsm start' makes one")
    return session


def agreed() -> bool:
    """Whether the user says yes to what was just shown. Raises UsageError when nobody answers."""
    try:
        return typer.confirm("Do this?")
    except typer.Abort as exc:
        raise UsageError("nobody answered, nothing was done; --yes does it without asking") from exc
