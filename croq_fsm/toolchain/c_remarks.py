"""Reading what the compiler says about loops: which it vectorised, which not, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

#: File that gcc writes its notes to.
FILE: Final = "remarks.txt"

_MOST: Final = 16
_GCC: Final = re.compile(r"^kernel\.c:(\d+):(\d+): (?:optimized|missed): +(.*)$", re.MULTILINE)
_CLANG: Final = re.compile(
    r"^kernel\.c:(\d+):(\d+): remark: (.*?) \[-R(pass|pass-missed|pass-analysis)=", re.MULTILINE
)
_FAILED: Final = "couldn't vectorize loop"
_REASON: Final = re.compile(r"(?:not vectorized: |statement (?=clobbers))(.*?)[. ;]*$")
#: Reasons that merely say that a loop has loops inside; those are told by themselves.
_OUTER: Final = re.compile(r"multiple nested loops|loop nest containing|control flow in loop")
_TEMPORARY: Final = re.compile(r"\b_\d+ = ")
_UNKNOWN: Final = "no reason given"

#: Line and column of a loop → what was said about it.
_Notes = dict[tuple[int, int], str]


@dataclass(frozen=True)
class Loops:
    """What became of the loops.

    Attributes:
        vectorized: Loops that were vectorised.
        missed: Innermost loops that were not.
        remarks: A sentence for each, most important first, at most 16.
    """

    vectorized: int
    missed: int
    remarks: tuple[str, ...]


def flags(kind: str) -> tuple[str, ...]:
    """Flags that make the compiler talk."""
    if kind == "clang":
        passes = ("-Rpass", "-Rpass-missed", "-Rpass-analysis")
        return tuple(f"{name}=loop-vectorize" for name in passes)
    return (f"-fopt-info-vec-optimized-missed={FILE}",)


def read(text: str) -> Loops:
    """Read the notes of gcc, or the remarks of clang.

    A loop may be tried several times; when any attempt succeeded, it counts as vectorised.
    """
    done, failed = _clang(text) if " remark: " in text else _gcc(text)
    missed = {
        place: why for place, why in failed.items() if place not in done and not _OUTER.search(why)
    }
    remarks = [f"line {line}: not vectorized: {why}" for (line, _), why in sorted(missed.items())]
    remarks += [f"line {line}: {how}" for (line, _), how in sorted(done.items())]
    return Loops(len(done), len(missed), tuple(remarks[:_MOST]))


def _gcc(text: str) -> tuple[_Notes, _Notes]:
    """A reason follows its loop, at the place of the statement that is to blame."""
    done: _Notes = {}
    failed: _Notes = {}
    current: tuple[int, int] | None = None
    for match in _GCC.finditer(text):
        place, what = (int(match[1]), int(match[2])), match[3].strip()
        if what.startswith("loop vectorized"):
            # The first is the loop itself, later ones are its remainder in smaller vectors.
            done.setdefault(place, what)
            current = None
        elif what == _FAILED:
            current = place
            failed.setdefault(place, _UNKNOWN)
        elif current and failed[current] == _UNKNOWN and (reason := _REASON.match(what)):
            failed[current] = _TEMPORARY.sub("", reason[1])
    return done, failed


def _clang(text: str) -> tuple[_Notes, _Notes]:
    done: _Notes = {}
    failed: _Notes = {}
    for match in _CLANG.finditer(text):
        place, what, kind = (int(match[1]), int(match[2])), match[3], match[4]
        if kind == "pass":
            done.setdefault(place, what)
        elif kind == "pass-analysis" or place not in failed:
            reason = what.removeprefix("loop not vectorized").lstrip(": ")
            failed[place] = reason or _UNKNOWN
    return done, failed
