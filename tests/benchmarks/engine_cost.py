"""What a round costs outside of its tools: engine, database, views, history.

Every call of the workbench and of the ideator is taken off the time of its round; what is left
is ours. Git counts as a tool and is off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from croq_fsm.daemon import Daemon
from croq_fsm.domain.ideas import Proposal, Replace, SearchReplace
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Category
from croq_fsm.ideators.contract import Context, Failure

#: Methods of a workbench that are tools; the others only read.
_TOOLS = frozenset(
    {"build", "device", "dialect", "doctor", "lint", "profile", "structure", "time", "verify"}
)


def clocks() -> tuple[float, float]:
    """Seconds on the wall, and of processor time of this thread."""
    return time.perf_counter(), time.thread_time()


class SerialIdeator:
    """Proposes a kernel that differs by one unused macro, whose name holds the round's number."""

    name = "serial"

    def propose(self, context: Context) -> Proposal:
        """A structural change that costs nothing to make."""
        first = context.base.candidate.source.splitlines()[0]
        metric = context.profile.metrics[0].name
        line = f"#define SERIAL_{context.round:07d} 1"
        return Proposal(
            tag="serial",
            base=context.base.iteration,
            edit=SearchReplace(edits=(Replace(search=f"{first}\n", replace=f"{first}\n{line}\n"),)),
            flags=context.base.candidate.flags,
            summary="One more macro that nothing uses.",
            hypothesis=f"{metric} is what it is, and stays so",
            metrics=(metric,),
            category=Category.COMPUTE,
            expected_gain=0.01,
            research_basis="Nothing outside of this benchmark; it only has to be said.",
        )

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> None:
        """Nothing is repaired."""


@dataclass
class Meter:
    """Seconds of rounds, and of the tools in them.

    Attributes:
        rounds: Seconds outside of tools, one for each finished round.
        busy: The same in seconds of processor time, which neighbours disturb less.
        tools: Seconds in tools since the last finished round, on both clocks.
    """

    rounds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    tools: tuple[float, float] = (0.0, 0.0)
    since: tuple[float, float] = field(default_factory=clocks)
    depth: int = 0

    def restart(self) -> None:
        """The next round begins now."""
        self.since, self.tools = clocks(), (0.0, 0.0)

    @contextmanager
    def tool(self) -> Iterator[None]:
        """Time the outermost call only."""
        self.depth += 1
        began = clocks()
        try:
            yield
        finally:
            self.depth -= 1
            if not self.depth:
                wall, busy = clocks()
                self.tools = (self.tools[0] + wall - began[0], self.tools[1] + busy - began[1])

    def observe(self, before: Session, _step: Step, after: Session) -> None:
        """Close a round."""
        if after.round > before.round:
            wall, busy = clocks()
            self.rounds.append(wall - self.since[0] - self.tools[0])
            self.busy.append(busy - self.since[1] - self.tools[1])
            self.restart()

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, as a tool."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.tool():
                return function(*args, **kwargs)

        return call

    def attach(self, daemon: Daemon) -> None:
        """Time the workbenches of a daemon."""
        plain = daemon.workbench

        def workbench(*args: Any) -> Any:
            made = plain(*args)
            for name in _TOOLS:
                setattr(made, name, self.timed(getattr(made, name)))
            return made

        daemon.workbench = workbench  # type: ignore[method-assign, assignment]

    def ideator(self) -> SerialIdeator:
        """An ideator whose time is a tool's."""
        made = SerialIdeator()
        made.propose = self.timed(made.propose)  # type: ignore[method-assign]
        return made
