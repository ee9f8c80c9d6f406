"""Files below the root hold what the database says, in real folders, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from croq_fsm.storage.expected import Expected, hash_of
from croq_fsm.validation.problems import Problem

_CURE: Final = "croq-fsm rebuild"
#: Kinds that can be made again by compiling; their loss costs time and no knowledge.
_REPLACEABLE: Final = ("binary",)


def check(
    root: Path,
    files: Iterable[Expected],
    dsls: dict[str, str],
    excused: frozenset[tuple[str, str]],
) -> Iterator[Problem]:
    """Look at each file.

    Args:
        root: Top folder of the repository.
        files: What has to be there.
        dsls: DSL by session.
        excused: Sessions and paths that the user cleaned away; these may be missing.
    """
    for file in files:
        found = _look(root, file)
        if found is None or (found[0] == "missing" and _is_excused(file, excused)):
            continue
        what, text = found
        problem = Problem(
            kind=f"{file.kind if file.origin == 'view' else 'artifact'}-{what}",
            dsl=dsls.get(file.session_id, ""),
            session=file.session_id,
            where=file.path,
            text=text,
            cure=_cure(what, file),
            path=file.path,
        )
        mild = what == "missing" and file.kind in _REPLACEABLE
        yield problem.as_warning() if mild else problem


def orphans(root: Path, owned: Iterable[str], dsl: str | None) -> Iterator[Problem]:
    """Session checkpoints that no session of this database owns: nothing can resume from them."""
    known = set(owned)
    for path in sorted(root.glob(f"tuning/*/{dsl or '*'}/checkpoints/**/*.json")):
        relative = path.relative_to(root).as_posix()
        if relative not in known:
            yield Problem(
                kind="checkpoint-without-session",
                dsl=path.relative_to(root).parts[2],
                where=relative,
                text="no session of this database wrote it; it cannot be resumed from",
                cure="bring the database back that it belongs to, or move the file away",
                path=relative,
            ).as_warning()


def symlink_on_the_way(root: Path, relative: str) -> Path | None:
    """The first link between the root and the file, itself included, or None."""
    here = root
    for part in Path(relative).parts:
        here = here / part
        if here.is_symlink():
            return here
    return None


def _is_excused(file: Expected, excused: frozenset[tuple[str, str]]) -> bool:
    """Whether the file, or a link on the way to it, was cleaned away."""
    here = PurePosixPath(file.path)
    return any((file.session_id, str(path)) in excused for path in (here, *here.parents))


def _look(root: Path, file: Expected) -> tuple[str, str] | None:
    """(what is wrong, in words), or None."""
    if Path(file.path).is_absolute() or ".." in Path(file.path).parts:
        return "outside", "the path leaves the root"
    link = symlink_on_the_way(root, file.path)
    if link is not None:
        return "symlink", f"{link.relative_to(root)} is a symbolic link"
    path = root / file.path
    if not path.is_file():
        return "missing", "the file is not there"
    try:
        same = path.stat().st_size == file.size and hash_of(path) == file.sha256
    except OSError as exc:
        return "unreadable", f"the file cannot be read: {exc}"
    return None if same else ("differs", "its content is not what the database says")


def _cure(what: str, file: Expected) -> str:
    if what == "symlink":
        return f"remove the link, then {_CURE}"
    if what == "outside":
        return "restore a backup of the database"
    return f"{_CURE} {file.session_id}"
