"""Steps: the ways in which one C operator can turn its lever, before they become proposals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from croq_fsm.domain.ideas import Edit, NoEdit, Proposal
from croq_fsm.domain.names import clean_tag
from croq_fsm.domain.states import Category
from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules.evidence import quote
from croq_fsm.ideators.rules.knowledge import Rule

#: A step's share of the gain of the step before it in the same operator.
_NEXT_BEST: Final = 0.85

#: Share of its gain that a rule keeps while the ones it should come after are untried.
_TOO_EARLY: Final = 0.1

_LONGEST_SUMMARY, _LONGEST_HYPOTHESIS = 2000, 4000


@dataclass(frozen=True)
class Step:
    """One way to turn a lever.

    Attributes:
        tag: Name for files; cleaned to the contract's alphabet.
        words: What the placeholders of the rule's sentences stand for.
        levers: Macros, flags or structures that it turns, besides the operator's name.
        edit: Makes the edit; called only when the proposal is wanted.
        flags: Complete flags of the candidate; None keeps the base's.
        category: Kind of the idea when it is not the rule's.
    """

    tag: str
    words: dict[str, object] = field(default_factory=dict)
    levers: tuple[str, ...] = ()
    edit: Callable[[], Edit] = NoEdit
    flags: tuple[str, ...] | None = None
    category: Category | None = None


#: Name of an operator → its steps, best first; made lazily.
Operators = dict[str, Callable[[], Iterator[Step]]]


class Family(Protocol):
    """What is known about one problem family in C."""

    #: Names of the operators that ``operators`` gives.
    names: frozenset[str]

    def operators(self, context: Context) -> Operators:
        """The operators, bound to a context."""

    def explore(self, context: Context) -> Iterator[Step]:
        """Every feasible member of the family, nearest and most promising first."""

    def knows(self, source: str) -> bool:
        """Whether a source is a member of the family."""


@dataclass(frozen=True)
class Ranked:
    """A step with the rule that it belongs to and the gain expected of it."""

    rule: Rule
    step: Step
    gain: float

    def proposal(self, context: Context) -> Proposal:
        """The proposal; this is where text is rendered."""
        evidence, metrics = quote(context.profile, self.rule.quotes)
        why = self.rule.why.format_map(self.step.words)
        base = context.base
        return Proposal(
            tag=clean_tag(self.step.tag),
            base=base.iteration,
            edit=self.step.edit(),
            flags=base.candidate.flags if self.step.flags is None else self.step.flags,
            patches=base.candidate.patches,
            summary=self.rule.what.format_map(self.step.words)[:_LONGEST_SUMMARY],
            hypothesis=f"{evidence}: {why}"[:_LONGEST_HYPOTHESIS],
            metrics=metrics,
            category=self.step.category or self.rule.category,
            expected_gain=round(self.gain, 4),
            levers=(self.rule.name, *self.step.levers),
        )


def ranked(rule: Rule, step: Step, rank: int, context: Context, *, early: bool) -> Ranked:
    """A step at its place in the operator's own order."""
    gain = rule.expectation(context.profile) * _NEXT_BEST**rank * (_TOO_EARLY if early else 1.0)
    return Ranked(rule, step, gain)
