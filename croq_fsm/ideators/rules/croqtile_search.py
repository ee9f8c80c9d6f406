"""The feasible set of the family on a shape, ranked by the model; neighbours of a member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Final

from croq_fsm.ideators.rules.croqtile_config import Gemm, Order, Shape, register_pair
from croq_fsm.ideators.rules.croqtile_limits import Machine, fitted, is_feasible, settled
from croq_fsm.ideators.rules.croqtile_model import predict

#: Height of a tile and the consumers that share it.
TOPOLOGIES: Final = ((64, 1), (128, 2), (128, 1), (192, 3), (256, 2), (256, 4))

WIDTHS: Final = tuple(range(32, 257, 8))

#: Tile orders worth ranking; bands between these heights differ little.
ORDERS: Final[tuple[tuple[Order, int], ...]] = (
    ("m", 0),
    ("n", 0),
    ("gm", 8),
    ("gm", 16),
    ("gn", 8),
)

_TURNS: Final = (2, 4)
_BANDS: Final = (2, 4, 6, 8, 12, 16, 24, 32)
_PAIRS: Final = {
    1: (),
    2: ((40, 232), (24, 240), (56, 224), (72, 216)),
    3: ((32, 160), (56, 152)),
    4: ((32, 112), (64, 104)),
}


@lru_cache(maxsize=64)
def ranked(shape: Shape, machine: Machine, element: str, *, plain: bool) -> tuple[Gemm, ...]:
    """Feasible members by predicted cycles, the fastest first; each tile with its best finish.

    Args:
        shape: Sizes of the problem.
        machine: Limits of the device.
        element: Element type of the operands.
        plain: Only constructs of the language itself, without helper functions.
    """
    best: dict[tuple[int, int, int], Gemm] = {}
    for consumers_of in TOPOLOGIES:
        for width in WIDTHS:
            members = _finishes(consumers_of, width, shape, machine, element, plain=plain)
            member = fastest(members, shape, machine)
            if member is not None:
                best[(*consumers_of, width)] = member
    return tuple(by_speed(best.values(), shape, machine))


def fastest(members: Iterable[Gemm], shape: Shape, machine: Machine) -> Gemm | None:
    """The member that the model ranks first, or None when there are none."""
    return min(members, key=lambda c: predict(c, shape, machine).cycles, default=None)


def by_speed(members: Iterable[Gemm], shape: Shape, machine: Machine) -> list[Gemm]:
    """Members by predicted cycles; equal ones stay in their order."""
    return sorted(members, key=lambda config: predict(config, shape, machine).cycles)


def _finishes(
    topology: tuple[int, int],
    width: int,
    shape: Shape,
    machine: Machine,
    element: str,
    *,
    plain: bool,
) -> Iterator[Gemm]:
    """Feasible members with one tile: schedules, output paths and orders."""
    height, consumers = topology
    tile = Gemm(
        tile_m=height,
        tile_n=width,
        consumers=consumers,
        registers=register_pair(consumers),
        uniform=not plain,
        guard="barrier" if plain else "event",
        element=element,
    )
    for finish in _paths(tile, machine, plain=plain):
        for order, group in ORDERS:
            member = fitted(replace(finish, order=order, group=group), shape, machine)
            if is_feasible(member, shape, machine):
                yield member


def _paths(tile: Gemm, machine: Machine, *, plain: bool) -> Iterator[Gemm]:
    layouts: tuple[Gemm, ...] = (tile,)
    if not plain:
        layouts = (tile, replace(tile, layout="panels"))
    for layout in layouts:
        yield layout
        yield replace(layout, ctas=machine.sms)
        yield replace(layout, staging="stage")
    if not plain:
        for turns in _TURNS:
            yield replace(tile, layout="panels", turns=turns, ctas=machine.sms)


def neighbours(base: Gemm, shape: Shape, machine: Machine) -> list[Gemm]:
    """Feasible members that differ from ``base`` in one choice, by predicted cycles."""
    changed = (settled(config, shape) for config in _single_changes(base, machine))
    found = dict.fromkeys(c for c in changed if is_feasible(c, shape, machine))
    found.pop(settled(base, shape), None)
    found.pop(base, None)
    return by_speed(found, shape, machine)


def _single_changes(base: Gemm, machine: Machine) -> Iterator[Gemm]:
    for width in WIDTHS:
        yield replace(base, tile_n=width)
    for height, consumers in TOPOLOGIES:
        yield topology(base, height, consumers)
    for stages in range(2, 11):
        yield replace(base, stages=stages)
    for order, group in (*ORDERS, *((o, g) for o in ("gm", "gn") for g in _BANDS)):
        yield replace(base, order=order, group=group)
    for pair in (None, *_PAIRS.get(base.consumers, ())):
        yield replace(base, registers=pair)
    for ctas in (0, machine.sms):
        yield replace(base, ctas=ctas)
    for turns in (1, 2, 3, 4):
        yield replace(base, turns=turns)
    yield from _switches(base)


def _switches(base: Gemm) -> Iterator[Gemm]:
    yield replace(base, layout="panels" if base.layout == "rows" else "rows", turns=1)
    yield replace(base, staging="tile" if base.staging == "stage" else "stage")
    yield replace(base, uniform=not base.uniform)
    yield replace(base, elected=not base.elected)
    yield replace(base, guard="barrier" if base.guard == "event" else "event")
    for release in ("thread", "warp", "group"):
        yield replace(base, release=release)
    for keep in ("none", "lhs", "rhs"):
        yield replace(base, keep=keep)
    for unroll in (1, 2, 4, 8):
        yield replace(base, unroll=unroll)


def topology(base: Gemm, height: int, consumers: int) -> Gemm:
    """The base with another tile height; the trade of registers follows the consumers."""
    pair = base.registers
    if consumers != base.consumers:
        pair = register_pair(consumers) if base.registers else None
    return replace(base, tile_m=height, consumers=consumers, registers=pair)
