"""Second tries that follow from what a tool said about the first one.

Each repair reads one kind of message and makes one definite change to the *failed* candidate.
A message that no repair knows gives nothing: guessing costs an attempt and teaches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.guards import identity
from croq_fsm.domain.ideas import NoEdit, Proposal, SetMacros, WholeSource
from croq_fsm.domain.source import macros, set_macros, structure_hash
from croq_fsm.domain.states import Decision
from croq_fsm.errors import EditError
from croq_fsm.ideators.contract import Context, Failure
from croq_fsm.ideators.rules.admission import candidate_of

#: A repair: candidates to try instead of the failed one, with a word on what was changed.
Repair = Callable[[Failure], Iterator[tuple[Candidate, str]]]

_UNKNOWN_FLAG: Final = re.compile(
    r"(?:unrecognized|unknown|unsupported) (?:command[- ]line )?(?:option|argument):?\s+"
    r"['\"`\u2018]?(?P<flag>--?[^\s'\"`\u2019]+)"
    r"|bad value \(['\"`\u2018]?[^)]*\) for ['\"`\u2018]?(?P<valued>-[\w-]+=)",
    re.IGNORECASE,
)
_SHARED_MEMORY: Final = re.compile(
    r"shared memory out of bound|uses too much shared data|exceeds .{0,40}shared memory",
    re.IGNORECASE,
)
_MULTIPLE: Final = r"\b[^\n]{0,60}?(?:multiple of|divisible by|aligned to)\s+(\d+)"
_TOO_LARGE: Final = re.compile(
    r"size of (?:array|variable) ['\"`\u2018]?(?P<name>\w+)['\"`\u2019]? is too large"
    r"|relocation truncated to fit",
    re.IGNORECASE,
)
_ILLEGAL: Final = re.compile(r"illegal instruction|SIGILL", re.IGNORECASE)
_STAGE_MACRO: Final = re.compile(r"(^|_)STAGES?($|_)", re.IGNORECASE)

#: Flags that let the compiler change the value of floating-point expressions.
_VALUE_FLAGS: Final = (
    "-Ofast",
    "-ffast-math",
    "-funsafe-math-optimizations",
    "-fassociative-math",
    "-freciprocal-math",
    "-ffinite-math-only",
    "--use_fast_math",
)

#: The least number of stages that still overlaps a copy with work.
_LEAST_STAGES: Final = 2


def first_genuine(
    proposals: Iterable[Proposal], context: Context, failure: Failure
) -> Proposal | None:
    """The first proposal that is neither the failed candidate, nor the base, nor known or ill."""
    base = context.base.candidate
    stale = {identity(failure.candidate), identity(base)}
    for proposal in proposals:
        try:
            candidate = candidate_of(proposal, base)
        except EditError:
            continue
        is_fresh = identity(candidate) not in stale and context.is_new(candidate)
        if is_fresh and not context.lint(candidate):
            return proposal
    return None


def general_repairs(context: Context, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """Repairs that hold in any DSL, as proposals on the same base under the same tag."""
    base = context.base.candidate
    for repair in _REPAIRS:
        for candidate, change in repair(failure):
            yield _proposal(proposal, base, candidate, change)


def _proposal(proposal: Proposal, base: Candidate, candidate: Candidate, change: str) -> Proposal:
    return proposal.model_copy(
        update={
            "edit": _edit(base.source, candidate.source),
            "flags": candidate.flags,
            "summary": f"{proposal.summary}; repaired: {change}"[:2000],
        }
    )


def _edit(base: str, source: str) -> SetMacros | WholeSource | NoEdit:
    """The smallest edit that turns ``base`` into ``source``."""
    if source == base:
        return NoEdit()
    if structure_hash(source) == structure_hash(base):
        old, new = macros(base), macros(source)
        changed = {name: value for name, value in new.items() if old.get(name) != value}
        if changed and set_macros(base, changed) == source:
            return SetMacros(macros=changed)
    return WholeSource(source=source)


def _without(candidate: Candidate, dropped: Callable[[str], bool]) -> Candidate | None:
    kept = tuple(flag for flag in candidate.flags if not dropped(flag))
    return None if kept == candidate.flags else candidate.model_copy(update={"flags": kept})


def _drop_unknown_flag(failure: Failure) -> Iterator[tuple[Candidate, str]]:
    for match in _UNKNOWN_FLAG.finditer(failure.log):
        named = match["flag"] or match["valued"]
        mended = _without(failure.candidate, partial(_is_named, named))
        if mended is not None:
            yield mended, f"without {named}, which this compiler does not know"


def _is_named(named: str, flag: str) -> bool:
    """Whether a message means this flag; a name that ends in ``=`` stands for any value."""
    return flag == named or (named.endswith("=") and flag.startswith(named))


def _drop_target_flags(failure: Failure) -> Iterator[tuple[Candidate, str]]:
    if _ILLEGAL.search(failure.message) or _ILLEGAL.search(failure.log):
        mended = _without(failure.candidate, lambda flag: flag.startswith("-m"))
        if mended is not None:
            yield mended, "without target flags, whose instructions this device does not run"


def _drop_value_flags(failure: Failure) -> Iterator[tuple[Candidate, str]]:
    if failure.kind is Decision.VERIFY_FAIL:
        mended = _without(failure.candidate, lambda flag: flag in _VALUE_FLAGS)
        if mended is not None:
            yield mended, "without the flags that let the compiler change values"


def _fewer_stages(failure: Failure) -> Iterator[tuple[Candidate, str]]:
    if not _SHARED_MEMORY.search(failure.log):
        return
    for name, value in _numbers(failure.candidate.source):
        if _STAGE_MACRO.search(name) and value > _LEAST_STAGES:
            yield from _changed(failure.candidate, name, value - 1, "so that shared memory fits")


def _rounded_width(failure: Failure) -> Iterator[tuple[Candidate, str]]:
    """Round the macro that a message calls unaligned down to the unit it asks for."""
    for name, value in _numbers(failure.candidate.source):
        match = re.search(rf"\b{name}{_MULTIPLE}", failure.log, re.IGNORECASE)
        unit = int(match[1]) if match else 0
        if unit and value % unit and value > unit:
            reason = f"a multiple of {unit}"
            yield from _changed(failure.candidate, name, value // unit * unit, reason)


def _smaller_buffer(failure: Failure) -> Iterator[tuple[Candidate, str]]:
    """Halve the macro that sizes an array the linker or compiler found too large."""
    for match in _TOO_LARGE.finditer(failure.log):
        source = failure.candidate.source
        sizes = re.search(rf"\b{match['name']}\s*\[([^\n]*)\]", source) if match["name"] else None
        for name, value in sorted(_numbers(source), key=lambda item: -item[1]):
            if value > 1 and (sizes is None or re.search(rf"\b{name}\b", sizes[1])):
                yield from _changed(failure.candidate, name, value // 2, "so that the buffer fits")


_REPAIRS: Final[tuple[Repair, ...]] = (
    _drop_unknown_flag,
    _drop_target_flags,
    _drop_value_flags,
    _fewer_stages,
    _rounded_width,
    _smaller_buffer,
)


def _numbers(source: str) -> list[tuple[str, int]]:
    return [(name, int(text)) for name, text in macros(source).items() if text.isdecimal()]


def _changed(
    candidate: Candidate, name: str, value: int, reason: str
) -> Iterator[tuple[Candidate, str]]:
    try:
        source = set_macros(candidate.source, {name: str(value)})
    except EditError:
        return
    yield candidate.model_copy(update={"source": source}), f"{name} {value}, {reason}"
