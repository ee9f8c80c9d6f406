"""How times scatter: what a synthetic measurement adds to a true time.

All parts multiply and are log-normal with median 1. ``launch`` is drawn for each launch, ``block``
once for all launches of a block, ``process`` once for each contestant in each set of fresh
processes. Drift is common to all contestants: a triangular wave over the number of blocks taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from croq_fsm.domain.measurement import Block, Samples
from croq_fsm.domain.task import Task
from croq_fsm.measure.interleave import orders
from croq_fsm.toolchain.workbench import Contestant, TimingPlan


@dataclass(frozen=True)
class Noise:
    """Sizes of the scatter, as standard deviations of the logarithm (0.03 is 3 %).

    Attributes:
        launch: Of each launch.
        block: Of each block, common to its launches.
        process: Of each contestant's process, common to all its blocks of one set.
        drift: Slow drift of the device, from trough to peak, as a share of the time.
        drift_blocks: Blocks from trough to peak.
        spikes: Probability that somebody disturbs a block.
        spike: How much longer a disturbed block takes, as a share.
    """

    launch: float = 0.0
    block: float = 0.0
    process: float = 0.0
    drift: float = 0.0
    drift_blocks: int = 24
    spikes: float = 0.0
    spike: float = 0.3

    def drift_factor(self, position: float) -> float:
        """Factor after ``position`` blocks; between 1 and 1 + drift."""
        phase = position / self.drift_blocks % 2.0
        return 1.0 + self.drift * min(phase, 2.0 - phase)


@dataclass
class SyntheticTimer:
    """Times contestants whose true times are known; the ``time`` half of a workbench.

    Attributes:
        truth: True seconds of a launch, by contestant.
        noise: What is added.
        rng: Source of all randomness.
        launches: Launches in a block.
        blocks: Blocks taken until now: the position of the drift.
    """

    truth: Mapping[str, float]
    noise: Noise
    rng: np.random.Generator
    launches: int = 1
    blocks: float = 0.0

    def time(
        self,
        contestants: Mapping[str, Contestant],
        task: Task,  # noqa: ARG002 - the port's
        plan: TimingPlan,
    ) -> Samples:
        """Interleaved blocks of one set of fresh processes, in the order of a real measurement."""
        names = list(contestants)
        offsets = dict(zip(names, self._factors(self.noise.process, len(names)), strict=True))
        taken = [
            self._block(name, pair, offsets[name])
            for pair, order in enumerate(orders(names, plan.pairs, plan.seed))
            for name in order
        ]
        return Samples.model_construct(
            purpose=plan.purpose,
            regime=f"{plan.regime} {plan.l2}",
            blocks=tuple(taken),
            dropped=(),
            process="",
        )

    def _block(self, name: str, pair: int, offset: float) -> Block:
        self.blocks += 1.0
        base = self.truth[name] * offset * self.noise.drift_factor(self.blocks)
        base *= self._factors(self.noise.block, 1)[0]
        if self.noise.spikes and self.rng.random() < self.noise.spikes:
            base *= 1.0 + self.noise.spike
        seconds = tuple(base * f for f in self._factors(self.noise.launch, self.launches))
        return Block.model_construct(
            contestant=name,
            pair=pair,
            seconds=seconds,
            host_seconds=sum(seconds),
            clocks=(),
            group=0,
        )

    def _factors(self, spread: float, count: int) -> Sequence[float]:
        if not spread:
            return (1.0,) * count
        return [math.exp(spread * z) for z in self.rng.standard_normal(count)]
