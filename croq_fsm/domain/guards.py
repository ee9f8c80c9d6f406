"""The protocol's rules as guards: pure functions over facts, each a reason or None.

A guard never trusts what an ideator says about its own proposal; it looks at the candidate
that results from it, at the profile, and at the history. A reason says what is wrong and what
to do instead, for the ideator reads it before its next proposal. What no proposal can break,
because the engine alone does it, is named in :data:`RULES` beside the guards.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain import escalation, own_host, protected, source
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.profile import Profile

_COMMAND_LIKE: Final = re.compile(
    r"^\s*(\S*/)?(nvcc|choreo|cc|gcc|clang|ncu|bash|sh|python3?|make)\s+-|"
    r"^\s*--?[A-Za-z][\w=,.+:/-]*(\s+-\S+)*\s*$"
)
#: Libraries whose calls are forbidden in iter001 and later.
_LIBRARY_CALL: Final = re.compile(
    r"\b(cublas\w*|cudnn\w*|cusparse\w*|cutlass::gemm::device\w*|cblas_\w+|[sd]gemm_?)\s*\(|"
    r"#\s*include\s*[<\"](cublas|cudnn|cusparse|cblas|mkl|torch/)|"
    r"(?<!\S)-l(cublas|cudnn|cusparse|blas|openblas|mkl)\w*",
    re.IGNORECASE,
)
#: No single change of a kernel makes it more than so many times faster.
_LARGEST_GAIN: Final = 100.0
#: Shortest note on what was looked up that says anything.
_SHORTEST_BASIS: Final = 20
_SPARSE: Final = "gemm_sp"
#: Depth of one sparse WGMMA step in elements, by dtype word.
_SPARSE_DEPTH: Final = {"f16": 32, "bf16": 32}
_META_RATIO: Final = 32


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
        operator: Operator of the task, or "".
        dtype: Dtype word of the task, or "".
        escalation: Level of escalation.
        own_host: DSL of a task whose kernel runs in a host part of its own, else "".
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
    operator: str = ""
    dtype: str = ""
    escalation: int = 0
    own_host: str = ""


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
    if facts.profile is not None:
        return None
    return "no profile was taken in this round; profile the base before proposing anything"


def from_active_base(facts: Facts) -> str | None:
    """Rule 2: every candidate derives from one of at most two active bases."""
    if facts.proposal.base in facts.active_bases:
        return None
    active = ", ".join(f"iter{n:03d}" for n in facts.active_bases)
    return (
        f"base iter{facts.proposal.base:03d} is not active; derive the idea from one of the "
        f"active bases: {active}"
    )


def structural_when_due(facts: Facts) -> str | None:
    """Rule 3: after two macro-only rounds a structural change."""
    if facts.macro_run < facts.macro_limit or not is_macro_only(facts.candidate, facts.base):
        return None
    return (
        f"{facts.macro_run} macro-only rounds in a row; change the structure now: loops, "
        "topology, copies, synchronisation, output path, or compiler flags"
    )


def not_repeated(facts: Facts) -> str | None:
    """Rule 4: no combination twice, by fingerprint and by normalised source."""
    if identity(facts.candidate) == identity(facts.base):
        return "the candidate equals its base; change something that a compiler can see"
    if facts.is_tried(identity(facts.candidate)):
        return "this source with these flags was tried before; propose another combination"
    if facts.has_fingerprint(fingerprint(facts.candidate, facts.base)):
        return (
            "this combination of base, parameters, structure and flags was tried before; "
            "propose another one"
        )
    return None


def attempts_left(attempt: int, limit: int) -> str | None:
    """Rule 5: an idea is given up after so many failed attempts; asked after each of them."""
    if attempt < limit:
        return None
    return f"{attempt} attempts failed; the idea is given up, propose a different one"


def understood(facts: Facts) -> str | None:
    """Rule 6: the hypothesis rests on named metrics that the profile really has."""
    if facts.profile is None:
        return None
    known = ", ".join(m.name for m in facts.profile.metrics[:12])
    if not facts.proposal.metrics:
        return f"the hypothesis names no metric; name those it rests on, of: {known}"
    absent = [m for m in facts.proposal.metrics if facts.profile.metric(m) is None]
    if absent:
        return f"the profile has no metric {', '.join(absent)}; it has: {known}"
    silent = [m for m in facts.proposal.metrics if m not in facts.proposal.hypothesis]
    if silent:
        return f"the hypothesis does not mention {', '.join(silent)}; say what its value tells"
    return None


def summary_in_words(facts: Facts) -> str | None:
    """Rule 7: the summary is a description, not a command line."""
    if _COMMAND_LIKE.search(facts.proposal.summary):
        return "the summary is a command line; describe in words what changes"
    return None


def sparse_constraints(facts: Facts) -> str | None:
    """Rule 10: what the sparse tensor cores demand of a gemm_sp kernel."""
    if facts.operator != _SPARSE:
        return None
    macros = source.macros(facts.candidate.source)
    problem = next(filter(None, _sparse_problems(macros, facts.dtype)), None)
    if problem is not None:
        return problem
    for flag in ("--use-warpspec", "--use-prepack"):
        if flag in facts.base.flags and flag not in facts.candidate.flags:
            return f"flag {flag} of the base is missing; sparse kernels need it, keep it"
    return None


def _sparse_problems(macros: dict[str, str], dtype: str) -> list[str | None]:
    def must(name: str, wanted: int | None, why: str) -> str | None:
        value = macros.get(name, "")
        if wanted is None or not value.isdigit() or int(value) == wanted:
            return None
        return f"{name} is {value} and must be {wanted}: {why}; leave it so"

    def number(name: str) -> int | None:
        value = macros.get(name, "")
        return int(value) if value.isdigit() else None

    packed, tile = number("SPMM_PACKED_TILE_K"), number("SPMM_TILE_K")
    return [
        must("SPMM_WARP_M", 64, "the height of a WGMMA"),
        must("SPMM_WARP_K", _SPARSE_DEPTH.get(dtype), f"the depth of a sparse WGMMA in {dtype}"),
        must("SPMM_TILE_K", None if packed is None else 2 * packed, "2 x SPMM_PACKED_TILE_K"),
        must(
            "SPMM_META_TILE_COLS",
            None if tile is None else tile // _META_RATIO,
            "SPMM_TILE_K / 32",
        ),
    ]


def no_library(facts: Facts) -> str | None:
    """No library calls in iter001 and later, in source, patches or flags."""
    candidate = facts.candidate
    text = candidate.source
    if facts.own_host:  # its own check may well call a library
        text = own_host.split(text, facts.own_host, facts.operator).kernel
    text = "\n".join(
        (
            source.strip_comments(text),
            *(patch.replace for patch in candidate.patches),
            *candidate.flags,
        )
    )
    found = _LIBRARY_CALL.search(text)
    if found is None:
        return None
    return f"library call or header {found.group(0)!r} is forbidden; write the computation itself"


def host_untouched(facts: Facts) -> str | None:
    """The host part, with its timing and checking, is not what is tuned."""
    if facts.own_host:
        hashes = {
            own_host.split(c.source, facts.own_host, facts.operator).host_hash
            for c in (facts.base, facts.candidate)
        }
        return None if len(hashes) == 1 else own_host.HOST_CHANGED
    before = protected.host_functions(facts.base.source)
    after = protected.host_functions(facts.candidate.source)
    if before == after:
        return None
    names = sorted({n for n in before.keys() | after.keys() if before.get(n) != after.get(n)})
    return (
        f"the host part ({', '.join(names)}) differs from the base's; leave it as it is and "
        "change the kernel only"
    )


def shape_untouched(facts: Facts) -> str | None:
    """The size of the problem is given by the task."""
    before, after = protected.sizes(facts.base), protected.sizes(facts.candidate)
    if before == after:
        return None
    names = sorted({n for n in before.keys() | after.keys() if before.get(n) != after.get(n)})
    return f"the problem size ({', '.join(names)}) must stay; change how it is computed, not what"


def verification_untouched(facts: Facts) -> str | None:
    """Nothing that switches checking or timing off comes in."""
    new = protected.switches(facts.candidate) - protected.switches(facts.base)
    if not new:
        return None
    return (
        f"{', '.join(sorted(new))} switches checking or timing off; remove it, every kernel is "
        "verified on its whole output"
    )


def modest(facts: Facts) -> str | None:
    """An expectation is no result: it is a fraction that a single change can give."""
    gain = facts.proposal.expected_gain
    if -1.0 < gain <= _LARGEST_GAIN:
        return None
    return (
        f"an expected gain of {gain:g} is no expectation; give a fraction such as 0.05 for 5 %. "
        "Results are measured by the engine alone"
    )


def researched(facts: Facts) -> str | None:
    """At the research level an idea says what it was looked up in."""
    if facts.escalation < escalation.RESEARCH:
        return None
    if len(facts.proposal.research_basis.strip()) >= _SHORTEST_BASIS:
        return None
    return (
        "this level of escalation asks for research; say in research_basis, in a sentence or "
        "two, what outside the local evidence the idea rests on (document, technique, known "
        "kernel)"
    )


#: All guards of IDEATE, in the order in which they are asked.
GUARDS: Final[tuple[Guard, ...]] = (
    profiled_first,
    from_active_base,
    not_repeated,
    structural_when_due,
    understood,
    summary_in_words,
    sparse_constraints,
    no_library,
    host_untouched,
    shape_untouched,
    verification_untouched,
    modest,
    researched,
)


@dataclass(frozen=True)
class Rule:
    """A rule of the protocol and what holds it.

    Attributes:
        key: ``rule 1`` … ``rule 10``, or the name of an anti-pattern or constraint.
        text: What it demands.
        holders: Guards by name, or the part of the engine that leaves no way around it.
    """

    key: str
    text: str
    holders: tuple[str, ...]


#: Every rule, anti-pattern and constraint of the protocol; a test proves each of them.
RULES: Final = (
    Rule("rule 1", "profile before every idea, class never unknown", ("profiled_first",)),
    Rule("rule 2", "derive from one of at most two distinct bases", ("from_active_base",)),
    Rule("rule 3", "after two macro-only rounds a structural change", ("structural_when_due",)),
    Rule("rule 4", "never repeat a combination", ("not_repeated",)),
    Rule("rule 5", "abandon an idea after five attempts", ("attempts_left",)),
    Rule("rule 6", "a hypothesis rests on measured metrics", ("understood",)),
    Rule("rule 7", "messages say what, why, result, decision", ("summary_in_words",)),
    Rule("rule 8", "tools are run by the engine only", ("layers: one place starts children",)),
    Rule("rule 9", "iteration numbers grow by one", ("database: allocated in STORE",)),
    Rule("rule 10", "constraints of gemm_sp", ("sparse_constraints",)),
    Rule("macros only", "not more than two macro-only rounds", ("structural_when_due",)),
    Rule("unknown class", "the bottleneck is never unknown", ("type Bottleneck",)),
    Rule("repetition", "nothing that is in the log again", ("not_repeated",)),
    Rule("other base", "no kernel that is not an active base", ("from_active_base",)),
    Rule("command line", "the summary is no command line", ("summary_in_words",)),
    Rule("no profile", "profiling is not skipped", ("profiled_first",)),
    Rule("own records", "results are not written by hand", ("layers: SQL in storage only",)),
    Rule("made-up numbers", "no number that was not measured", ("type Proposal", "modest")),
    Rule("library", "no library calls in iter001 and later", ("no_library",)),
    Rule("host part", "the host part is untouchable", ("host_untouched",)),
    Rule("shape", "the problem size is untouchable", ("shape_untouched",)),
    Rule("verification", "checking and timing stay on", ("verification_untouched",)),
    Rule("research", "research has a basis at the research level", ("researched",)),
)


def refusals(facts: Facts) -> list[str]:
    """Reasons of all guards that refuse, each led by the guard's name."""
    found = [(guard.__name__, guard(facts)) for guard in GUARDS]
    return [f"{name}: {reason}" for name, reason in found if reason is not None]
