"""The context pack: what a model is told, within a budget of tokens.

Sections have ranks. What every idea needs comes first and is always there, if shortened; then
history, newest first; then what is good to have. A section that does not fit is shortened or
left out, and the pack says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain import escalation
from croq_fsm.domain.source import difference
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import SUFFIXES
from croq_fsm.ideators.contract import Base, Context, Failure, Past
from croq_fsm.ideators.quoting import fenced

#: Fewest bytes of source text that make a token; more of them make the estimate too high.
_BYTES_PER_TOKEN: Final = 3
#: A section shorter than this many bytes says nothing.
_SHORTEST: Final = 200
_HINT_BYTES: Final = 2000
_DIFFS: Final = 6
_DIFF_BYTES: Final = 3000
_REASON_BYTES: Final = 400
_REMARKS: Final = 40
_METRICS: Final = 120
#: Share of the budget that the source of the base may take.
_SOURCE_SHARE: Final = 0.6


def tokens(text: str) -> int:
    """Tokens of a text, estimated from its bytes; on the high side for source code."""
    return math.ceil(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN)


def kernel_name(context: Context) -> str:
    """The one file that an answer may edit."""
    return f"kernel{SUFFIXES.get(context.task.dsl, '.txt')}"


@dataclass(frozen=True)
class Budget:
    """Room that is left, in bytes."""

    left: int

    @classmethod
    def of(cls, limit: int) -> Budget:
        """Room of so many tokens."""
        return cls(limit * _BYTES_PER_TOKEN)

    def less(self, text: str) -> Budget:
        """What is left after a text."""
        return Budget(self.left - len(text.encode("utf-8", "replace")) - 2)


def proposal_pack(context: Context, limit: int) -> str:
    """Everything about the round in hand in at most about ``limit`` tokens."""
    return _fitted(context, limit, "")


def repair_pack(context: Context, failure: Failure, summary: str, limit: int) -> str:
    """The same for a repair: what was tried, and how it failed, come before all else."""
    tried = difference(context.base.candidate.source, failure.candidate.source)
    head = "\n\n".join(
        (
            f"## The attempt that failed (number {failure.attempt}): {failure.kind}\n\n"
            + fenced("idea", summary, _HINT_BYTES),
            fenced("message of the engine", failure.message, 4000),
            fenced("output of the tools", failure.log, limit),
            fenced("what was tried, as a diff of the base", tried, limit),
        )
    )
    return _fitted(context, limit, head)


def _fitted(context: Context, limit: int, head: str) -> str:
    budget = Budget.of(limit)
    parts = [head] if head else []
    budget = budget.less(head)
    source_room = max(_SHORTEST, int(min(budget.left, limit * _BYTES_PER_TOKEN) * _SOURCE_SHARE))
    for part in _needed(context, source_room):
        parts.append(part)
        budget = budget.less(part)
    left_out = 0
    for part in (*_history(context), *_useful(context, budget.left // 2)):
        following = budget.less(part)
        if following.left < 0:
            left_out += 1
            continue
        parts.append(part)
        budget = following
    if left_out:
        parts.append(f"({left_out} sections were left out for want of room.)")
    return "\n\n".join(parts)


def _needed(context: Context, source_room: int) -> Iterator[str]:
    yield _task(context)
    if context.refused:
        reasons = "\n".join(f"- {reason[:_REASON_BYTES]}" for reason in context.refused[-8:])
        yield "## Refused in this round; do not propose these again\n\n" + fenced(
            "reasons of the guards", reasons, 4000
        )
    if context.hints:
        text = "\n".join(f"- {hint}" for hint in reversed(context.hints))
        yield "## Advice of the user, newest first\n\n" + fenced("hints", text, _HINT_BYTES)
    yield _demands(context)
    yield _profile(context)
    yield _base("## The base to edit", kernel_name(context), context.base, source_room)


def _task(context: Context) -> str:
    task, device = context.task, context.device
    sizes = ", ".join(f"{name} = {size}" for name, size in task.sizes.items())
    limits = ", ".join(f"{name} = {value}" for name, value in sorted(device.limits.items()))
    ratio = context.library_seconds / context.base.seconds if context.base.seconds else 0.0
    against = "the start kernel's" if task.own_host else "the library's"
    dialect = "\n".join(f"{k}: {v}" for k, v in sorted(context.dialect.items()))
    return (
        f"## Task\n\n{task.operator} in {task.dtype}, DSL {task.dsl}, {sizes}, on {device.name}.\n"
        f"Base: iter{context.base.iteration:03d}, {context.base.seconds * 1e6:.2f} us a call, "
        f"{ratio:.3f} of {against} speed; noise {context.noise:.2%}.\n"
        f"Device limits: {limits}.\nStructure of the base: {context.base.structure}.\n"
        f"Flags of the base: {' '.join(context.base.candidate.flags) or 'none'}.\n"
        + (fenced("compiler", dialect, 3000) if dialect else "")
    )


#: For kernels of unknown operators.
_OWN_HOST = (
    "the kernel runs in its own host part, which is frozen: change only the kernel's functions and "
    "numeric macros that the host part does not use; a kernel prints nothing"
)


def _demands(context: Context) -> str:
    own = context.task.own_host
    lines = [
        *([_OWN_HOST] if own else []),
        "the edit applies to one active base: "
        + ", ".join(f"iter{b.iteration:03d}" for b in (context.base, *context.others)),
        "metrics names counters of the profile, and the hypothesis says what each tells",
        "no combination of base, parameters, structure and flags that was tried before",
        "no library calls; host part, problem size, checking and timing stay as they are",
    ]
    if context.must_be_structural:
        lines.append("a change of structure is due: values of macros alone are refused")
    if context.avoid_category is not None:
        lines.append(f"category {context.avoid_category} has stalled: choose another one")
    if context.escalation >= escalation.RESEARCH:
        lines.append("research_basis says what outside this text the idea rests on")
    return "## Rules in force\n\n" + "\n".join(f"- {line}" for line in lines)


def _profile(context: Context) -> str:
    profile = context.profile
    rows = "\n".join(
        f"{m.name} = {m.value:.6g} {m.unit}".rstrip() for m in profile.metrics[:_METRICS]
    )
    remarks = "\n".join((*profile.evidence, *profile.remarks, *context.base.remarks)[:_REMARKS])
    resources = ", ".join(f"{k} = {v}" for k, v in sorted(context.base.resources.items()))
    return (
        f"## Profile of the base: {profile.bottleneck}, confidence {profile.confidence}\n\n"
        + fenced("metrics", rows, 8000)
        + (f"\n\nResources: {resources}." if resources else "")
        + ("\n\n" + fenced("compiler and profiler remarks", remarks, 6000) if remarks else "")
    )


def _base(title: str, name: str, base: Base, room: int) -> str:
    return f"{title} (iter{base.iteration:03d})\n\n" + fenced(name, base.candidate.source, room)


def _history(context: Context) -> Iterator[str]:
    """Rounds, newest first: a line each, the latest with their diffs."""
    if context.history:
        yield "## Earlier rounds, newest first"
    for age, past in enumerate(reversed(context.history)):
        diff = context.diff_of(past.round) if age < _DIFFS else ""
        line = _line(past)
        yield line + ("\n" + fenced("its diff", diff, _DIFF_BYTES) if diff else "")


def _line(past: Past) -> str:
    gain = "" if past.ratio is None else f" ratio {past.ratio:.4f}"
    what = past.summary if past.decision is Decision.KEEP else f"{past.summary} | {past.reason}"
    words = fenced(
        f"round {past.round}, {past.category}, base iter{past.base:03d}", what, 2 * _REASON_BYTES
    )
    return f"- {past.decision}{gain} (levers: {', '.join(past.levers) or 'none'})\n{words}"


def _useful(context: Context, room: int) -> Iterator[str]:
    for other in context.others:
        if room >= _SHORTEST:
            yield _base("## The other active base", kernel_name(context), other, room)
    if context.base.generated and room >= _SHORTEST:
        yield "## Generated code of the base\n\n" + fenced(
            "generated code", context.base.generated, room
        )
