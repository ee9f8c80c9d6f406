"""Edits of the generated ``.cu`` text that no ``.co`` text can express.

Each is exact and unique in the base's own generated text, or is not proposed at all. The two
kinds below do not depend on the numbers of a configuration, so they may stay on a base whose
macros change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from croq_fsm.domain.ideas import Replace

_INDEX: Final = "auto __choreo_vg4id_x = threadIdx.x / 128;"
_UNIFORM_INDEX: Final = "auto __choreo_vg4id_x = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);"

_PROMOTION: Final = "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"
_WIDER: Final = "CU_TENSOR_MAP_L2_PROMOTION_L2_256B"

#: From the last line that names an operand's tensor map to its promotion.
_MAP: Final = re.compile(
    r"(?P<name>__choreo_tma_\d+)_elem_strides,\n(?:[^\n;]*\n){1,3}?[^\n;]*" + _PROMOTION
)
_OPERANDS: Final = 2


def uniform_index(generated: str) -> tuple[Replace, ...]:
    """Broadcast the warpgroup's index, so that what depends on it is known to be uniform."""
    return _checked(generated, (Replace(search=_INDEX, replace=_UNIFORM_INDEX),))


def wide_promotion(generated: str) -> tuple[Replace, ...]:
    """Let the operands' tensor maps (the first two) fetch 256 bytes into L2."""
    found = [m[0] for m in _MAP.finditer(generated)][:_OPERANDS]
    if len(found) < _OPERANDS:
        return ()
    edits = (Replace(search=text, replace=text.replace(_PROMOTION, _WIDER)) for text in found)
    return _checked(generated, tuple(edits))


def has_uniform(patches: Iterable[Replace]) -> bool:
    """Whether the index is made uniform by a patch."""
    return any(patch.replace == _UNIFORM_INDEX for patch in patches)


def carried(patches: Iterable[Replace]) -> Iterator[Replace]:
    """Patches that still apply when the base is replaced by a member of the family.

    A uniform index is then part of the text, and a patch of unknown kind may rest on anything.
    """
    for patch in patches:
        if _PROMOTION in patch.search and _WIDER in patch.replace:
            yield patch


def _checked(generated: str, edits: tuple[Replace, ...]) -> tuple[Replace, ...]:
    """The edits when each matches exactly once, else none."""
    return edits if all(generated.count(edit.search) == 1 for edit in edits) else ()
