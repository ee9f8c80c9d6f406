"""Moves on C softmax kernels: a vector exponential first, then fewer passes over memory.

Softmax moves 8 bytes for a handful of operations, so at best it runs at the speed of memory.
A plain kernel is far from that: the scalar exponential of the C library limits it, and only
when that is gone does the traffic of the passes count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations, product
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from croq_fsm.domain.states import Category
from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules import c_family
from croq_fsm.ideators.rules.c_family import Member
from croq_fsm.ideators.rules.c_steps import Operators, Step
from croq_fsm.ideators.rules.c_target import Target, target_of
from croq_fsm.ideators.rules.c_text import fill

_FLOAT_BYTES: Final = 4
_KIB: Final = 1024


class Softmax(Member):
    """A vectorised softmax.

    Attributes:
        vector: Bytes of a vector.
        unroll: Vectors in flight at once.
        block: Columns of a block of the online pass.
        ahead: Columns that prefetches run ahead.
        online: Whether maximum and sum are taken in one pass, so that the exponentials need
            not be stored and read again.
        reciprocal: Whether rows are multiplied by 1/sum instead of divided by the sum.
        short_series: Whether the exponential takes five terms (1.6 units in the last place)
            instead of six.
        prefetch: Whether the first pass prefetches.
    """

    MACROS: ClassVar[dict[str, str]] = {
        "VECTOR_BYTES": "vector",
        "UNROLL": "unroll",
        "BLOCK": "block",
        "AHEAD": "ahead",
    }

    vector: Literal[16, 32, 64] = 16
    unroll: Annotated[int, Field(ge=1, le=16)] = 1
    block: Annotated[int, Field(ge=1)] = 1024
    ahead: Annotated[int, Field(ge=1)] = 256
    online: bool = False
    reciprocal: bool = False
    short_series: bool = False
    prefetch: bool = False


#: Values of each field that the enumeration tries.
_VALUES: Final[dict[str, tuple[object, ...]]] = {
    "unroll": (1, 2, 3, 4, 6, 8),
    "vector": (16, 32, 64),
    "block": (256, 512, 1024, 2048, 4096, 8192),
    "ahead": (64, 128, 256, 512, 1024),
    "online": (False, True),
    "reciprocal": (False, True),
    "short_series": (False, True),
    "prefetch": (False, True),
}

#: More changes at once than this are no neighbourhood any more.
_FARTHEST: Final = 3

_CATEGORY: Final = {
    "unroll": Category.PIPELINE,
    "vector": Category.COMPUTE,
    "block": Category.TILING,
    "online": Category.MEMORY,
    "ahead": Category.MEMORY,
    "prefetch": Category.MEMORY,
    "reciprocal": Category.COMPUTE,
    "short_series": Category.COMPUTE,
}


@lru_cache(maxsize=64)
def render(config: Softmax) -> str:
    """Complete source of a configuration; right for any rows and cols."""
    switches = {name: bool(value) for name, value in config.structure.items()}
    return c_family.marked(fill("c_softmax.c", switches, config.model_dump()), config)


def recognise(source: str) -> Softmax | None:
    """The configuration of a source of this family, or None."""
    return c_family.recognise(source, lambda _: Softmax, render)


@dataclass(frozen=True)
class Case:
    """A base, as the operators see it; ``config`` is None for a kernel that is not ours."""

    config: Softmax | None
    target: Target
    rows: int
    cols: int


Turns = Iterator[Softmax]


def _vector_exp(case: Case) -> Turns:
    if case.config is None:
        yield first_member(case.target)


def first_member(target: Target) -> Softmax:
    """The plainest vectorised kernel for a target."""
    return Softmax.model_validate({"vector": target.vector_bytes})


def _widen(case: Case) -> Turns:
    if case.config and case.config.vector < case.target.vector_bytes:
        yield case.config.model_copy(update={"vector": case.target.vector_bytes})


def _online(case: Case) -> Turns:
    """Pays once a row of x and y outgrows the first-level cache, where a block still fits."""
    outgrows = 2 * case.cols * _FLOAT_BYTES > case.target.l1d
    if case.config and (outgrows or case.config.online):
        block = max(256, case.target.l1d // _FLOAT_BYTES // 2)
        online = not case.config.online
        yield canonical(case.config.model_copy(update={"online": online, "block": block}))


def _alternatives(field: str, *values: object) -> Callable[[Case], Turns]:
    def turn(case: Case) -> Turns:
        if case.config:
            for value in values:
                yield canonical(case.config.model_copy(update={field: value}))

    return turn


_OPERATORS: Final[dict[str, Callable[[Case], Turns]]] = {
    "vector_exp": _vector_exp,
    "widen_rows": _widen,
    "online": _online,
    "unroll_rows": _alternatives("unroll", 4, 2, 8, 1),
    "reciprocal": _alternatives("reciprocal", True),
    "short_series": _alternatives("short_series", True),
    "prefetch_x": _alternatives("prefetch", True, False),
    "online_block": _alternatives("block", 1024, 4096, 512, 2048),
}


class SoftmaxFamily:
    """Moves of ``void softmax(const float *x, float *y, int rows, int cols)``."""

    names = frozenset(_OPERATORS)

    def operators(self, context: Context) -> Operators:
        """The operators, bound to a context."""
        case = case_of(context)
        return {name: partial(_steps, name, case) for name in _OPERATORS}

    def explore(self, context: Context) -> Iterator[Step]:
        """Feasible members by distance from the base."""
        case = case_of(context)
        start = case.config or first_member(case.target)
        for config, fields in neighbourhood(start, case.target):
            yield _step("explore", config, case, _CATEGORY[fields[0]])

    def knows(self, source: str) -> bool:
        """Whether a source is a member of the family."""
        return recognise(source) is not None


def case_of(context: Context) -> Case:
    """What the operators need to know of a context."""
    sizes = context.task.sizes
    return Case(
        config=recognise(context.base.candidate.source),
        target=target_of(context),
        rows=sizes["rows"],
        cols=sizes["cols"],
    )


def canonical(config: Softmax) -> Softmax:
    """The configuration with fields that have no effect put back to their defaults."""
    idle = {"block": config.online, "ahead": config.prefetch}
    fields = Softmax.model_fields
    return config.model_copy(update={n: fields[n].default for n, used in idle.items() if not used})


def neighbourhood(start: Softmax, target: Target) -> Iterator[tuple[Softmax, tuple[str, ...]]]:
    """Members with the fields that were changed: one change first, then two, three."""
    seen = {canonical(start)}
    for distance in range(1, _FARTHEST + 1):
        for fields in combinations(_VALUES, distance):
            for values in product(*(_VALUES[field] for field in fields)):
                changes = dict(zip(fields, values, strict=True))
                config = canonical(start.model_copy(update=changes))
                if config not in seen and config.vector <= target.vector_bytes:
                    seen.add(config)
                    yield config, fields


def _steps(name: str, case: Case) -> Iterator[Step]:
    for config in _OPERATORS[name](case):
        if config != case.config:
            yield _step(name, config, case)


def _step(name: str, config: Softmax, case: Case, category: Category | None = None) -> Step:
    words = {
        "rows": case.rows,
        "cols": case.cols,
        "row_kib": case.cols * _FLOAT_BYTES // _KIB,
        "l1_kib": case.target.l1d // _KIB,
        "l2_kib": case.target.l2 // _KIB,
    }
    return c_family.step(name, case.config, config, render, words, category)
