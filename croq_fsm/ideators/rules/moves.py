"""Port between the rule policy and what is known about one DSL: an ordered stream of moves.

A source of moves knows the language and the hardware; the policy (``RulesIdeator``) knows the
guards and what has worked so far. A source may propose anything: the policy drops what was
tried, what the lints refuse and what the guards rule out.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Final, Protocol, cast, runtime_checkable

from croq_fsm.domain.ideas import Proposal
from croq_fsm.errors import UsageError
from croq_fsm.ideators.contract import Context, Failure

#: DSL → module and class of its moves; the class is built without arguments.
SOURCES: Final = {
    "c": ("croq_fsm.ideators.rules.c", "CMoves"),
    "croqtile": ("croq_fsm.ideators.rules.croqtile", "CroqtileMoves"),
    "cuda": ("croq_fsm.ideators.rules.cuda", "CudaMoves"),
}


class Moves(Protocol):
    """What could be tried next in one DSL."""

    def proposals(self, context: Context) -> Iterator[Proposal]:
        """Proposals, best expected first, made lazily; a pure function of the context.

        Each one is one idea on ``context.base``, with the operator's name as first lever and
        a hypothesis that quotes only metrics present in ``context.profile``.
        """


@runtime_checkable
class Repairs(Protocol):
    """A source of moves that also knows how to mend a failed attempt in its DSL."""

    def repairs(self, context: Context, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
        """Other ways to realise ``proposal``, most promising first."""


def moves_for(dsl: str) -> Moves:
    """The moves of a DSL.

    Raises:
        UsageError: No rules exist for this DSL, or they are not part of this installation.
    """
    if dsl not in SOURCES:
        known = ", ".join(sorted(SOURCES))
        raise UsageError(f"the rules ideator has no moves for DSL {dsl!r}; it knows: {known}")
    module_name, class_name = SOURCES[dsl]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name != module_name:
            raise
        raise UsageError(
            f"the rules for DSL {dsl!r} are not installed ({module_name} is missing); "
            "choose another ideator with --ideator"
        ) from exc
    return cast("Moves", getattr(module, class_name)())
