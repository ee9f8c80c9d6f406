"""What gave what: gain and cost by category, lever and ideator. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from croq_fsm.domain.records import Round
from croq_fsm.domain.states import Decision


@dataclass(frozen=True)
class Gain:
    """What the rounds of one kind came to.

    Attributes:
        name: The kind.
        rounds: Rounds of it.
        kept: Rounds of it that became the best.
        gain: Product of the ratios of those; 1.0 when there are none.
        seconds: Wall time of all its rounds.
    """

    name: str
    rounds: int
    kept: int
    gain: float
    seconds: float


def by_category(rounds: Iterable[Round]) -> list[Gain]:
    """By category of the idea; the categories share the rounds."""
    return _grouped(rounds, lambda r: (str(r.category),))


def by_lever(rounds: Iterable[Round]) -> list[Gain]:
    """By lever; a round that turns several counts for each of them in full."""
    return _grouped(rounds, lambda r: r.levers)


def by_ideator(rounds: Iterable[Round]) -> list[Gain]:
    """By who proposed it."""
    return _grouped(rounds, lambda r: (r.ideator,))


def product(rounds: Iterable[Round]) -> float:
    """Product of the confirmed ratios of the KEEPs."""
    return math.prod(r.ratio for r in rounds if r.decision is Decision.KEEP and r.ratio is not None)


def _grouped(rounds: Iterable[Round], kinds: Callable[[Round], Sequence[str]]) -> list[Gain]:
    groups: dict[str, list[Round]] = {}
    for record in rounds:
        for kind in dict.fromkeys(kinds(record)):
            groups.setdefault(kind, []).append(record)
    found = [
        Gain(
            name=kind,
            rounds=len(members),
            kept=sum(r.decision is Decision.KEEP for r in members),
            gain=product(members),
            seconds=sum(r.wall_s for r in members),
        )
        for kind, members in groups.items()
    ]
    return sorted(found, key=lambda g: (-g.gain, -g.kept, -g.rounds, g.name))
