"""Ideas without a network: rules over the profile, filtered by the guards in force.

:class:`RulesIdeator` is the policy. What it may propose comes from a source of moves per DSL
(:mod:`croq_fsm.ideators.rules.moves`), whose knowledge is data under ``config/knowledge``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, Final

import structlog
from pydantic import Field, ValidationError

from croq_fsm.domain import escalation
from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.model import Value
from croq_fsm.errors import UsageError
from croq_fsm.ideators.contract import Context, Failure
from croq_fsm.ideators.rules import repairs
from croq_fsm.ideators.rules.admission import Gate
from croq_fsm.ideators.rules.moves import Moves, Repairs, moves_for
from croq_fsm.ideators.rules.prior import Prior

__all__ = ["RulesIdeator", "RulesSettings"]

_log = structlog.get_logger(__name__)

#: Exploration never takes more than this share of the rounds.
_MOST_EXPLORATION: Final = 0.5


#: A move that a hint of the user names counts this many times, among this many more.
_EMPHASIS: Final = 20.0
_HINTED_WINDOW: Final = 4


class RulesSettings(Value):
    """Section ``[ideators.rules]`` of the configuration.

    Attributes:
        window: Admissible proposals that are ranked against each other in a round.
        explore: Probability, per level of escalation, of taking any of the window instead of
            the best.
    """

    window: Annotated[int, Field(ge=1)] = 16
    explore: Annotated[float, Field(ge=0, le=1)] = 0.1


class RulesIdeator:
    """Picks the most promising admissible move; deterministic for a given context.

    Args:
        settings: See :class:`RulesSettings`; unknown keys raise UsageError.
    """

    name = "rules"

    def __init__(self, settings: dict[str, Any]) -> None:
        try:
            self._settings = RulesSettings.model_validate(settings)
        except ValidationError as exc:
            raise UsageError(f"bad settings for the rules ideator: {exc}") from exc
        self._moves: dict[str, Moves] = {}

    def propose(self, context: Context) -> Proposal | None:
        """The best admissible move, or None when the moves are exhausted.

        Raises:
            UsageError: There are no moves for the task's DSL.
        """
        gate = Gate(context)
        stream = gate.admitted(self._source(context).proposals(context))
        wider = _HINTED_WINDOW if context.hints else 1
        window = list(islice(stream, self._settings.window * wider))
        _log.debug("ranked moves", admitted=len(window), refused=gate.refused)
        return _grounded(self._choose(window, context), context) if window else None

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """Another way to realise ``proposal`` after ``failure``, or None to give it up."""
        source = self._source(context)
        if isinstance(source, Repairs):
            mended = repairs.first_genuine(
                source.repairs(context, proposal, failure), context, failure
            )
            if mended is not None:
                return mended
        general = repairs.general_repairs(context, proposal, failure)
        return repairs.first_genuine(general, context, failure)

    def _choose(self, window: Sequence[Proposal], context: Context) -> Proposal:
        prior = Prior.learn(context.history)
        rng = random.Random(context.rng_seed)  # noqa: S311 - a replayable choice, no secret
        chance = min(_MOST_EXPLORATION, self._settings.explore * context.escalation)
        if rng.random() < chance:
            return rng.choice(window)
        said = " ".join(context.hints).lower()
        # max() keeps the first of equals, so the order of the moves breaks ties.
        return max(window, key=lambda move: prior.score(move) * _emphasis(move, said))

    def _source(self, context: Context) -> Moves:
        dsl = context.task.dsl
        if dsl not in self._moves:
            self._moves[dsl] = moves_for(dsl)
        return self._moves[dsl]


def _grounded(move: Proposal, context: Context) -> Proposal:
    """At the research level, with what the move was looked up in: the shipped knowledge."""
    if context.escalation < escalation.RESEARCH or move.research_basis:
        return move
    rule = move.levers[0] if move.levers else move.category
    basis = f"rule {rule} of the shipped knowledge for DSL {context.task.dsl}"
    return move.model_copy(update={"research_basis": basis})


def _emphasis(move: Proposal, said: str) -> float:
    """More for a move whose operator, macro or flag the user's hints name word for word."""
    words = set(re.findall(r"[\w=-]+", said))
    return _EMPHASIS if words.intersection(lever.lower() for lever in move.levers) else 1.0
