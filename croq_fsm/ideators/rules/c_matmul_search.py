"""Enumerating the tiled family: what is feasible, in the order in which it is worth a try."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from typing import Final

from croq_fsm.domain.states import Category
from croq_fsm.ideators.rules.c_matmul_family import (
    MOST_VECTORS,
    Shape,
    Tiles,
    canonical,
    cost,
    is_feasible,
    round_up,
)
from croq_fsm.ideators.rules.c_target import Target

_ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24)
_DEPTHS: Final = (32, 64, 96, 128, 176, 192, 256, 320, 384, 512, 768, 1024)
_BLOCKS: Final = (32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
_AHEAD: Final = (2, 4, 8, 16, 32)

#: Values of each field that the enumeration tries.
_VALUES: Final[dict[str, tuple[object, ...]]] = {
    "mr": _ROWS,
    "nv": tuple(range(1, MOST_VECTORS + 1)),
    "kc": _DEPTHS,
    "mc": _BLOCKS,
    "nc": _BLOCKS,
    "ahead": _AHEAD,
    "vector": (16, 32, 64),
    "blocked": (False, True),
    "order": ("jpi", "ipj"),
    "sweep": ("i", "j"),
    "pack_a": (False, True),
    "pack_b": (False, True),
    "unroll": (1, 2, 4, 8),
    "prefetch": ("none", "c", "b", "bc"),
}

_CATEGORY: Final = {
    "vector": Category.COMPUTE,
    "unroll": Category.COMPUTE,
    "pack_a": Category.MEMORY,
    "pack_b": Category.MEMORY,
    "blocked": Category.MEMORY,
    "prefetch": Category.PIPELINE,
    "ahead": Category.PIPELINE,
    "order": Category.PIPELINE,
    "sweep": Category.PIPELINE,
}

#: More changes at once than this are no neighbourhood any more.
_FARTHEST: Final = 3


def by_cost(configs: Iterable[Tiles], target: Target, shape: Shape) -> Iterator[Tiles]:
    """The feasible ones, cheapest by estimate first."""
    feasible = dict.fromkeys(c for c in configs if is_feasible(c, target))
    yield from sorted(feasible, key=lambda config: cost(config, target, shape))


def tile_shapes(config: Tiles) -> Iterator[Tiles]:
    """Every register tile, with the row block kept a multiple of it."""
    for mr, nv in product(_ROWS, range(1, MOST_VECTORS + 1)):
        mc = round_up(config.mc, mr) if config.blocked else config.mc
        yield config.model_copy(update={"mr": mr, "nv": nv, "mc": mc})


def neighbourhood(
    start: Tiles, target: Target, shape: Shape
) -> Iterator[tuple[Tiles, tuple[str, ...]]]:
    """Feasible members with the fields that were changed: one change first, then two, three."""
    seen = {canonical(start)}
    for distance in range(1, _FARTHEST + 1):
        ring: dict[Tiles, tuple[str, ...]] = {}
        for fields in combinations(_VALUES, distance):
            for config in _changed(start, fields):
                if config not in seen and is_feasible(config, target):
                    ring.setdefault(config, fields)
        seen |= set(ring)
        yield from sorted(ring.items(), key=lambda item: cost(item[0], target, shape))


def category(fields: tuple[str, ...]) -> Category:
    """Kind of an idea that changes these fields: the first that is no mere size decides."""
    return next((_CATEGORY[field] for field in fields if field in _CATEGORY), Category.TILING)


def _changed(start: Tiles, fields: tuple[str, ...]) -> Iterator[Tiles]:
    choices = [[v for v in _VALUES[f] if v != getattr(start, f)] for f in fields]
    for values in product(*choices):
        yield canonical(start.model_copy(update=dict(zip(fields, values, strict=True))))
