"""Moves on C matmul kernels: how each operator changes a member of the family.

The start is usually a kernel that we did not write. Its structure is then unknown, and an
operator replaces it as a whole by the member of the family that shows the idea.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from croq_fsm.domain.states import Category
from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules import c_family
from croq_fsm.ideators.rules import c_matmul_search as search
from croq_fsm.ideators.rules.c_matmul_family import (
    FLOAT_BYTES,
    Config,
    Loops,
    Shape,
    Tiles,
    balanced,
    canonical,
    is_feasible,
    room_for_b,
)
from croq_fsm.ideators.rules.c_matmul_text import recognise, render
from croq_fsm.ideators.rules.c_steps import Operators, Step
from croq_fsm.ideators.rules.c_target import Target, target_of

#: First register tile: just enough sums to hide the latency of one multiply-add.
_FIRST_ROWS, _FIRST_SUMS = 4, 8

#: Share of a cache that one operand may take at first.
_SHARE: Final = 0.5

_KIB: Final = 1024


@dataclass(frozen=True)
class Case:
    """A base, as the operators see it; ``config`` is None for a kernel that is not ours."""

    config: Config | None
    target: Target
    shape: Shape

    @property
    def tiles(self) -> Tiles | None:
        """The base when it is a tiled one."""
        return self.config if isinstance(self.config, Tiles) else None

    @property
    def loops(self) -> Loops | None:
        """The base when it is one of plain loops."""
        return self.config if isinstance(self.config, Loops) else None


Turns = Iterator[Config]


def _interchange(case: Case) -> Turns:
    if case.config is None:
        yield Loops()


def _promise(case: Case) -> Turns:
    if case.loops and not case.loops.restrict:
        yield case.loops.model_copy(update={"restrict": True})


def _fuse(case: Case) -> Turns:
    if case.loops:
        for ways in (4, 8, 2, 1):
            if ways != case.loops.fuse:
                yield case.loops.model_copy(update={"fuse": ways})


def _block_loops(case: Case) -> Turns:
    if case.loops and not case.loops.blocked:
        for cache in (case.target.l2, case.target.l1d):
            nc = balanced(case.shape.n, 1024 if cache > case.target.l1d else 256, 16)
            kc = balanced(case.shape.k, int(_SHARE * cache) // (nc * FLOAT_BYTES), 8)
            yield case.loops.model_copy(update={"blocked": True, "kc": kc, "nc": nc})


def _register_tile(case: Case) -> Turns:
    if case.tiles is None:
        yield first_tile(case.target, case.shape)


def first_tile(target: Target, shape: Shape) -> Tiles:
    """The plainest tiled kernel for a target."""
    rows = min(_FIRST_ROWS, shape.m)
    config = Tiles.model_validate(
        {"vector": target.vector_bytes, "mr": rows, "nv": _FIRST_SUMS // rows}
    )
    return config.model_copy(update={"kc": _slice(config, target, shape, _SHARE)})


def _slice(config: Tiles, target: Target, shape: Shape, share: float) -> int:
    """Depth of k at which a panel of b takes a share of the first-level cache."""
    return balanced(shape.k, int(share * target.l1d) // (config.nr * FLOAT_BYTES), 8)


def blocked(config: Tiles, target: Target, shape: Shape, **changes: object) -> Tiles:
    """The configuration with blocks that fill half of the caches they are meant for."""
    mc = balanced(shape.m, int(_SHARE * target.l2) // (config.kc * FLOAT_BYTES), config.mr)
    most = int(_SHARE * room_for_b(target)) // (config.kc * FLOAT_BYTES)
    nc = balanced(shape.n, most, config.nr)
    return config.model_copy(update={"blocked": True, "mc": mc, "nc": nc, **changes})


def _cache_blocks(case: Case) -> Turns:
    if case.tiles and not case.tiles.blocked:
        yield blocked(case.tiles, case.target, case.shape)


def _packed_blocks(case: Case) -> Turns:
    if case.tiles and not case.tiles.blocked:
        yield blocked(case.tiles, case.target, case.shape, pack_a=True, pack_b=True)


def _pack_b(case: Case) -> Turns:
    if case.tiles:
        yield case.tiles.model_copy(update={"pack_b": not case.tiles.pack_b})


def _pack_a(case: Case) -> Turns:
    if case.tiles and case.tiles.blocked:
        yield case.tiles.model_copy(update={"pack_a": not case.tiles.pack_a})


def _tile_shape(case: Case) -> Turns:
    if case.tiles:
        yield from search.by_cost(search.tile_shapes(case.tiles), case.target, case.shape)


def _widen(case: Case) -> Turns:
    if case.tiles and case.tiles.vector < case.target.vector_bytes:
        wide = first_tile(case.target, case.shape)
        yield case.tiles.model_copy(
            update={name: getattr(wide, name) for name in ("vector", "mr", "nv", "kc")}
        )


def _depth(case: Case) -> Turns:
    if case.tiles:
        depths = (
            case.tiles.model_copy(update={"kc": _slice(case.tiles, case.target, case.shape, share)})
            for share in (0.75, 1.0, 0.5, 0.375, 0.25)
        )
        yield from search.by_cost(depths, case.target, case.shape)


def _block_rows(case: Case) -> Turns:
    if case.tiles and case.tiles.blocked:
        yield from _shares(case, "mc", case.shape.m, case.target.l2, case.tiles.mr)


def _block_columns(case: Case) -> Turns:
    if case.tiles and case.tiles.blocked:
        yield from _shares(case, "nc", case.shape.n, room_for_b(case.target), case.tiles.nr)


def _shares(case: Case, field: str, size: int, cache: int, unit: int) -> Turns:
    """Blocks that take different shares of a cache, and equal parts of the whole."""
    if case.tiles:
        most = [int(s * cache) // (case.tiles.kc * FLOAT_BYTES) for s in (0.25, 0.75, 0.125, 0.5)]
        for block in (*most, size // 2, size // 4):
            yield case.tiles.model_copy(update={field: balanced(size, block, unit)})


def _alternatives(field: str, *values: object) -> Callable[[Case], Turns]:
    def turn(case: Case) -> Turns:
        if case.tiles:
            for value in values:
                yield canonical(case.tiles.model_copy(update={field: value}))

    return turn


def _whole_kernel(case: Case) -> Turns:
    """For a kernel that is not ours and is already good: our best guess at once."""
    if case.config is None:
        first = first_tile(case.target, case.shape)
        packed = blocked(first, case.target, case.shape, pack_a=True, pack_b=True)
        for start in (packed, first):
            found = search.by_cost(search.tile_shapes(start), case.target, case.shape)
            yield next(found, start)


_OPERATORS: Final[dict[str, Callable[[Case], Turns]]] = {
    "interchange": _interchange,
    "promise": _promise,
    "fuse": _fuse,
    "block_loops": _block_loops,
    "register_tile": _register_tile,
    "widen": _widen,
    "tile_shape": _tile_shape,
    "depth": _depth,
    "pack_b": _pack_b,
    "cache_blocks": _cache_blocks,
    "packed_blocks": _packed_blocks,
    "pack_a": _pack_a,
    "block_rows": _block_rows,
    "block_columns": _block_columns,
    "unroll_k": _alternatives("unroll", 4, 2, 8, 1),
    "prefetch_c": _alternatives("prefetch", "c"),
    "prefetch_b": _alternatives("prefetch", "b", "bc", "none"),
    "sweep": _alternatives("sweep", "j", "i"),
    "order": _alternatives("order", "ipj", "jpi"),
    "whole_kernel": _whole_kernel,
}


class MatmulFamily:
    """Moves of ``void matmul(const float *a, const float *b, float *c, int m, int n, int k)``."""

    names = frozenset(_OPERATORS)

    def operators(self, context: Context) -> Operators:
        """The operators, bound to a context."""
        case = case_of(context)
        return {name: partial(_steps, name, case) for name in _OPERATORS}

    def explore(self, context: Context) -> Iterator[Step]:
        """Feasible members by distance from the base, then by estimated cost."""
        case = case_of(context)
        start = case.tiles or first_tile(case.target, case.shape)
        for config, changed in search.neighbourhood(start, case.target, case.shape):
            yield _step("explore", config, case, search.category(changed))

    def knows(self, source: str) -> bool:
        """Whether a source is a member of the family."""
        return recognise(source) is not None


def case_of(context: Context) -> Case:
    """What the operators need to know of a context."""
    return Case(
        config=recognise(context.base.candidate.source),
        target=target_of(context),
        shape=Shape.model_validate(context.task.sizes),
    )


def _steps(name: str, case: Case) -> Iterator[Step]:
    for config in _OPERATORS[name](case):
        fits = isinstance(config, Loops) or is_feasible(config, case.target)
        if config != case.config and fits:
            yield _step(name, config, case)


def _step(name: str, config: Config, case: Case, category: Category | None = None) -> Step:
    return c_family.step(name, case.config, config, render, _words(case, config), category)


def _words(case: Case, config: Config) -> dict[str, object]:
    """What the sentences of a rule may name: sizes, and shares of registers and caches."""
    words: dict[str, object] = {
        **case.shape.model_dump(),
        "registers": case.target.registers,
        "l1_kib": case.target.l1d // _KIB,
        "l2_kib": case.target.l2 // _KIB,
        "l3_kib": case.target.l3 // _KIB,
        "b_kib": case.shape.k * case.shape.n * FLOAT_BYTES // _KIB,
    }
    if isinstance(config, Tiles):
        words |= {
            "nr": config.nr,
            "sums": config.mr * config.nv,
            "used": config.registers,
            "panel_kib": config.panel_bytes // _KIB,
            "a_block_kib": config.a_block_bytes // _KIB,
            "b_block_kib": config.b_block_bytes // _KIB,
        }
    return words
