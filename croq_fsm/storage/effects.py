"""Performing promised effects: files and commits, idempotent, oldest first.

Order of truth: database, then git, then files. A crash at any point leaves the promise open,
and the next start keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from croq_fsm import faults
from croq_fsm.domain.source import sha256
from croq_fsm.errors import DiskReadOnly, EnvironmentMissing
from croq_fsm.storage import disk, files, rebuild
from croq_fsm.storage.git import Git, GitPostponed
from croq_fsm.storage.layout import Layout
from croq_fsm.storage.reading import OpenIntent
from croq_fsm.storage.repository import Repository

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Effects:
    """Performs the open effects of sessions.

    Attributes:
        root: Top folder of the repository.
        repository: Promises and contents.
        cached: Content of a file in the build cache, by relative path.
        git: Commits.
        now: UTC seconds.
        summary: Pattern of the compaction summary's path.
    """

    root: Path
    repository: Repository
    cached: Callable[[str], bytes]
    git: Git
    now: Callable[[], float]
    summary: str

    def perform_open(self, session_id: str) -> int:
        """Perform what is promised; a postponed commit stays open. Returns how many were done."""
        with self.repository.read() as reader:
            intents = reader.open_intents(session_id)
        done = 0
        for intent in intents:
            faults.point("before_effect")
            try:
                result = self._perform(intent)
            except DiskReadOnly:
                raise
            except (GitPostponed, EnvironmentMissing) as exc:
                # The record is whole without it; the next step or start tries it again.
                _log.warning("effect postponed", kind=intent.kind, reason=str(exc))
                continue
            except OSError as exc:
                raise disk.meaning(exc) or exc from exc
            faults.point("before_done")
            self.repository.close_intent(intent, int(self.now() * 1e6), result)
            done += 1
        return done

    def _perform(self, intent: OpenIntent) -> str:
        payload = intent.payload
        if intent.kind == "git":
            return self.git.commit(payload["paths"], payload["message"], payload["trailer"])
        missing = [a["path"] for a in payload["artifacts"] if not self.write_artifact(a)]
        for log in payload["logs"]:
            self._append(intent.session_id, log)
        for snapshot in payload["snapshots"]:
            files.write(self.root, snapshot["path"], snapshot["text"].encode())
        return f"written; not in the cache any more: {missing}" if missing else "written"

    def write_artifact(self, artifact: dict[str, Any]) -> bool:
        """Write one file from its origin; False when the cache has lost it."""
        data = self._content(artifact)
        if data is None:
            return False
        files.write(self.root, artifact["path"], data, mode=artifact["mode"])
        return True

    def _content(self, artifact: dict[str, Any]) -> bytes | None:
        kind, _, relative = artifact["origin"].partition(":")
        if kind == "blob":
            with self.repository.read() as reader:
                return reader.blob(artifact["sha256"])
        try:
            data = self.cached(relative)
        except (OSError, LookupError):
            return None
        return data if sha256(data) == artifact["sha256"] else None

    def _append(self, session_id: str, log: dict[str, Any]) -> None:
        if files.append(self.root, log["path"], log["offset"], log["text"].encode()):
            return
        # Torn by a crash or edited by hand: the database is right, write the file whole.
        with self.repository.read() as reader:
            session = reader.session(session_id)
            layout = Layout(session.device.key, session.task, self.summary)
            text = rebuild.log_text(reader, session, layout, log["path"])
        files.write(self.root, log["path"], text.encode())
