"""Edits of the generated ``.cu`` text that no ``.co`` text can express.

Each is exact and unique in the base's own generated text, or is not proposed at all. A uniform
index and a wider promotion do not depend on the numbers of a configuration, so they may stay on
a base whose macros change; the store by warpgroup is written anew for the numbers that change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
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

#: First row of a warpgroup in the tile.
_OWN: Final = f"strip * {WGMMA_M}"

#: Marks the patches of a store by warpgroup: a warpgroup's rows move out alone.
_MARK: Final = "out_s + strip * "

_FENCE: Final = "cde::fence_proxy_async_shared_cta();"
_READ: Final = "cde::cp_async_bulk_wait_group_read<0>();"


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
    """Whether a member's rows can leave by warpgroup: a block of 64 rows for each of several."""
    walks = config.ctas > 0 and config.guard == "barrier" and config.staging == "tile"
    # A lone panel leaves by a copy of another form.
    several = config.layout == "rows" or config.tile_n // config.turns > config.panel
    return walks and several and config.consumers > 1 and config.rows == 1


def stores_by_group(patches: Iterable[Replace]) -> bool:
    """Whether patches make the output leave by warpgroup."""
    return any(_MARK in patch.replace for patch in patches)


def _group_store(config: Gemm) -> tuple[Replace, ...]:
    """The patches for a member.

    A warpgroup's rows of the staging tile are its own. Its first thread starts the copy and
    waits, before rows are written again, until the copy has read them; a barrier of the
    warpgroup alone makes the others wait for it. Before a block ends, all copies were read.
    """
    text = _Epilogue.of(config)
    pairs = _panels(text) if config.layout == "panels" else _rows(text)
    end = "  } // end inthreads\n", "  } // end parallel-by"
    pairs.append(("".join(end), f"  {_READ}\n".join(end)))
    return tuple(Replace(search=search, replace=text) for search, text in pairs)


@dataclass(frozen=True)
class _Epilogue:
    """Pieces of the epilogue as the compiler writes it, and as the patches want it.

    Attributes:
        config: The member.
        guard: Barrier of all consumers before the staging tile is written.
        meet: Barrier of all consumers before the copy.
        elected: Opens the block of the thread that copies.
        own: Barrier of one warpgroup; 0 and 15 are the compiler's.
        one: Names a warpgroup's first thread.
    """

    config: Gemm
    guard: str
    meet: str
    elected: str
    own: str
    one: str

    @classmethod
    def of(cls, config: Gemm) -> _Epilogue:
        """For the numbers of a member."""
        threads = WARPGROUP * config.consumers
        first = (f"threadIdx.x == {WARPGROUP * (i + 1)}" for i in range(config.consumers))
        return cls(
            config=config,
            guard=f'asm volatile("bar.sync %0, %1;" :: "r"(1), "r"({threads}) : "memory");',
            meet=f"choreo::named_barrier_sync({threads}, 15);",
            elected=f"if (({' || '.join(first)}) && __choreo_vg4id_x == 1) {{",
            own=f'asm volatile("bar.sync %0, %1;" :: "r"(1 + strip), "r"({WARPGROUP}) : "memory");',
            one=f"if (threadIdx.x % {WARPGROUP} == 0)",
        )

    @property
    def free(self) -> str:
        """The warpgroup's rows may be written again."""
        return f"{self.one} {_READ}{_EPILOGUE}{self.own}"

    def box(self, turn: int, *sizes: int) -> str:
        """Sizes of the box that an output's copy moves, up to the next declaration."""
        listed = ", ".join(f"(uint32_t)({size})" for size in sizes)
        return f"{{{listed}}};\n  uint32_t __choreo_tma_{2 + turn}_elem"


def _rows(text: _Epilogue) -> list[tuple[str, str]]:
    """Plain rows: one copy of the tile becomes one for each warpgroup."""
    config, at = text.config, f"(block_m * {text.config.tile_m}"
    return [
        (text.guard, text.free),
        (
            _EPILOGUE.join((text.meet, _FENCE, text.meet, text.elected)),
            _EPILOGUE.join((_FENCE, text.own, f"{text.one} {{")),
        ),
        (f"{at}), out_s);", f"{at} + {_OWN}), out_s + strip * {WGMMA_M * config.tile_n});"),
        (f"{_EPILOGUE}  {_READ}", ""),
        (text.box(0, config.tile_n, config.tile_m), text.box(0, config.tile_n, WGMMA_M)),
    ]


def _panels(text: _Epilogue) -> list[tuple[str, str]]:
    """Panels: each warpgroup's rows of all panels of a turn lie together, and leave together."""
    config, pairs = text.config, list[tuple[str, str]]()
    width, at = config.tile_n // config.turns, f"(block_m * {config.tile_m}"
    count = width // config.panel
    commit = f"{_EPILOGUE}  cde::cp_async_bulk_commit_group();"
    for turn in range(config.turns):
        column = f"(anon_0 + {turn}) * {count}"
        if turn == 0:
            column = f"block_n * {config.tile_n // config.panel}"
        store = f"store_panels((float*)sums, ({config.element}*)out_s"
        shared = f"{store}, {config.tile_m}, (strip * {WGMMA_M})"
        mine = f"{store} + strip * {WGMMA_M * width}, {WGMMA_M}, 0"
        copy = (
            f"{_EPILOGUE}  cde::cp_async_bulk_tensor_3d_shared_to_global("
            f"&__choreo_tma_{2 + turn}_tensor_map, "
        )
        pairs += [
            (
                f"{text.guard}{_EPILOGUE}{shared}, {turn * width});",
                f"{text.free}{_EPILOGUE}{mine}, {turn * width});",
            ),
            (
                _EPILOGUE.join((_FENCE, text.meet, text.elected)) + copy,
                _EPILOGUE.join((_FENCE, text.own, f"{text.one} {{")) + copy,
            ),
            (
                f"{at}), ({column}), out_s);{commit}{_EPILOGUE}  {_READ}",
                f"{at} + {_OWN}), ({column}), out_s + strip * {WGMMA_M * width});{commit}",
            ),
            (
                text.box(turn, config.panel, config.tile_m, count),
                text.box(turn, config.panel, WGMMA_M, count),
            ),
        ]
    return pairs


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
