"""Moves of DSL ``c``: rules over the profile, then an enumeration of the feasible family."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from croq_fsm.domain.ideas import Proposal
from croq_fsm.errors import UsageError
from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules import c_flags, c_macros
from croq_fsm.ideators.rules.c_matmul import MatmulFamily
from croq_fsm.ideators.rules.c_softmax import SoftmaxFamily
from croq_fsm.ideators.rules.c_steps import Family, Operators, Ranked, ranked
from croq_fsm.ideators.rules.knowledge import Knowledge, load
from croq_fsm.ideators.rules.prior import operator_of

_FAMILIES: Final[dict[str, Family]] = {"matmul": MatmulFamily(), "softmax": SoftmaxFamily()}

#: Operators that need no family; every rule with a flag is one more.
_GENERAL: Final = frozenset({"drop_flag", "macro"})

#: The rule under which the enumeration runs.
_EXPLORE: Final = "explore"

#: Steps of one operator that are ranked against the other operators' in a round.
_STEPS_PER_RULE: Final = 8


class CMoves:
    """What could be tried next on a C kernel.

    Args:
        folder: Folder of the knowledge file; None means the shipped one.

    Raises:
        UsageError: The knowledge is missing or names an operator that does not exist.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._knowledge: Knowledge = load("c", folder)
        known = _GENERAL.union({_EXPLORE}, *(family.names for family in _FAMILIES.values()))
        unknown = [r.name for r in self._knowledge.rule if not r.flag and r.name not in known]
        if unknown:
            raise UsageError(f"the rules for c name unknown operators: {', '.join(unknown)}")

    def proposals(self, context: Context) -> Iterator[Proposal]:
        """Ranked ideas first, then every feasible member of the family."""
        for move in sorted(self._ranked(context), key=lambda move: -move.gain):
            yield move.proposal(context)
        family = _FAMILIES.get(context.task.operator)
        if family is not None:
            rule = self._knowledge.get(_EXPLORE)
            for step in family.explore(context):
                yield ranked(rule, step, 0, context, early=False).proposal(context)

    def _ranked(self, context: Context) -> Iterator[Ranked]:
        operators = self._operators(context)
        rules = self._knowledge.for_operator(context.task.operator, context.profile)
        steps = {
            rule.name: list(islice(operators[rule.name](), _STEPS_PER_RULE))
            for rule in rules
            if rule.name in operators
        }
        tried = {operator_of(past.levers, past.tag) for past in context.history}
        # What has no step left is in effect already, or impossible: nothing to wait for.
        open_rules = {name for name, found in steps.items() if found} - tried
        for rule in rules:
            early = not open_rules.isdisjoint(rule.after)
            for rank, step in enumerate(steps.get(rule.name, ())):
                yield ranked(rule, step, rank, context, early=early)

    def _operators(self, context: Context) -> Operators:
        """All operators that mean something for this base."""
        operators: Operators = {"drop_flag": partial(c_flags.dropping, context)}
        for rule in self._knowledge.rule:
            if rule.flag:
                operators[rule.name] = partial(c_flags.adding, rule, context)
        family = _FAMILIES.get(context.task.operator)
        if family is not None:
            operators |= family.operators(context)
        if family is None or not family.knows(context.base.candidate.source):
            operators["macro"] = partial(c_macros.turning, context)
        return operators
