"""Kernels of unknown operators, which run in a host part of their own. Pure text.

For such an operator croq_fsm has no inputs, no reference and no library. The program's own host
part makes them, checks and times; what it says is labelled self-reported. So that it says the same
of every candidate, all that is not a kernel is frozen: its hash is taken of the start kernel, and a
candidate with another one is refused before any compile.

What is a kernel: in Choreo functions with ``__co__`` and device functions, in CUDA device
functions, in C the functions ``<operator>`` and ``<operator>_kernel…``; but never a function whose
name says that it judges or makes data (``ref``, ``check``, ``init`` …). Free beside them are values
of macros that are plain numbers and that the host part does not use.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from croq_fsm.domain import protected, source
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.operators import OPERATORS, Operator, Precision
from croq_fsm.errors import UsageError

#: What stands beside every number of such a session.
LABEL: Final = "self-reported"

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{1,39}")
_DTYPE: Final = re.compile(r"[a-z0-9_]{1,24}")
_ALIKE: Final = 0.8

_LITERAL: Final = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_DEFINE: Final = re.compile(r"\s*#\s*define\s+(?P<name>\w+)(?P<rest>.*)", re.DOTALL)
_NUMBERS: Final = re.compile(r"[\s0-9xXa-fA-FuUlL.()+*/%<>-]*")
_UNROLL: Final = re.compile(r"\s*#\s*pragma\s+(?:GCC\s+)?(?:unroll|ivdep)\b")
_TRANSPARENT: Final = re.compile(r"(?:\bnamespace\b[\w\s:]*|\bextern\s+\"_*\"\s*)$")
_MAIN: Final = re.compile(r"\bmain\s*\([^{}]*\)\s*$")
_ATTRIBUTE: Final = re.compile(r"__\w+__$|alignas$|decltype$")
_CALLED: Final = re.compile(r"([A-Za-z_]\w*)\s*\(")
#: Functions that judge or feed a kernel are no kernels, wherever they run.
_JUDGES: Final = re.compile(
    r"(?:^|_)(?:ref|reference|golden|check|verify|verification|validate|compare|init|fill|host|cpu)"
    r"(?:_|\d|$)",
    re.IGNORECASE,
)
_CHOREO: Final = re.compile(r"\b__co(?:k)?__\b")
_DEVICE: Final = re.compile(r"\b__(?:global|device)__\b")
_HOST: Final = re.compile(r"\b__host__\b")
_EMBEDDED: Final = re.compile(r"\b__cpp__\s*\(")
_SAYS: Final = re.compile(
    r"\b(printf|fprintf|puts|putchar|println|print|cout|fputs|fwrite|exit|_Exit|abort)\b"
)
_SWITCHED_ON: Final = re.compile(
    r"\b(?:bool|int|auto)\s+\w*(?:skip|disable|no)_?(?:verif|check|timing)\w*"
    r"\s*=\s*(?:true|[1-9]\d*)\b",
    re.IGNORECASE,
)
#: Flags that take assertions out of a host part, or comparisons with what is no number.
_HOST_FLAGS: Final = re.compile(r"-DNDEBUG|-Ofast|-ffast-math|-ffinite-math-only")
_OF: Final = {
    "c": "function with the operator's name",
    "cuda": "`__global__` or `__device__` function",
    "croqtile": "`__co__`, `__global__` or `__device__` function",
}


@dataclass(frozen=True)
class Parts:
    """A source, parted.

    Attributes:
        host: All that is frozen, normalised.
        kernel: Text of the kernel's functions.
        has_main: Whether the host part is a program.
    """

    host: str
    kernel: str
    has_main: bool

    @property
    def host_hash(self) -> str:
        """Identity of the host part, hex SHA-256."""
        return source.sha256(self.host)


def check_name(name: str) -> str:
    """The name of an operator that is not in the registry.

    Raises:
        UsageError: It is no name, or so like a known one that this one is meant.
    """
    known = ", ".join(sorted(OPERATORS))
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"operator {name!r}: a name is lower case letters, digits and _, at most 40; "
            f"known operators: {known}"
        )
    alike = difflib.get_close_matches(name, OPERATORS, n=1, cutoff=_ALIKE)
    if alike:
        raise UsageError(
            f"unknown operator {name!r}; did you mean {alike[0]!r}? An operator of your own needs "
            f"a name that is not so like a known one ({known})"
        )
    return name


def check_dtype(word: str) -> str:
    """A dtype word of an unknown operator; it names files and nothing else."""
    if not _DTYPE.fullmatch(word):
        raise UsageError(f"dtype {word!r}: use lower case letters, digits and _, at most 24")
    return word


def dims(count: int) -> tuple[str, ...]:
    """Names of so many sizes: ``s1``, ``s2`` and so on."""
    return tuple(f"s{i}" for i in range(1, count + 1))


@lru_cache(maxsize=64)
def operator(name: str, dtype: str, sizes: int, flops: int) -> Operator:
    """What is known of an unknown operator: its names, and the work that somebody said it is."""
    return Operator(
        name=name,
        dims=dims(sizes),
        precisions={dtype: Precision(tensors=(), accumulate="")},
        flops=lambda _sizes: flops,
        judged_by_time=False,
        reduction="",
    )


@lru_cache(maxsize=64)
def split(text: str, dsl: str, name: str) -> Parts:
    """Part a source into what is tuned and what is frozen.

    Args:
        text: Complete source.
        dsl: Its DSL, which says what a kernel is.
        name: The operator.
    """
    plain = source.strip_comments(text.replace("\\\n", " "))
    blanked = _LITERAL.sub(_blank, plain)
    host: list[str] = []
    kernels: list[str] = []
    directives: list[str] = []
    has_main = False
    for start, opened, end in _blocks(blanked):
        header = blanked[start:opened]
        if start == opened == end:
            continue
        if end > opened and _is_kernel(_without_directives(header), dsl, name):
            kernels.append(plain[start:end])
            directives += _frozen_inside(plain[start:end])
        else:
            host.append(plain[start:end])
            has_main = has_main or bool(_MAIN.search(header))
    frozen = "".join(host) + "\n" + "\n".join(directives)
    return Parts(source.normalise(_free_values(frozen)), "\n".join(kernels), has_main)


def problems(candidate: Candidate, dsl: str, name: str, wanted: str) -> list[str]:
    """Why a candidate may not be compiled; each a sentence.

    Args:
        candidate: The candidate.
        dsl: Its DSL.
        name: The operator.
        wanted: Hash of the start kernel's host part; "" before there is one.
    """
    parts = split(candidate.source, dsl, name)
    found = list(_lacks(parts, dsl, name))
    if wanted and parts.host_hash != wanted:
        found.append(HOST_CHANGED)
    found += [f"`{match}` switches checking or timing off; remove it" for match in _off(candidate)]
    if said := _SAYS.search(_LITERAL.sub("''", parts.kernel)):
        found.append(
            f"`{said[1]}` in the kernel: what is printed is the host part's word, and a kernel "
            "neither prints nor ends the program"
        )
    found += [
        f"flag {flag} is for the host part, too, and would change what its check sees; leave it out"
        for flag in candidate.flags
        if _HOST_FLAGS.search(flag)
    ]
    if candidate.patches:
        found.append("patches of generated code: it holds the host part, too; edit the source")
    return found


#: Why a candidate with another host part is refused.
HOST_CHANGED: Final = (
    "the host part differs from the start kernel's: all but the kernel's functions and free "
    "numeric macros must stay as it is, for it makes the inputs, checks and times"
)


def _lacks(parts: Parts, dsl: str, name: str) -> Iterator[str]:
    if not parts.has_main:
        yield (
            f"the source has no `main`: {name!r} is no operator that croq_fsm knows, so the kernel "
            "has to come with a program that makes its inputs, checks its output and prints its "
            f"time; or name a known operator ({', '.join(sorted(OPERATORS))})"
        )
    if not parts.kernel:
        yield f"the source has no {_OF[dsl]}, so nothing in it can be tuned"


def _off(candidate: Candidate) -> list[str]:
    """What switches checking or timing off: macros, flags and variables that are set."""
    plain = source.strip_comments(candidate.source)
    defined = {
        match["name"] for match in map(_DEFINE.match, plain.split("\n")) if match is not None
    }
    named = protected.switches(Candidate(source="\n".join(defined), flags=candidate.flags))
    return sorted(named | {m.group(0) for m in _SWITCHED_ON.finditer(plain)})


def _blank(match: re.Match[str]) -> str:
    text = match.group(0)
    return text[0] + "_" * (len(text) - 2) + text[-1]


def _blocks(text: str) -> Iterator[tuple[int, int, int]]:
    """Pieces of the top level: where each begins, its body opens, and it ends.

    A piece without a body (declarations, directives) has its end where its body would open.
    """
    start = position = 0
    while position < len(text):
        char = text[position]
        if char == "#" and not text[text.rfind("\n", 0, position) + 1 : position].strip():
            end = text.find("\n", position)
            position = len(text) if end < 0 else end + 1
            yield start, position, position
            start = position
        elif char in ";}" or (char == "{" and _TRANSPARENT.search(text[start:position])):
            position += 1
            yield start, position, position
            start = position
        elif char == "{":
            end = _closed(text, position)
            yield start, position, end
            start = position = end
        else:
            position += 1
    yield start, len(text), len(text)


def _closed(text: str, opened: int) -> int:
    depth = 0
    for position in range(opened, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    return len(text)


def _without_directives(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))


def _is_kernel(header: str, dsl: str, name: str) -> bool:
    if "(" not in header or "=" in header.split("(", 1)[0]:
        return False
    called = next((m for m in _CALLED.finditer(header) if not _ATTRIBUTE.match(m[1])), None)
    if called is None or _JUDGES.search(called[1]):
        return False
    if dsl == "c":
        return re.fullmatch(rf"{name}(_kernel\w*)?", called[1]) is not None
    if _HOST.search(header):
        return False
    return bool(_DEVICE.search(header) or (dsl == "croqtile" and _CHOREO.search(header)))


def _frozen_inside(text: str) -> Iterator[str]:
    """What in a kernel reaches beyond it: directives, and C++ of the host that Choreo passes on."""
    for line in text.split("\n"):
        if line.lstrip().startswith("#") and not _UNROLL.match(line):
            yield line
    for match in _EMBEDDED.finditer(text):
        yield text[match.start() : text.find(";", match.end()) + 1 or len(text)] + "\n"


def _free_values(text: str) -> str:
    """The frozen text with the values of free macros blanked."""
    lines = text.split("\n")
    defined = {n: m for n, line in enumerate(lines) if (m := _DEFINE.match(line))}
    used = set(_words(line for n, line in enumerate(lines) if n not in defined))
    reached = True
    while reached:
        more = {
            word
            for match in defined.values()
            if match["name"] in used
            for word in _WORD.findall(match["rest"])
        }
        reached = not more <= used
        used |= more
    for number, match in defined.items():
        if match["name"] not in used and _NUMBERS.fullmatch(match["rest"]):
            lines[number] = f"#define {match['name']} ?"
    return "\n".join(lines)


def _words(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from _WORD.findall(line)
