"""Measurements spread over several sets of fresh processes.

Two processes of one binary differ, by where their pages lie and what their caches map to, by more
than blocks within a process do; on a CPU by one or two per cent. Samples of one set of processes
therefore look surer than they are. The unit of evidence is the set: each starts all contestants
anew, and the interval of a ratio is taken over sets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol

from croq_fsm.config import Measure
from croq_fsm.domain.measurement import Samples, merge
from croq_fsm.domain.task import Task
from croq_fsm.toolchain.workbench import Contestant, TimingPlan

Purpose = Literal["baseline", "noise", "screen", "pairs", "confirm", "final"]


class Timer(Protocol):
    """The part of a workbench that takes times."""

    def time(self, contestants: dict[str, Contestant], task: Task, plan: TimingPlan) -> Samples:
        """See ``Workbench.time``."""


def plan(settings: Measure, purpose: Purpose, pairs: int, seed: int) -> TimingPlan:
    """A plan of so many pairs, the rest as configured."""
    return TimingPlan(
        purpose=purpose,
        pairs=pairs,
        block_s=settings.block_s,
        max_launches=settings.max_launches,
        warmup_s=settings.warmup_s,
        regime=settings.regime,
        l2=settings.l2,
        seed=seed,
    )


def timed(
    timer: Timer,
    contestants: dict[str, Contestant],
    task: Task,
    wanted: TimingPlan,
    pairs_per_process: int,
) -> Samples:
    """Take ``wanted.pairs`` pairs, a few in each set of fresh processes; raises like ``time``."""
    parts: list[Samples] = []
    left = wanted.pairs
    while left > 0:
        pairs = min(left, pairs_per_process)
        # A lone pair at the end joins the set before it.
        pairs = left if left - pairs == 1 else pairs
        part = replace(wanted, pairs=pairs, seed=wanted.seed + len(parts))
        parts.append(timer.time(contestants, task, part))
        left -= pairs
    return merge(parts).model_copy(update={"windows": 1})
