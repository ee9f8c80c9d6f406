"""Messages from the faces to the daemon: one small file each.

The faces never write the database; a file that appears by rename is all they leave behind.
The daemon moves messages into the database and then deletes the file, so that each is taken
once, whenever it was left.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, Final, Literal

import structlog

from croq_fsm.root import Root
from croq_fsm.storage.repository import Repository

Kind = Literal["stop", "stop-now", "pause", "hint"]

_KINDS: Final = ("stop", "stop-now", "pause", "hint")
_MAX_BYTES: Final = 64 << 10
_log = structlog.get_logger(__name__)


def leave(root: Root, kind: Kind, text: str = "", session_id: str | None = None) -> Path:
    """Leave a message for the daemon of this root."""
    root.prepare()
    message = {
        "id": uuid.uuid4().hex,
        "session_id": session_id,
        "kind": kind,
        "text": text,
        "created_at": int(time.time() * 1e6),
    }
    path = root.inbox / f"{message['created_at']}-{message['id']}.json"
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        json.dump(message, stream)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(path)
    return path


def take(root: Root, repository: Repository, now: float) -> list[dict[str, Any]]:
    """Move all waiting messages into the database, oldest first; returns the new ones."""
    taken = []
    for path in sorted(root.inbox.glob("*.json")):
        message = _read(path)
        if message is not None and repository.add_message({**message, "taken_at": int(now * 1e6)}):
            taken.append(message)
        path.unlink(missing_ok=True)
    return taken


def discard_commands(root: Root) -> None:
    """Drop stops and pauses that were meant for a daemon which is gone."""
    for path in root.inbox.glob("*.json"):
        message = _read(path)
        if message is None or message["kind"] != "hint":
            path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        if path.is_symlink() or path.stat().st_size > _MAX_BYTES:
            return _ignored(path, "too large or a link")
        return _checked(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
        return _ignored(path, f"{type(exc).__name__}: {exc}")


def _checked(message: dict[str, Any]) -> dict[str, Any]:
    """The message with values that any database takes: it must never end the daemon.

    Raises:
        ValueError: It is no message.
    """
    kind, session_id, created_at = message["kind"], message["session_id"], message["created_at"]
    if kind not in _KINDS:
        raise ValueError(f"unknown kind {kind!r}")
    if not 0 <= int(created_at) < 1 << 63:
        raise ValueError(f"no time: {created_at!r}")
    return {
        "id": _plain(message["id"]),
        "session_id": None if session_id is None else _plain(session_id),
        "kind": kind,
        "text": _plain(message["text"]),
        "created_at": int(created_at),
    }


def _plain(value: object) -> str:
    """Text that can be written as UTF-8; JSON can carry halves of characters, which cannot."""
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _ignored(path: Path, why: str) -> dict[str, Any] | None:
    _log.warning("message ignored", path=path.name, why=why)
    return None
