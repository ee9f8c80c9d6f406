"""Which files a database says should lie below its root, and what each must hold.

Two sessions of the same task share their paths; the one that wrote a path last owns it. A
session's own history does not suffer by that: it is in the database and in git.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from croq_fsm.config import Config
from croq_fsm.domain.session import Session
from croq_fsm.domain.source import sha256
from croq_fsm.domain.states import Outcome
from croq_fsm.storage import rebuild, retention
from croq_fsm.storage.layout import Layout
from croq_fsm.storage.reading import Reader

PLAIN_MODE = 0o644


@dataclass(frozen=True)
class Expected:
    """One file.

    Attributes:
        path: Relative to the root.
        session_id: Session that wrote it last.
        kind: Kind of the artifact, or ``log`` or ``snapshot`` for a view.
        sha256: Hash of its content.
        size: Bytes.
        mode: Permission bits.
        origin: ``blob``, ``cache:<relative path>``, or ``view``.
        text: Content of a view; None otherwise.
        turn: Place of the transition that wrote it in the order of all sessions' transitions.
    """

    path: str
    session_id: str
    kind: str
    sha256: str
    size: int
    mode: int
    origin: str
    text: str | None
    turn: int


def layout_of(reader: Reader, session: Session) -> Layout:
    """File layout of a session, with the paths of its own configuration."""
    config = Config.model_validate(reader.config(session.id))
    return Layout(session.device.key, session.task, config.storage.compaction_summary)


def of_session(reader: Reader, session: Session) -> list[Expected]:
    """All files of one session, whoever owns their paths now."""
    if session.best_iteration is None:
        return []
    turns = _turns(reader, session)
    return [*_artifacts(reader, session, turns), *_views(reader, session, max(turns.values()))]


def owned(files: Iterable[Expected]) -> dict[str, Expected]:
    """By path, the file of the session that wrote it last."""
    owners: dict[str, Expected] = {}
    for file in files:
        known = owners.get(file.path)
        if known is None or known.turn <= file.turn:
            owners[file.path] = file
    return owners


def content(reader: Reader, file: Expected, cached: Callable[[str], bytes]) -> bytes | None:
    """Bytes of a file; None when the cache has lost them.

    Args:
        reader: Blobs.
        file: The file.
        cached: Content of a file in the build cache, by relative path.
    """
    if file.text is not None:
        return file.text.encode()
    kind, _, relative = file.origin.partition(":")
    if kind == "blob":
        return reader.blob(file.sha256)
    try:
        data = cached(relative)
    except (OSError, LookupError):
        return None
    return data if sha256(data) == file.sha256 else None


def cache_reader(folder: Path) -> Callable[[str], bytes]:
    """Reads files of a build cache, and none outside it."""

    def read(relative: str) -> bytes:
        path = (folder / relative).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise LookupError(f"{relative!r} leaves the cache")
        return path.read_bytes()

    return read


def hash_of(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _turns(reader: Reader, session: Session) -> dict[int, int]:
    """The turn in which each round was stored; round 0 is the baseline."""
    storing = {Outcome.MEASURED.name, Outcome.STORED.name, Outcome.FINISHED.name}
    return {
        round_: turn for turn, outcome, round_ in reader.turns(session.id) if outcome in storing
    }


def _artifacts(reader: Reader, session: Session, turns: dict[int, int]) -> list[Expected]:
    gone = retention.of_session(reader, session)
    return [
        Expected(
            path=row["path"],
            session_id=session.id,
            kind=row["kind"],
            sha256=row["sha256"],
            size=row["size"],
            mode=row["mode"],
            origin=row["origin"],
            text=None,
            turn=turns.get(row["round"], 0),
        )
        for row in reader.artifacts(session.id)
        if row["path"] not in gone
    ]


def _views(reader: Reader, session: Session, stored: int) -> list[Expected]:
    layout = layout_of(reader, session)
    made = rebuild.rebuild(reader, session, layout)
    proposed = Outcome.PROPOSED.name
    planned = max(
        (turn for turn, outcome, _ in reader.turns(session.id) if outcome == proposed), default=0
    )

    def view(path: str, kind: str, text: str) -> Expected:
        turn = max(stored, planned) if path == layout.current_idea else stored
        return Expected(
            path=path,
            session_id=session.id,
            kind=kind,
            sha256=sha256(text),
            size=len(text.encode()),
            mode=PLAIN_MODE,
            origin="view",
            text=text,
            turn=turn,
        )

    return [
        *(view(path, "log", text) for path, text in made.logs.items()),
        *(view(path, "snapshot", text) for path, text in made.snapshots.items()),
    ]
