"""The protocol's rules as guards: pure functions over facts, each a reason or None.

A guard never trusts what an ideator says about its own proposal; it looks at the candidate
that results from it, at the profile, and at the history.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain import source
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.profile import Profile

_COMMAND_LIKE: Final = re.compile(
    r"^\s*(\S*/)?(nvcc|choreo|cc|gcc|clang|ncu|bash|sh|python3?|make)\s+-|^\s*-[A-Za-z-]+(\s+-\S+)*\s*$"
)
#: Libraries whose calls are forbidden in iter001 and later.
_LIBRARY_CALL: Final = re.compile(
    r"\b(cublas\w*|cudnn\w*|cusparse\w*|cutlass::gemm::device\w*|cblas_\w+|[sd]gemm_?)\s*\(|"
    r"#\s*include\s*[<\"](cublas|cudnn|cusparse|cblas|mkl|torch/)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Facts:
    """What the guards look at.

    Attributes:
        proposal: The proposal.
        candidate: What results from it.
        base: Candidate of the base that it names.
        active_bases: Iteration numbers of the active bases.
        profile: Profile of this round; None when none was taken.
        macro_run: Consecutive macro-only rounds before this one.
        macro_limit: Longest run of macro-only rounds.
        is_tried: Whether a normalised hash was tried in the session.
        has_fingerprint: Whether a fingerprint was taken in the session.
    """

    proposal: Proposal
    candidate: Candidate
    base: Candidate
    active_bases: tuple[int, ...]
    profile: Profile | None
    macro_run: int
    macro_limit: int
    is_tried: Callable[[str], bool]
    has_fingerprint: Callable[[str], bool]


Guard = Callable[[Facts], str | None]


def identity(candidate: Candidate) -> str:
    """Normalised hash of source, flags and patches."""
    patches = "\1".join(f"{p.search}\2{p.replace}" for p in candidate.patches)
    return source.normalised_hash(candidate.source, candidate.flags, patches)


def is_macro_only(candidate: Candidate, base: Candidate) -> bool:
    """Whether only values of macros differ (flags and patches count as structure)."""
    return (
        candidate.flags == base.flags
        and candidate.patches == base.patches
        and source.structure_hash(candidate.source) == source.structure_hash(base.source)
    )


def fingerprint(candidate: Candidate, base: Candidate) -> str:
    """Base x parameters x structure x flags, hex SHA-256."""
    parameters = sorted(source.macros(candidate.source).items())
    parts = (
        identity(base),
        repr(parameters),
        source.structure_hash(candidate.source),
        repr((candidate.flags, candidate.patches)),
    )
    return source.sha256("\1".join(parts))


def profiled_first(facts: Facts) -> str | None:
    """Rule 1: no idea without a profile of its base in this round."""
    return None if facts.profile is not None else "no profile was taken in this round"


def from_active_base(facts: Facts) -> str | None:
    """Rule 2: every candidate derives from one of at most two active bases."""
    if facts.proposal.base in facts.active_bases:
        return None
    active = ", ".join(f"iter{n:03d}" for n in facts.active_bases)
    return f"base iter{facts.proposal.base:03d} is not active (active: {active})"


def structural_when_due(facts: Facts) -> str | None:
    """Rule 3: after two macro-only rounds a structural change."""
    if facts.macro_run < facts.macro_limit or not is_macro_only(facts.candidate, facts.base):
        return None
    return f"{facts.macro_run} macro-only rounds in a row; a structural change is due"


def not_repeated(facts: Facts) -> str | None:
    """Rule 4: no combination twice, by fingerprint and by normalised source."""
    if identity(facts.candidate) == identity(facts.base):
        return "the candidate equals its base"
    if facts.is_tried(identity(facts.candidate)):
        return "this source with these flags was tried before"
    if facts.has_fingerprint(fingerprint(facts.candidate, facts.base)):
        return "this combination of base, parameters, structure and flags was tried before"
    return None


def understood(facts: Facts) -> str | None:
    """Rule 6: the hypothesis rests on named metrics that the profile really has."""
    if facts.profile is None:
        return None
    if not facts.proposal.metrics:
        return "the hypothesis names no metric"
    absent = [m for m in facts.proposal.metrics if facts.profile.metric(m) is None]
    return f"the profile has no metric {', '.join(absent)}" if absent else None


def summary_in_words(facts: Facts) -> str | None:
    """Rule 7: the summary is a description, not a command line."""
    if _COMMAND_LIKE.search(facts.proposal.summary):
        return "the summary is a command line, not a description"
    return None


def no_library(facts: Facts) -> str | None:
    """No library calls in iter001 and later."""
    found = _LIBRARY_CALL.search(source.strip_comments(facts.candidate.source))
    return f"library call or header {found.group(0)!r} is forbidden" if found else None


#: All guards of IDEATE, in the order in which they are asked.
GUARDS: Final[tuple[Guard, ...]] = (
    profiled_first,
    from_active_base,
    not_repeated,
    structural_when_due,
    understood,
    summary_in_words,
    no_library,
)


def refusals(facts: Facts) -> list[str]:
    """Reasons of all guards that refuse, each led by the guard's name."""
    found = [(guard.__name__, guard(facts)) for guard in GUARDS]
    return [f"{name}: {reason}" for name, reason in found if reason is not None]
