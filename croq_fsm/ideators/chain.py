"""Several ideators in a row: the next one answers when one is down or of no use.

Each backend has a circuit breaker: after so many failures in a row it is not asked again for
a while, so that a dead network costs one time-out and not one per round; then one question
tries it again, and its answer closes or opens the circuit. Malformed answers are failures, too.
What a backend says will not pass by itself (credentials, quota, budget) opens it at once. Within
a round, an ideator whose proposals the guards keep refusing gives way to the next. Put ``rules``
last: it needs nothing and is never down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import structlog
from pydantic import Field

from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.model import Value
from croq_fsm.errors import BackendBarred, BackendDown, BadReply, UsageError
from croq_fsm.ideators import asking
from croq_fsm.ideators.contract import Context, Equipped, Failure, Ideator
from croq_fsm.ideators.services import Services

_log = structlog.get_logger(__name__)


class BreakerSettings(Value):
    """Section ``[ideators.chain]`` of the configuration.

    Attributes:
        failures: Failures in a row after which a backend is left alone.
        open_s: Seconds for which it is; then one more failure is enough.
        patience: Proposals of one ideator that may be refused in a round before the next one
            is asked.
    """

    failures: Annotated[int, Field(ge=1)] = 3
    open_s: Annotated[float, Field(gt=0)] = 600.0
    patience: Annotated[int, Field(ge=1)] = 3


@dataclass(frozen=True)
class Breaker:
    """How circuits of a chain behave.

    Attributes:
        settings: Limits.
        clock: Seconds that never run backwards.
    """

    settings: BreakerSettings = field(default_factory=BreakerSettings)
    clock: Callable[[], float] = time.monotonic


@dataclass
class Circuit:
    """State of one backend's breaker."""

    breaker: Breaker
    failures: int = 0
    opened_at: float | None = None

    @property
    def is_closed(self) -> bool:
        """Whether the backend may be asked: it is well, or it is time for another try."""
        if self.opened_at is None:
            return True
        return self.breaker.clock() - self.opened_at >= self.breaker.settings.open_s

    def succeeded(self) -> None:
        """Forget all failures."""
        self.failures, self.opened_at = 0, None

    def failed(self, *, for_good: bool = False) -> None:
        """Count a failure; open when there were enough of them, or at once."""
        self.failures += 1
        if for_good or self.opened_at or self.failures >= self.breaker.settings.failures:
            self.opened_at = self.breaker.clock()


class ChainIdeator:
    """Asks its ideators in order until one answers.

    An ideator that is exhausted, too, gives way to the next: what one cannot think of, another
    may. The answer is None when at least one was exhausted and nobody had an idea.

    Args:
        ideators: In the order in which they are asked; at least one.
        breaker: Limits and clock of the circuit breakers.
    """

    def __init__(self, ideators: Sequence[Ideator], breaker: Breaker | None = None) -> None:
        if not ideators:
            raise UsageError("a chain needs at least one ideator")
        breaker = breaker or Breaker()
        self._patience = breaker.settings.patience
        self._links = tuple((ideator, Circuit(breaker)) for ideator in ideators)
        self._author: tuple[Proposal, Ideator] | None = None
        self._useless: dict[str, int] = {}

    @property
    def name(self) -> str:
        """Names of the links, joined by hyphens."""
        return "-".join(ideator.name for ideator, _ in self._links)

    def equip(self, services: Services) -> None:
        """Hand on what the engine lends."""
        for ideator, _ in self._links:
            if isinstance(ideator, Equipped):
                ideator.equip(services)

    def author_of(self, proposal: Proposal) -> str:
        """Name of the link that made a proposal; of the chain when it is not known any more."""
        known = self._author is not None and self._author[0] == proposal
        return self._author[1].name if known and self._author is not None else self.name

    def propose(self, context: Context) -> Proposal | None:
        """One idea of the first ideator that has one.

        Raises:
            BackendDown: Every ideator is down or is being left alone.
            BadReply: The ideator whose turn it is answered something else than a proposal.
        """
        self._count_refused(context)
        return self._first(lambda ideator: asking.propose(ideator, context))

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """A repair by the author of the proposal, else by whoever knows one.

        Raises:
            BackendDown: Every ideator is down or is being left alone.
        """
        return self._first(
            lambda ideator: asking.repair(ideator, context, proposal, failure), proposal
        )

    def _count_refused(self, context: Context) -> None:
        """Whose proposal it was that has just been refused, within a round."""
        if not context.refused:
            self._useless = {}
        elif self._author is not None:
            name = self._author[1].name
            self._useless[name] = self._useless.get(name, 0) + 1
        self._author = None

    def _first(
        self, ask: Callable[[Ideator], Proposal | None], proposal: Proposal | None = None
    ) -> Proposal | None:
        reasons: list[str] = []
        for ideator, circuit in self._in_order(proposal):
            if not circuit.is_closed:
                reasons.append(f"{ideator.name} is left alone after {circuit.failures} failures")
                continue
            if proposal is None and self._is_out_of_patience(ideator):
                continue
            try:
                answer = ask(ideator)
            except BackendDown as exc:
                circuit.failed(for_good=isinstance(exc, BackendBarred))
                reasons.append(f"{ideator.name}: {exc}")
                _log.warning("an ideator does not answer", ideator=ideator.name, error=str(exc))
                continue
            except BadReply as exc:
                self._answered_badly(ideator, circuit, exc, repairing=proposal is not None)
                continue
            circuit.succeeded()
            if answer is not None:
                self._author = (answer, ideator)
                return answer
        if len(reasons) == len(self._links):
            raise BackendDown("; ".join(reasons))
        return None

    def _answered_badly(
        self, ideator: Ideator, circuit: Circuit, exc: BadReply, *, repairing: bool
    ) -> None:
        """A failure of the backend; its next try is told why, unless it is left alone now."""
        circuit.failed()
        _log.warning("an ideator gave no proposal", ideator=ideator.name, error=str(exc))
        if circuit.is_closed and not repairing:
            raise exc

    def _is_out_of_patience(self, ideator: Ideator) -> bool:
        is_last = ideator is self._links[-1][0]
        return not is_last and self._useless.get(ideator.name, 0) >= self._patience

    def _in_order(self, proposal: Proposal | None) -> list[tuple[Ideator, Circuit]]:
        """The links; the author of ``proposal`` first, where it is known."""
        author = self._author
        if proposal is None or author is None or author[0] != proposal:
            return list(self._links)
        return sorted(self._links, key=lambda link: link[0] is not author[1])
