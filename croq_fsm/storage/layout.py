"""Paths of the file layout below the root. A contract: tools and people rely on them."""

from __future__ import annotations

from dataclasses import dataclass

from croq_fsm.domain import names
from croq_fsm.domain.task import Task


@dataclass(frozen=True)
class Layout:
    """All relative paths of one session.

    Attributes:
        gpu: Device key.
        task: The task.
        summary: Pattern of the compaction summary's path, with ``{dsl}``.
    """

    gpu: str
    task: Task
    summary: str

    @property
    def base(self) -> str:
        """``tuning/<gpu>/<dsl>``."""
        return f"tuning/{self.gpu}/{self.task.dsl}"

    def keyed(self, kind: str, file: str) -> str:
        """``tuning/<gpu>/<dsl>/<kind>/<key>/<file>``."""
        return f"{self.base}/{kind}/{self.task.key}/{file}"

    def source(self, name: str, suffix: str) -> str:
        """Source of an iteration or attempt."""
        return self.keyed("srcs", f"{name}{suffix}")

    def binary(self, name: str) -> str:
        """Runnable file of an iteration."""
        return self.keyed("bin", name)

    def log(self, file: str) -> str:
        """A log such as ``results.tsv``."""
        return self.keyed("logs", file)

    def memory(self, file: str) -> str:
        """``rounds.raw.jsonl`` or ``rounds.md``."""
        return self.keyed("memory", file)

    @property
    def checkpoint(self) -> str:
        """Session checkpoint."""
        model = names.slug(self.task.model)
        return f"{self.base}/checkpoints/{self.task.shape_key}/{model}.json"

    @property
    def current_idea(self) -> str:
        """Idea checkpoint."""
        return self.keyed("checkpoints", "current_idea.json")

    @property
    def compaction_summary(self) -> str:
        """Context pack for a reader with a small window."""
        return self.summary.format(dsl=self.task.dsl)
