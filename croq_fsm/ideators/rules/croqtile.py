"""Moves of DSL ``croqtile``: rules over the profile and a model, then the feasible set itself.

The knowledge (``config/knowledge/croqtile.toml``) says when and why, the operators say how, the
model says how much. All are relative to the base at hand: after a KEEP everything is asked
again, for the new base and its profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from croq_fsm.domain.ideas import NoEdit, Proposal, Replace
from croq_fsm.domain.names import clean_tag
from croq_fsm.domain.states import Category
from croq_fsm.errors import UsageError
from croq_fsm.ideators.contract import Context, Failure
from croq_fsm.ideators.rules import croqtile_patches as patches
from croq_fsm.ideators.rules.croqtile_case import Case
from croq_fsm.ideators.rules.croqtile_config import Gemm, changed
from croq_fsm.ideators.rules.croqtile_edits import edit_to
from croq_fsm.ideators.rules.croqtile_moves import OPERATORS, Operator, survey
from croq_fsm.ideators.rules.croqtile_repairs import repaired
from croq_fsm.ideators.rules.croqtile_search import neighbours
from croq_fsm.ideators.rules.croqtile_settings import FAMILY, settings
from croq_fsm.ideators.rules.evidence import quote
from croq_fsm.ideators.rules.knowledge import Knowledge, Rule, load

_EXPLORE, _SURVEY, _UNIFORM_PATCH, _PROMOTION = "explore", "survey", "uniform_patch", "l2_promotion"
_GROUP_STORE: Final = "group_store"
_OTHERS: Final = frozenset({_EXPLORE, _SURVEY, _UNIFORM_PATCH, _PROMOTION, _GROUP_STORE})

#: Ways of one operator that are ranked against the other operators' in a round.
_WAYS: Final = 6

#: A way's share of the expectation of the way before it in the same operator.
_NEXT_BEST: Final = 0.9

#: Expectation of an idea of the enumeration for which the model promises nothing.
_CURIOSITY: Final = 0.0002

_LONGEST_SUMMARY, _LONGEST_HYPOTHESIS = 2000, 4000

_CATEGORIES: Final = {
    "tile_m": Category.TILING,
    "tile_n": Category.TILING,
    "tile_k": Category.TILING,
    "ctas": Category.PIPELINE,
    "stages": Category.PIPELINE,
    "release": Category.PIPELINE,
    "elected": Category.PIPELINE,
    "guard": Category.PIPELINE,
    "order": Category.MEMORY,
    "group": Category.MEMORY,
    "staging": Category.MEMORY,
    "layout": Category.MEMORY,
    "turns": Category.MEMORY,
    "keep": Category.MEMORY,
    "registers": Category.COMPUTE,
    "uniform": Category.COMPUTE,
    "unroll": Category.COMPUTE,
}


@dataclass(frozen=True)
class Move:
    """An idea before its text is made.

    Attributes:
        rule: Knowledge that it rests on.
        gain: Expected relative gain.
        config: Wanted configuration; None when text stays and flags or patches change.
        flag: Flag to add, or "".
        edits: Patches to add.
        category: Kind of the idea when it is not the rule's.
    """

    rule: Rule
    gain: float
    config: Gemm | None = None
    flag: str = ""
    edits: tuple[Replace, ...] = field(default=())
    category: Category | None = None

    def proposal(self, case: Case) -> Proposal:
        """The proposal; this is where text is rendered."""
        base = case.context.base
        config = self.config or case.base
        edit, kept = (NoEdit(), base.candidate.patches)
        if self.config is not None:
            edit, kept = edit_to(self.config, case)  # type: ignore[assignment]
        evidence, metrics = quote(case.context.profile, self.rule.quotes)
        words = case.words(config) | {"flag": self.flag.partition(":")[2]}
        turned = changed(case.base, config) if case.is_known else ()
        return Proposal(
            tag=self._tag(config, turned),
            base=base.iteration,
            edit=edit,
            flags=(*base.candidate.flags, *((self.flag,) if self.flag else ())),
            patches=(*kept, *self.edits),
            summary=self.rule.what.format_map(words)[:_LONGEST_SUMMARY],
            hypothesis=f"{evidence}: {self.rule.why.format_map(words)}"[:_LONGEST_HYPOTHESIS],
            metrics=metrics,
            category=self.category or self.rule.category,
            expected_gain=round(self.gain, 4),
            levers=(self.rule.name, *turned),
        )

    def _tag(self, config: Gemm, turned: tuple[str, ...]) -> str:
        """The operator's name and what it turns, as far as a tag has room."""
        name = self.rule.name
        if not turned:
            return clean_tag(name if self.config is None else f"{name}_{config.name}")
        if {"tile_m", "tile_n"} & set(turned):
            return clean_tag(f"{name}_{config.name}")
        values = [_short(getattr(config, choice)) for choice in turned]
        return clean_tag("_".join([name, *(v for v in values if v and v not in name)]))


class CroqtileMoves:
    """What could be tried next on a Choreo GEMM.

    Args:
        folder: Folder of the knowledge file; None means the shipped one.

    Raises:
        UsageError: The knowledge is missing or names an operator that does not exist.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._knowledge: Knowledge = load("croqtile", folder)
        known = _OTHERS.union(OPERATORS)
        unknown = [r.name for r in self._knowledge.rule if not r.flag and r.name not in known]
        if unknown:
            raise UsageError(f"the rules for croqtile name unknown operators: {', '.join(unknown)}")

    def proposals(self, context: Context) -> Iterator[Proposal]:
        """Ranked ideas first, then the neighbours of the base, then the feasible set.

        Kernels outside of the family of f16 and bf16 GEMMs are changed by their settings alone.
        """
        if (context.task.operator, context.task.dtype) not in FAMILY:
            yield from settings(context)
            return
        case = Case.of(context)
        seen: set[Gemm] = set()
        for move in sorted(self._ranked(case), key=lambda move: -move.gain):
            if move.config is None or move.config not in seen:
                if move.config is not None:
                    seen.add(move.config)
                yield move.proposal(case)
        for move in self._enumerated(case):
            if move.config is not None and move.config not in seen:
                seen.add(move.config)
                yield move.proposal(case)

    def repairs(self, context: Context, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
        """Other ways to realise a failed idea; see :mod:`croqtile_repairs`."""
        if (context.task.operator, context.task.dtype) not in FAMILY:
            return iter(())
        return repaired(Case.of(context), proposal, failure)

    def _ranked(self, case: Case) -> Iterator[Move]:
        for rule in self._rules(case):
            operator = OPERATORS.get(rule.name)
            if operator is not None and (case.is_known or operator.unknown):
                yield from _ways(rule, operator, case)
            else:
                yield from _texts_kept(rule, case)

    def _rules(self, case: Case) -> list[Rule]:
        context = case.context
        return self._knowledge.for_operator(context.task.operator, context.profile)

    def _enumerated(self, case: Case) -> Iterator[Move]:
        """Single changes of the base, then all feasible members; each promises little."""
        named = {rule.name: rule for rule in self._rules(case)}
        explore, every = named.get(_EXPLORE), named.get(_SURVEY)
        if explore is not None:
            for config in neighbours(case.base, case.shape, case.machine):
                yield _idea(explore, case, config)
        if every is not None:
            for config in survey(case):
                yield _idea(every, case, config)


def _idea(rule: Rule, case: Case, config: Gemm) -> Move:
    """An idea of the enumeration."""
    gain = max(_CURIOSITY, min(rule.gain, case.expected(config) / 2))
    turned = changed(case.base, config)
    category = _CATEGORIES.get(turned[0]) if turned else None
    return Move(rule, gain, config=config, category=category)


def _ways(rule: Rule, operator: Operator, case: Case) -> Iterator[Move]:
    """The first few ways of an operator, with what is expected of each."""
    factor = rule.expectation(case.context.profile) / rule.gain
    for rank, config in enumerate(islice(_fresh(operator, case), _WAYS)):
        modelled = operator.modelled and case.is_known
        promise = min(rule.gain, case.expected(config)) if modelled else rule.gain
        if promise > 0:
            yield Move(rule, promise * factor * _NEXT_BEST**rank, config=config)


def _fresh(operator: Operator, case: Case) -> Iterator[Gemm]:
    """What an operator yields, without the base itself and without repetitions."""
    seen = {case.base} if case.is_known and not _is_direct(case) else set()
    for config in operator.turns(case):
        if config not in seen:
            seen.add(config)
            yield config


def _is_direct(case: Case) -> bool:
    return case.reading is not None and case.reading.direct


def _texts_kept(rule: Rule, case: Case) -> Iterator[Move]:
    """Ideas that leave the base's text alone: flags and patches of the generated code."""
    context, gain = case.context, rule.expectation(case.context.profile)
    if rule.flag:
        if rule.flag not in context.base.candidate.flags and _knows(rule.flag, context):
            yield Move(rule, gain, flag=rule.flag)
        return
    edits: tuple[Replace, ...] = ()
    if rule.name == _UNIFORM_PATCH and not _writes_index_itself(case):
        edits = patches.uniform_index(context.base.generated)
    elif rule.name == _PROMOTION:
        edits = patches.wide_promotion(context.base.generated)
    elif rule.name == _GROUP_STORE and case.is_known:
        edits = patches.group_store(case.base, context.base.generated)
    if edits and not set(edits) & set(context.base.candidate.patches):
        yield Move(rule, gain, edits=edits)


def _writes_index_itself(case: Case) -> bool:
    """Whether the family's own text, or the base's, can make the index uniform."""
    exact = case.reading is not None and case.reading.exact
    return exact or (case.is_known and (case.base.uniform or case.base.consumers == 1))


def _knows(flag: str, context: Context) -> bool:
    """Whether the compiler that the flag is for has it; nvcc's own are taken for granted."""
    compiler, _, text = flag.partition(":")
    known = context.dialect.get("flags", "").split()
    return compiler == "nvcc" or text.partition("=")[0] in known


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return "_".join(map(str, value))
    if isinstance(value, bool):
        return "" if value else "off"
    return str(value)
