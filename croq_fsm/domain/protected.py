"""What of a source no proposal may change: host part, problem size, verification and timing.

Known operators run in a harness of ours, which no candidate can reach; a kernel may still bring
a host part of its own, and then it is the ruler and not the thing that is measured. Pure text.
"""

from __future__ import annotations

import re
from typing import Final

from croq_fsm.domain import source
from croq_fsm.domain.build import Candidate

#: Functions of a host part: the program itself, and what checks or times for it.
_HOST: Final = re.compile(
    r"\b(?P<name>main|(?:cpu_|host_)?(?:verify|reference|validate|benchmark)\w*)"
    r"\s*\([^;{}]*\)\s*(?:const\s*)?\{"
)
#: Macros that hold the size of the problem.
_SIZE: Final = re.compile(r"(?:\w+_)?(?:DEFAULT|PROBLEM)_(?:SIZE_)?(?:M|N|K|B|ROWS|COLS)")
#: Words that switch checking or timing off in kernels which bring their own host part.
_SWITCH: Final = re.compile(
    r"\b\w*(?:skip|disable|no)_?(?:verif(?:y|ication)|check(?:s|ing)?|timing)\w*\b", re.IGNORECASE
)
_LITERAL: Final = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")
_DEFINING: Final = re.compile(r"-(?:Xcompiler[= ])?D\s*(\w+)")


def host_functions(text: str) -> dict[str, str]:
    """Functions of the host part by name, normalised; empty when there is no host part."""
    plain = source.strip_comments(text)
    blanked = _LITERAL.sub(lambda m: "_" * len(m.group(0)), plain)
    return {
        match["name"]: source.normalise(plain[match.start() : _end(blanked, match.end())])
        for match in _HOST.finditer(blanked)
    }


def _end(text: str, start: int) -> int:
    """Where the block that was opened just before ``start`` ends."""
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    return len(text)


def sizes(candidate: Candidate) -> dict[str, str]:
    """Macros of the problem size, in the source or given by a flag."""
    found = {n: v for n, v in source.macros(candidate.source).items() if _SIZE.fullmatch(n)}
    for flag in candidate.flags:
        match = _DEFINING.search(flag)
        if match and _SIZE.fullmatch(match[1]):
            found[match[1]] = flag
    return found


def switches(candidate: Candidate) -> set[str]:
    """Words in source, flags and patches that switch checking or timing off."""
    text = "\n".join(
        (
            source.strip_comments(candidate.source),
            *candidate.flags,
            *(patch.replace for patch in candidate.patches),
        )
    )
    return {match.group(0) for match in _SWITCH.finditer(text)}
