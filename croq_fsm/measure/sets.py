"""Measurements spread over several sets of fresh processes.

Two processes of one binary differ, by where their pages lie and what their caches map to, by more
than blocks within a process do; on a CPU by one or two per cent. Samples of one set of processes
therefore look surer than they are. The unit of evidence is the set: each starts all contestants
anew, and the interval of a ratio is taken over sets.
"""

from __future__ import annotations

from dataclasses import replace

from croq_fsm.domain.measurement import Samples, merge
from croq_fsm.domain.task import Task
from croq_fsm.toolchain.workbench import Contestant, TimingPlan, Workbench


def timed(
    workbench: Workbench,
    contestants: dict[str, Contestant],
    task: Task,
    plan: TimingPlan,
    pairs_per_process: int,
) -> Samples:
    """Take ``plan.pairs`` pairs, a few in each set of fresh processes; raises like ``time``."""
    parts: list[Samples] = []
    left = plan.pairs
    while left > 0:
        pairs = min(left, pairs_per_process)
        # A lone pair at the end joins the set before it.
        pairs = left if left - pairs == 1 else pairs
        part = replace(plan, pairs=pairs, seed=plan.seed + len(parts))
        parts.append(workbench.time(contestants, task, part))
        left -= pairs
    return merge(parts)
