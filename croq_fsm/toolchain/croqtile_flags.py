"""Which compiler flags a candidate may bring, and for which compiler.

A flag of a candidate is written ``choreo:<flag>`` or ``nvcc:<flag>``, for example
``choreo:--stmatrix=false`` or ``nvcc:-maxrregcount=168``. Only flags of the lists below pass:
a compiler flag can read files, load plug-ins or change what the harness measures. The Choreo
flags must moreover be known to the compiler at hand, since its dialects drift.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from croq_fsm.errors import CompileFailed

#: Choreo options that may change the generated kernel, in either dialect.
_CHOREO: Final = frozenset(
    {
        "--apprx-div",
        "--assume-aligned-global",
        "--disable-runtime-check",
        "--hoist-offset",
        "--hoist-scale",
        "--loop-norm",
        "--mem-reuse",
        "--native-bf16",
        "--native-f16",
        "--no-map-hoist",
        "--no-vectorize",
        "--ptx-barrier",
        "--stmatrix",
        "--tma-cluster-aware",
        "--use-prepack",
        "--use-prepack-v2",
        "--use-warpspec",
        "--vectorize",
        "-fopt-dma",
        "-zero-cost",
        "--zero-cost",
    }
)
_VALUE: Final = re.compile(r"^(?:true|false)$")
_NVCC: Final = re.compile(
    r"^(?:-{1,2}maxrregcount=(?P<registers>\d{2,3})|--use_fast_math|-DNDEBUG|-O[123]"
    r"|-Xptxas=-O[123]|-Xptxas=--allow-expensive-optimizations=(?:true|false)"
    r"|-Xptxas=-{1,2}def-load-cache=c[agv]|--extra-device-vectorization|--ftz=(?:true|false)"
    r"|--prec-div=(?:true|false)|--fmad=(?:true|false))$"
)
_MIN_REGISTERS, _MAX_REGISTERS = 24, 255

#: The nvcc flags of the list above, for people and ideators.
NVCC_FORMS: Final = (
    "nvcc:-maxrregcount=N nvcc:--use_fast_math nvcc:-DNDEBUG nvcc:-O[123] nvcc:-Xptxas=-O[123] "
    "nvcc:-Xptxas=--allow-expensive-optimizations=BOOL nvcc:-Xptxas=--def-load-cache=c[agv] "
    "nvcc:--extra-device-vectorization nvcc:--ftz=BOOL nvcc:--prec-div=BOOL nvcc:--fmad=BOOL"
)


@dataclass(frozen=True)
class Flags:
    """A candidate's flags by compiler, in their order."""

    choreo: tuple[str, ...]
    nvcc: tuple[str, ...]


def split_flags(flags: Iterable[str], known: frozenset[str]) -> Flags:
    """Sort a candidate's flags by compiler.

    Args:
        flags: ``choreo:…`` and ``nvcc:…``.
        known: Option names of the Choreo compiler at hand.

    Raises:
        CompileFailed: A flag has no prefix, is not on the list, or is not known.
    """
    parts: dict[str, list[str]] = {"choreo": [], "nvcc": []}
    for flag in flags:
        problem = flag_problem(flag, known)
        if problem:
            raise CompileFailed(problem)
        compiler, _, text = flag.partition(":")
        parts[compiler].append(text)
    return Flags(choreo=tuple(parts["choreo"]), nvcc=tuple(parts["nvcc"]))


def flag_problem(flag: str, known: frozenset[str]) -> str:
    """Why a candidate may not bring this flag; "" when it may."""
    compiler, colon, text = flag.partition(":")
    if not colon or compiler not in ("choreo", "nvcc"):
        return f"flag {flag!r} must begin with 'choreo:' or 'nvcc:'"
    if compiler == "choreo":
        return _choreo_problem(text, known)
    match = _NVCC.match(text)
    if match is None:
        return f"nvcc flag {text!r} is not on the list of allowed flags"
    registers = match["registers"]
    if registers and not _MIN_REGISTERS <= int(registers) <= _MAX_REGISTERS:
        return f"nvcc flag {text!r}: registers must be {_MIN_REGISTERS} to {_MAX_REGISTERS}"
    return ""


def allowed_flags(known: frozenset[str]) -> list[str]:
    """Choreo flags that this compiler knows and a candidate may bring, with their prefix."""
    return sorted(f"choreo:{name}" for name in _CHOREO & known)


def _choreo_problem(text: str, known: frozenset[str]) -> str:
    name, equals, value = text.partition("=")
    if name not in _CHOREO or (equals and not _VALUE.match(value)):
        return f"Choreo flag {text!r} is not on the list of allowed flags"
    if name not in known:
        return f"this Choreo compiler does not know the flag {name!r}"
    return ""
