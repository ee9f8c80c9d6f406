"""The children table as the runner's journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from croq_fsm.storage import rows
from croq_fsm.storage.repository import Repository
from croq_fsm.toolchain.process import Command, Completed


@dataclass(frozen=True)
class ChildTable:
    """Records each child before anything waits for it.

    Attributes:
        repository: The database.
        run_id: This start of the daemon.
        now: UTC seconds.
    """

    repository: Repository
    run_id: str
    now: Callable[[], float]

    def started(self, child_id: str, pid: int, start_time: float, command: Command) -> None:
        """A child runs."""
        self.repository.child_started(
            {
                "child_id": child_id,
                "run_id": self.run_id,
                "pid": pid,
                "start_time": start_time,
                "label": command.label,
                "argv": rows.dumps(command.argv),
                "deadline_s": command.deadline_s,
                "started_at": int(self.now() * 1e6),
            }
        )

    def ended(self, child_id: str, completed: Completed) -> None:
        """It is gone."""
        ending = f"{completed.ending.value} {completed.returncode}"
        self.repository.child_ended(child_id, int(self.now() * 1e6), ending)
