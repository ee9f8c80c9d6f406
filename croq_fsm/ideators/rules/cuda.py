"""Moves of DSL ``cuda``: numbers within the device's limits, and compiler flags.

Nothing is known about a CUDA kernel but its macros, so nothing of its text is rewritten. Flags
count as structure; when a change of structure is due, numbers are turned together with one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from croq_fsm.domain.ideas import Proposal, SetMacros
from croq_fsm.errors import UsageError
from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules import c_flags, c_macros
from croq_fsm.ideators.rules import cuda_tiling as tiling
from croq_fsm.ideators.rules.c_steps import Operators, Ranked, Step, ranked
from croq_fsm.ideators.rules.knowledge import Knowledge, Rule, load

_ROLES: Final = {"tile": tiling.TILE, "pipeline": tiling.PIPELINE, "band": tiling.BAND}
_MACRO, _DROP, _EXPLORE = "macro", "drop_flag", "explore"
_KNOWN: Final = frozenset({*_ROLES, _MACRO, _DROP, _EXPLORE})

#: Steps of one operator that are ranked against the other operators' in a round.
_STEPS_PER_RULE: Final = 8


class CudaMoves:
    """What could be tried next on a CUDA kernel.

    Args:
        folder: Folder of the knowledge file; None means the shipped one.

    Raises:
        UsageError: The knowledge is missing or names an operator that does not exist.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._knowledge: Knowledge = load("cuda", folder)
        unknown = [r.name for r in self._knowledge.rule if not r.flag and r.name not in _KNOWN]
        if unknown:
            raise UsageError(f"the rules for cuda name unknown operators: {', '.join(unknown)}")

    def proposals(self, context: Context) -> Iterator[Proposal]:
        """Ranked ideas first, then every feasible setting, plain and with one more flag."""
        for move in sorted(self._ranked(context), key=lambda move: -move.gain):
            yield move.proposal(context)
        rule = self._knowledge.get(_EXPLORE)
        for step in self._explored(context):
            yield ranked(rule, step, 0, context, early=False).proposal(context)

    def _ranked(self, context: Context) -> Iterator[Ranked]:
        operators = self._operators(context)
        for rule in self._knowledge.for_operator(context.task.operator, context.profile):
            if rule.name in operators:
                steps = islice(operators[rule.name](), _STEPS_PER_RULE)
                for rank, step in enumerate(steps):
                    yield ranked(rule, step, rank, context, early=False)

    def _operators(self, context: Context) -> Operators:
        """All operators, bound to a context; a rule with a flag is one more."""
        found: Operators = {_DROP: partial(c_flags.dropping, context)}
        for name, roles in _ROLES.items():
            found[name] = partial(_turned, name, roles, context)
        for rule in self._flag_rules:
            found[rule.name] = partial(_adding, rule, context)
        if not tiling.read(context.base.candidate.source).values:
            found[_MACRO] = partial(c_macros.turning, context)
        return found

    def _explored(self, context: Context) -> Iterator[Step]:
        roles = (*tiling.TILE, *tiling.PIPELINE, *tiling.BAND)
        steps = list(_turned(_EXPLORE, roles, context))
        if not context.must_be_structural:
            yield from steps
        for rule in self._flag_rules:
            for flagged in _adding(rule, context):
                for step in steps:
                    yield replace(step, flags=flagged.flags, levers=(*step.levers, *flagged.levers))

    @property
    def _flag_rules(self) -> list[Rule]:
        return [rule for rule in self._knowledge.rule if rule.flag]


def _turned(name: str, roles: tuple[str, ...], context: Context) -> Iterator[Step]:
    """Feasible settings of some levers, best promise first; equal ones stay in their order."""
    base = tiling.read(context.base.candidate.source)
    feasible = [values for values in base.variants(roles) if tiling.fits(values, context)]
    for values in sorted(feasible, key=lambda v: -tiling.promise(v, context)):
        yield _step(name, base, values)


def _step(name: str, base: tiling.Tiling, values: Mapping[str, int]) -> Step:
    new = base.changed(values)
    was = {macro: base.values[role] for role, macro in base.names.items() if macro in new}
    return Step(
        tag="_".join([name, *(f"{macro}{value}" for macro, value in new.items())]),
        words={
            "was": ", ".join(f"{macro} {value}" for macro, value in was.items()),
            "now": ", ".join(f"{macro} {value}" for macro, value in new.items()),
        },
        levers=tuple(new),
        edit=partial(SetMacros, macros=new),
    )


def _adding(rule: Rule, context: Context) -> Iterator[Step]:
    """The rule's flag in place of its rivals, unless the base has it."""
    flags = context.base.candidate.flags
    if rule.flag in flags:
        return
    kept = tuple(flag for flag in flags if not flag.startswith(rule.group or (rule.flag,)))
    yield Step(
        tag=f"flag{rule.flag.removeprefix('nvcc:')}",
        words={"flag": rule.flag},
        levers=(rule.flag,),
        flags=(*kept, rule.flag),
    )
