"""Edits of the generated ``.cu`` text that no ``.co`` text can express.

Each is exact and unique in the base's own generated text, or is not proposed at all. A uniform
index and a wider promotion do not depend on the numbers of a configuration, so they may stay on
a base whose macros change; the store by warpgroup is written anew for the numbers that change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from croq_fsm.domain.ideas import Replace
from croq_fsm.ideators.rules.croqtile_config import WARPGROUP, WGMMA_M, Gemm

_INDEX: Final = "auto __choreo_vg4id_x = threadIdx.x / 128;"
_UNIFORM_INDEX: Final = "auto __choreo_vg4id_x = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);"

_PROMOTION: Final = "CU_TENSOR_MAP_L2_PROMOTION_L2_128B"
_WIDER: Final = "CU_TENSOR_MAP_L2_PROMOTION_L2_256B"

#: From the last line that names an operand's tensor map to its promotion.
_MAP: Final = re.compile(
    r"(?P<name>__choreo_tma_\d+)_elem_strides,\n(?:[^\n;]*\n){1,3}?[^\n;]*" + _PROMOTION
)
_OPERANDS: Final = 2


#: Indentation of the epilogue in the generated text of a persistent member.
_EPILOGUE: Final = "\n" + " " * 10

#: Marks the patches of a store by warpgroup: the one that moves a warpgroup's rows out alone.
_OWN_ROWS: Final = " + strip * 64), out_s + strip * "


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


def group_store(config: Gemm, generated: str) -> tuple[Replace, ...]:
    """Let each warpgroup write its own rows out, without meeting the others."""
    return _checked(generated, _group_store(config)) if can_store_by_group(config) else ()


def can_store_by_group(config: Gemm) -> bool:
    """Whether a member's rows can leave by warpgroup: plain rows, one block of 64 for each."""
    plain = config.layout == "rows" and config.staging == "tile" and config.turns == 1
    walks = config.ctas > 0 and config.guard == "barrier"
    return plain and walks and config.consumers > 1 and config.rows == 1


def stores_by_group(patches: Iterable[Replace]) -> bool:
    """Whether patches make the output leave by warpgroup."""
    return any(_OWN_ROWS in patch.replace for patch in patches)


def _group_store(config: Gemm) -> tuple[Replace, ...]:
    """The patches for a member; see the comments for what keeps the staging tile right.

    A warpgroup's rows of the staging tile are its own. Its first thread starts the copy and
    waits, before the next tile's rows are written, until the copy has read them; a barrier of
    the warpgroup alone makes the others wait for it. Before a block ends, all copies were read.
    """
    threads, own = WARPGROUP * config.consumers, _own_barrier()
    meet = f"choreo::named_barrier_sync({threads}, 15);"
    fence = "cde::fence_proxy_async_shared_cta();"
    read = "cde::cp_async_bulk_wait_group_read<0>();"
    one = f"if (threadIdx.x % {WARPGROUP} == 0)"
    first = " || ".join(f"threadIdx.x == {WARPGROUP * (i + 1)}" for i in range(config.consumers))
    guard = f'asm volatile("bar.sync %0, %1;" :: "r"(1), "r"({threads}) : "memory");'
    elected = f"if (({first}) && __choreo_vg4id_x == 1) {{"
    box = "{{(uint32_t)({}), (uint32_t)({})}};\n  uint32_t __choreo_tma_2_elem"
    at = f"(block_m * {config.tile_m}"
    pairs = (
        (guard, f"{one} {read}{_EPILOGUE}{own}"),
        (
            _EPILOGUE.join((meet, fence, meet, elected)),
            _EPILOGUE.join((fence, own, f"{one} {{")),
        ),
        (f"{at}), out_s);", f"{at}{_OWN_ROWS}{WGMMA_M * config.tile_n});"),
        (f"{_EPILOGUE}  {read}", ""),
        (
            "  } // end inthreads\n  } // end parallel-by",
            f"  }} // end inthreads\n  {read}\n  }} // end parallel-by",
        ),
        (box.format(config.tile_n, config.tile_m), box.format(config.tile_n, WGMMA_M)),
    )
    return tuple(Replace(search=search, replace=text) for search, text in pairs)


def _own_barrier() -> str:
    """A barrier of one consumer; 0 and 15 are the compiler's."""
    return f'asm volatile("bar.sync %0, %1;" :: "r"(1 + strip), "r"({WARPGROUP}) : "memory");'


def has_uniform(patches: Iterable[Replace]) -> bool:
    """Whether the index is made uniform by a patch."""
    return any(patch.replace == _UNIFORM_INDEX for patch in patches)


def carried(patches: tuple[Replace, ...], config: Gemm) -> tuple[Replace, ...]:
    """Patches that apply when the base is replaced by a member of the family.

    A uniform index is then part of the text, and a patch of unknown kind may rest on anything.
    """
    wider = (p for p in patches if _PROMOTION in p.search and _WIDER in p.replace)
    stays = stores_by_group(patches) and can_store_by_group(config)
    return (*wider, *(_group_store(config) if stays else ()))


def adapted(patches: tuple[Replace, ...], base: Gemm, config: Gemm) -> tuple[Replace, ...]:
    """Patches of a base whose macros change from ``base`` to ``config``."""
    if not stores_by_group(patches):
        return patches
    old = set(_group_store(base))
    others = tuple(patch for patch in patches if patch not in old)
    return (*others, *(_group_store(config) if can_store_by_group(config) else ()))


def _checked(generated: str, edits: tuple[Replace, ...]) -> tuple[Replace, ...]:
    """The edits when each matches exactly once, else none."""
    return edits if all(generated.count(edit.search) == 1 for edit in edits) else ()
