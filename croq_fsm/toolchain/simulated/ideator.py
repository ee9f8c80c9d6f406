"""An ideator that fails as real ones do: down for a while, or talking nonsense."""

from __future__ import annotations

from croq_fsm.domain.ideas import Proposal, Replace, SearchReplace
from croq_fsm.domain.states import Category
from croq_fsm.errors import BackendDown
from croq_fsm.ideators.contract import Context, Failure, Ideator
from croq_fsm.toolchain.simulated.faults import Faults


class FaultyIdeator:
    """Passes on to an ideator unless a fault strikes.

    Args:
        inner: The ideator.
        faults: Faults of the night.
    """

    def __init__(self, inner: Ideator, faults: Faults) -> None:
        self.name = inner.name
        self._inner = inner
        self._faults = faults

    def propose(self, context: Context) -> Proposal | None:
        """See ``Ideator.propose``."""
        self._check(context)
        if self._faults.hits("ideator_garbage", _ask(context)):
            return _garbage(context)
        return self._inner.propose(context)

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """See ``Ideator.repair``."""
        self._check(context)
        return self._inner.repair(context, proposal, failure)

    def _check(self, context: Context) -> None:
        if self._faults.hits("ideator_down", _ask(context)):
            self._faults.clock.advance(1.0)
            raise BackendDown("no route to the model's host (SIMULATED)")


def _ask(context: Context) -> str:
    """What distinguishes one ask from the next, also after a resume."""
    return f"round {context.round}, refusal {len(context.refused)}"


def _garbage(context: Context) -> Proposal:
    """An edit of text that is not there, with a hypothesis that rests on nothing."""
    return Proposal(
        tag="garbage",
        base=context.base.iteration,
        edit=SearchReplace(edits=(Replace(search="this is nowhere in a kernel", replace="so"),)),
        summary="make it faster",
        hypothesis="it will be faster",
        metrics=("no_such_metric",),
        category=Category.COMPUTE,
        expected_gain=10.0,
        levers=("hope",),
    )
