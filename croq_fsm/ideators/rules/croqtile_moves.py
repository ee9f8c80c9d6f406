"""Operators: the ways in which one idea turns a member of the family, most promising first.

An operator yields members that differ from the base in the choices that its idea is about, and
in those that follow from them (stages that then fit). What must hold before an idea can pay is
part of the operator: it yields nothing when it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from croq_fsm.ideators.rules.croqtile_case import Case
from croq_fsm.ideators.rules.croqtile_config import FIELDS, Gemm, register_pair
from croq_fsm.ideators.rules.croqtile_limits import fitted, is_feasible, settled
from croq_fsm.ideators.rules.croqtile_search import (
    ORDERS,
    TOPOLOGIES,
    WIDTHS,
    by_speed,
    ranked,
    topology,
)

Turns = Iterator[Gemm]

#: Fewer tiles than this share of the SMs leave too many of them idle.
_FEW_TILES: Final = 0.75

#: The calculated configuration is proposed as a whole when it changes at least this much.
_WORTH_A_JUMP: Final = 0.02

_CONFLICTS: Final = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"

#: Conflicts per output element from which on the output path is a cost (0.11 at 8-way).
_CONFLICTS_FELT: Final = 0.02

_WIDE_STEP: Final = 128


@dataclass(frozen=True)
class Operator:
    """An idea as code.

    Attributes:
        turns: Members that realise it, best first.
        choices: What it may change.
        modelled: Whether the model sees its effect; else the rule's gain is the expectation.
        unknown: Whether it also serves a base whose text could not be read.
    """

    turns: Callable[[Case], Turns]
    choices: frozenset[str]
    modelled: bool = True
    unknown: bool = False


def _better(case: Case, members: Iterable[Gemm]) -> Turns:
    """Feasible members that the model finds faster than the base, the fastest first."""
    here = case.predict(case.base).cycles
    fit = (m for m in members if is_feasible(m, case.shape, case.machine))
    for member in by_speed(fit, case.shape, case.machine):
        if case.predict(member).cycles < here:
            yield member


def _feasible(case: Case, members: Iterable[Gemm]) -> Turns:
    for member in members:
        member = settled(member, case.shape)  # noqa: PLW2901 - the same idea in its legal form
        if is_feasible(member, case.shape, case.machine):
            yield member


def _calculated(case: Case) -> Turns:
    """The best member in plain language, if the base is far from it."""
    if not is_feasible(case.best, case.shape, case.machine):
        return
    if not case.is_known or case.expected(case.best) > _WORTH_A_JUMP:
        yield _as_plain(case.best, case)


def _as_plain(best: Gemm, case: Case) -> Gemm:
    """The calculated tile, schedule and order with the base's own instruction choices."""
    if case.reading is None:
        return best
    uniform = case.base.uniform and best.consumers > 1
    return settled(replace(best, uniform=uniform, keep=case.base.keep), case.shape)


def _staged_output(case: Case) -> Turns:
    if case.reading is not None and case.reading.direct:
        yield fitted(replace(case.base, staging="tile"), case.shape, case.machine)


def _retile(case: Case) -> Turns:
    yield from _better(case, (fitted(t, case.shape, case.machine) for t in _other_tiles(case.base)))


def _other_tiles(base: Gemm) -> Turns:
    """All other tiles; plain rows follow where a width has no panels and needs none."""
    for height, consumers in TOPOLOGIES:
        for width in WIDTHS:
            if (height, width) == (base.tile_m, base.tile_n):
                continue
            tile = replace(topology(base, height, consumers), tile_n=width)
            rows = replace(tile, layout="rows", turns=1)
            yield rows if tile.layout == "panels" and rows.conflict_ways == 1 else tile


def _small_tiles(case: Case) -> Turns:
    """For problems of few tiles: one small tile per SM, with a deep ring."""
    if case.predict(case.base).tiles > _FEW_TILES * case.machine.sms:
        return
    for tile in _retile(case):
        loose = replace(tile, ctas=0, turns=1, order="m", group=0)
        yield fitted(loose, case.shape, case.machine)


def _panels(case: Case) -> Turns:
    if case.base.conflict_ways == 1 or not _conflicts_felt(case):
        return
    yield from _better(case, [_refitted(replace(case.base, layout="panels"), case)])


def _conflicts_felt(case: Case) -> bool:
    conflicts = case.context.profile.metric(_CONFLICTS)
    if conflicts is None:
        return True
    return conflicts > _CONFLICTS_FELT * case.shape.m * case.shape.n


def _refitted(config: Gemm, case: Case) -> Gemm:
    """The same ring if it still fits, else one that does."""
    kept = settled(config, case.shape)
    if is_feasible(kept, case.shape, case.machine):
        return kept
    return fitted(config, case.shape, case.machine, most=config.stages)


def _deeper(case: Case, config: Gemm) -> Turns:
    """The member with a ring as deep as fits, if that is deeper than the base's."""
    member = fitted(config, case.shape, case.machine)
    if member.stages > case.base.stages and is_feasible(member, case.shape, case.machine):
        yield member


def _half_staging(case: Case) -> Turns:
    if case.base.layout == "panels" and case.base.staging == "tile":
        for turns in (2, 3, 4):
            if turns > case.base.turns:
                yield from _deeper(case, replace(case.base, turns=turns))


def _dead_stages(case: Case) -> Turns:
    if not case.base.ctas and case.base.staging == "tile":
        yield from _deeper(case, replace(case.base, staging="stage", turns=1))


def _deepen(case: Case) -> Turns:
    """All that fits first, then one stage more: depth costs nothing but shared memory."""
    yield from _deeper(case, case.base)
    yield from _feasible(case, [replace(case.base, stages=case.base.stages + 1)])


def _persist(case: Case) -> Turns:
    """Pays when blocks have more than one tile."""
    if case.base.ctas or case.predict(case.base).tiles <= case.machine.sms:
        return
    walking = replace(case.base, ctas=case.machine.sms, staging="tile", guard="event")
    yield from _better(case, [_refitted(walking, case)])


def _one_tile(case: Case) -> Turns:
    if case.base.ctas:
        loose = replace(case.base, ctas=0)
        if case.predict(case.base).rounds == 1:
            yield from _feasible(case, [loose])
        elif case.base.ctas != case.machine.sms:
            yield from _feasible(case, [replace(case.base, ctas=case.machine.sms)])


def _order(case: Case) -> Turns:
    orders = (replace(case.base, order=order, group=group) for order, group in ORDERS)
    yield from _better(case, (settled(member, case.shape) for member in orders))


def _uniform(case: Case) -> Turns:
    if case.base.consumers > 1 and not case.base.uniform:
        yield from _feasible(case, [replace(case.base, uniform=True)])


def _polish(case: Case) -> Turns:
    """Small savings of instructions together: each alone is less than can be told apart."""
    if case.base.unroll == 1:
        uniform = case.base.uniform or case.base.consumers > 1
        yield from _feasible(case, [replace(case.base, uniform=uniform, unroll=case.base.stages)])


def _registers(case: Case) -> Turns:
    pair = register_pair(case.base.consumers)
    if case.base.registers is None and pair is not None:
        yield from _feasible(case, [replace(case.base, registers=pair)])


def _guard_event(case: Case) -> Turns:
    if case.base.guarded and case.base.guard == "barrier":
        event = settled(replace(case.base, guard="event"), case.shape)
        yield from (m for m in _feasible(case, [event]) if m.guard == "event")


def _elect(case: Case) -> Turns:
    if not case.base.elected:
        yield from _feasible(case, [replace(case.base, elected=True)])


def _release_warp(case: Case) -> Turns:
    if case.base.release == "thread":
        yield from _feasible(case, [replace(case.base, release="warp")])


def _deep_step(case: Case) -> Turns:
    if case.base.tile_k < _WIDE_STEP and case.base.stages > 1:
        deep = replace(case.base, tile_k=_WIDE_STEP, stages=case.base.stages // 2)
        yield from _feasible(case, [deep])


def _unroll(case: Case) -> Turns:
    factors = sorted((case.base.stages, 2, 4), key=lambda f: f != case.base.stages)
    yield from _feasible(
        case, (replace(case.base, unroll=f) for f in dict.fromkeys(factors) if f > 1)
    )


def _keep(case: Case) -> Turns:
    """The operand whose tiles the next wave wants again goes first."""
    along_m, along_n = case.base.tiles(case.shape)
    first, second = ("lhs", "rhs") if along_m <= along_n else ("rhs", "lhs")
    if case.base.keep == "none":
        members = (replace(case.base, keep=side) for side in (first, second))  # type: ignore[arg-type]
        yield from _feasible(case, members)


def survey(case: Case) -> Turns:
    """The feasible set in the model's order, helpers and plain language alternately."""
    full = ranked(case.shape, case.machine, case.element, plain=False)
    plain = ranked(case.shape, case.machine, case.element, plain=True)
    for pair in zip(full, plain, strict=True):
        yield from pair


_RING: Final = frozenset({"stages", "guard"})
_TILE: Final = frozenset({"tile_m", "tile_n", "consumers", "registers", "uniform"}) | _RING
_FINISH: Final = frozenset({"layout", "turns"})

OPERATORS: Final[dict[str, Operator]] = {
    "calculated": Operator(_calculated, frozenset(FIELDS) - {"keep", "element"}, unknown=True),
    "staged_output": Operator(_staged_output, _RING, modelled=False),
    "small_tiles": Operator(_small_tiles, _TILE | _FINISH | {"ctas", "order", "group"}),
    "retile": Operator(_retile, _TILE | _FINISH),
    "panels": Operator(_panels, _RING | {"layout"}),
    "half_staging": Operator(_half_staging, _RING | {"turns"}),
    "dead_stages": Operator(_dead_stages, _RING | {"staging", "turns"}),
    "persist": Operator(_persist, _RING | {"ctas", "staging"}),
    "one_tile": Operator(_one_tile, _RING | {"ctas"}, modelled=False),
    "deepen": Operator(_deepen, _RING),
    "order": Operator(_order, frozenset({"order", "group"})),
    "guard_event": Operator(_guard_event, frozenset({"guard"}), modelled=False),
    "elect": Operator(_elect, frozenset({"elected"})),
    "release_warp": Operator(_release_warp, frozenset({"release"}), modelled=False),
    "deep_step": Operator(_deep_step, _RING | {"tile_k"}, modelled=False),
    "polish": Operator(_polish, frozenset({"uniform", "unroll"}), modelled=False),
    "uniform": Operator(_uniform, frozenset({"uniform"})),
    "registers": Operator(_registers, frozenset({"registers"})),
    "unroll": Operator(_unroll, frozenset({"unroll"}), modelled=False),
    "keep": Operator(_keep, frozenset({"keep"}), modelled=False),
}
