"""A simulated session as the daemon composes it: its clock, its faults, its ideators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from croq_fsm.errors import UsageError
from croq_fsm.ideators.contract import Ideator
from croq_fsm.toolchain.simulated.clock import SimulatedClock
from croq_fsm.toolchain.simulated.faults import Faults
from croq_fsm.toolchain.simulated.ideator import FaultyIdeator
from croq_fsm.toolchain.simulated.workbench import SimulatedWorkbench
from croq_fsm.toolchain.workbench import Workbench


@dataclass(frozen=True)
class Night:
    """Simulated time and faults of one session."""

    clock: SimulatedClock
    faults: Faults

    @classmethod
    def of(cls, workbench: Workbench, began: int, last: int) -> Night:
        """Take a session up where its last transition left it; times in UTC µs.

        Raises:
            UsageError: The workbench is a real one: its configuration was changed.
        """
        if not isinstance(workbench, SimulatedWorkbench):
            raise UsageError("a simulated session cannot go on with a real toolchain")
        workbench.clock.start(began, max(began, last))
        workbench.faults.arm_kills()
        return cls(workbench.clock, workbench.faults)

    def wrapped(self, ideators: Iterable[Ideator]) -> list[Ideator]:
        """The same ideators, subject to the night's faults."""
        return [FaultyIdeator(ideator, self.faults) for ideator in ideators]
