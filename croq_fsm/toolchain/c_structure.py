"""Reading the structure of a C kernel from its text: what makes two kernels different designs."""

from __future__ import annotations

import re
from typing import Final

from croq_fsm.domain import source as text_of

#: Macros that cut a dimension: MC, NR, NV, TILE_M, BLOCK_K, MT …
_TILE: Final = re.compile(r"(?:[A-Z]+_)?(?P<dim>[MNK])(?:[A-Z]|_[A-Z]+)?")
_FOR: Final = re.compile(r"\bfor\s*\(([^;]*);([^;]*);")
_BOUND: Final = re.compile(r"[<>]=?\s*(.+)$", re.DOTALL)
_INTRINSICS: Final = re.compile(r"\b_mm\d*_\w+|\bv(?:ld1|st1|fma|mul|add|dup)q?_\w+|\bsv\w+_f32")
_EXTENSIONS: Final = re.compile(r"\bvector_size\b|\bext_vector_type\b")
_SIMD_PRAGMA: Final = re.compile(r"#\s*pragma\s+omp\s+simd|#\s*pragma\s+GCC\s+ivdep")
_PARALLEL: Final = re.compile(r"#\s*pragma\s+omp\s+parallel")
_PACKED: Final = re.compile(r"\b\w*(?:pack|panel)\w*\s*(?:\(|\[)", re.IGNORECASE)
_ALLOCATES: Final = re.compile(r"\b(?:malloc|calloc|aligned_alloc|posix_memalign)\s*\(")
_NUMBER: Final = re.compile(r"\(?\d+\)?")
_MOST_LOOPS: Final = 16


def structure_of(source: str) -> dict[str, str]:
    """Structural features of a kernel.

    ``loops`` names the dimension of each loop in order of the text, ``tile`` the sizes that
    its macros set, ``packing``, ``vectors``, ``threads``, ``memory`` how data is brought to the
    arithmetic, and ``passes`` (softmax) how often a row is walked.
    """
    code = text_of.strip_comments(source)
    features = {
        "loops": _loops(code),
        "tile": _sizes(source),
        "packing": "yes" if _PACKED.search(code) else "no",
        "vectors": _vectors(code),
        "threads": "openmp" if _PARALLEL.search(code) else "one",
        "memory": "heap" if _ALLOCATES.search(code) else "stack or static",
    }
    if re.search(r"\bsoftmax\s*\(", code):
        features["passes"] = str(sum(1 for loop in _bounds(code) if _dimension(loop) == "cols"))
        features["exponential"] = "library" if re.search(r"\bexpf?\s*\(", code) else "own"
    return features


def _bounds(code: str) -> list[str]:
    """What each ``for`` compares its counter with, in order of the text."""
    conditions = (match.group(2) for match in _FOR.finditer(code))
    found = (_BOUND.search(condition) for condition in conditions)
    return [match.group(1).strip() if match else "?" for match in found]


def _loops(code: str) -> str:
    return " ".join([_dimension(bound) for bound in _bounds(code)][:_MOST_LOOPS])


def _dimension(bound: str) -> str:
    """Dimension that a loop's bound belongs to; a constant stays itself, the rest is ``*``."""
    words = re.findall(r"[A-Za-z_]\w*", bound)
    for word in words:
        if word in ("m", "n", "k", "rows", "cols"):
            return str(word)
    for word in words:
        if tile := _TILE.fullmatch(word):
            return f"{tile['dim'].lower()}-tile"
    constants = [word.lower() for word in words if word.isupper()]
    return constants[0] if constants else bound if bound.isdigit() else "*"


def _sizes(source: str) -> str:
    """Macros with a whole number as value, sorted; ``none`` for a kernel without."""
    found = text_of.macros(source)
    sizes = sorted(f"{name}={value}" for name, value in found.items() if _NUMBER.fullmatch(value))
    return " ".join(sizes) or "none"


def _vectors(code: str) -> str:
    if _INTRINSICS.search(code):
        return "intrinsics"
    if _EXTENSIONS.search(code):
        return "extensions"
    return "pragma" if _SIMD_PRAGMA.search(code) else "compiler"
