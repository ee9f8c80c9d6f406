"""Structural features of a ``.cu`` kernel, as its text shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.source import macros, strip_comments

#: Names that people give to the sizes of a tile, by dimension.
TILE_NAMES: Final = {
    "m": ("TILE_M", "BM", "BLOCK_M", "TM"),
    "n": ("TILE_N", "BN", "BLOCK_N", "TN"),
    "k": ("TILE_K", "BK", "BLOCK_K", "TK"),
}
STAGE_NAMES: Final = ("STAGES", "NUM_STAGES", "PIPE", "PIPELINE_STAGES", "kStages")

_MATH: Final = {
    "wgmma": re.compile(r"\bwgmma\."),
    "mma": re.compile(r"\bmma\.sync\b"),
    "wmma": re.compile(r"\bwmma::|\bmma_sync\b|\bwmma\.mma\b"),
}
_COPIES: Final = {
    "tma": re.compile(r"\bcp\.async\.bulk\b|\bcuTensorMapEncode\w*|\bcp_async_bulk"),
    "cp.async": re.compile(r"\bcp\.async\.c[ag]\b|\b__pipeline_memcpy_async\b|\bmemcpy_async\b"),
    "ldmatrix": re.compile(r"\bldmatrix\b"),
}
_EXTRAS: Final = {
    "clusters": re.compile(r"__cluster_dims__|\bcluster_group\b|\bcluster\.sync\b|\bmapa\b"),
    "register trade": re.compile(r"\bsetmaxnreg\b"),
    "split k": re.compile(r"\batomic(?:Add|Exch)\b|\bred\.(?:global|async)\b|\bSPLIT_?K\b"),
}
#: A block that goes on to another tile: a loop whose step is the grid.
_PERSISTENT: Final = re.compile(r"\+=\s*(?:static_cast<\w+>\(\s*)?gridDim\.x|\bNUM_SMS\b")


def structure(candidate: Candidate) -> dict[str, str]:
    """Structural features; what cannot be read is absent."""
    text = strip_comments(candidate.source)
    numbers = macros(candidate.source)
    features = {
        "tile": "x".join(first(numbers, names) for names in TILE_NAMES.values()).strip("x"),
        "stages": first(numbers, STAGE_NAMES),
        "math": _found(_MATH, text) or "scalar",
        "memory": _found(_COPIES, text),
        "schedule": "persistent" if _PERSISTENT.search(text) else "one tile per block",
        "extras": _found(_EXTRAS, text),
    }
    return {name: value for name, value in features.items() if value}


def first(numbers: dict[str, str], names: Iterable[str]) -> str:
    """Value of the first of the names that is a macro; "" when none is."""
    return next((numbers[name] for name in names if name in numbers), "")


def _found(kinds: dict[str, re.Pattern[str]], text: str) -> str:
    return ", ".join(name for name, pattern in kinds.items() if pattern.search(text))
