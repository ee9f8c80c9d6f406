"""Decisions outside of a session: the loop of MEASURE and DECIDE on two given kernels.

For trials in which the truth is known, such as candidates that are the best kernel itself. The
past of a session, which would refuse a kernel that was tried before, is left out on purpose;
what is measured, in which order, and what it means are the same as on a night.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from croq_fsm.config import Measure
from croq_fsm.domain.measurement import Estimate, Samples, merge
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.domain.work import Phase
from croq_fsm.measure import sets, stats
from croq_fsm.measure.judging import judge
from croq_fsm.toolchain.workbench import Contestant, TimingPlan


@dataclass(frozen=True)
class Decided:
    """One decision and what it took.

    Attributes:
        decision: KEEP or DISCARD.
        reason: Its sentence.
        estimate: What it rests on.
        phase: The deciding phase.
        pairs: Pairs of all phases.
        blocks: Blocks of all contestants, warm-ups not counted.
    """

    decision: Decision
    reason: str
    estimate: Estimate
    phase: Phase
    pairs: int
    blocks: int


@dataclass
class Trial:
    """Decides on one candidate after the other and keeps the tally.

    Attributes:
        timer: Takes the samples.
        task: What is computed.
        settings: As a session has them.
        best: The incumbent.
        noise: Noise floor, as BASELINE finds it; see ``measure_noise``.
        verdicts: Decisions until now, by name.
        phases: Deciding phases until now.
        pairs: Pairs of all decisions.
        blocks: Blocks of all decisions.
    """

    timer: sets.Timer
    task: Task
    settings: Measure
    best: Contestant
    noise: float = 0.0
    verdicts: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    pairs: int = 0
    blocks: int = 0

    def measure_noise(self, seed: int = 1) -> float:
        """A/A measurement of the incumbent, as at BASELINE."""
        same = {"a": self.best, "b": self.best}
        plan = self._plan("noise", self.settings.pairs, seed)
        per_process = self.settings.pairs_per_process
        self.noise = stats.noise_floor(sets.timed(self.timer, same, self.task, plan, per_process))
        return self.noise

    def decide(self, candidate: Contestant, seed: int) -> Decided:
        """Measure as MEASURE does and rule as DECIDE does, until there is a decision."""
        phase: Phase = "screen"
        pairs, taken, total, blocks = self.settings.screen_pairs, 0, 0, 0
        merged: Samples | None = None
        while True:
            part = self._take(candidate, phase, pairs, seed + taken)
            taken, total, blocks = taken + 1, total + pairs, blocks + len(part.blocks)
            merged = merge([merged, part]) if merged and merged.purpose == phase else part
            judged = judge(phase, merged, self.settings.decision_policy, self.noise, seed=1)
            ruling = judged.ruling
            if ruling.decision is not None:
                done = Decided(
                    ruling.decision, ruling.reason, judged.estimate, phase, total, blocks
                )
                self._count(done)
                return done
            phase, pairs = ruling.next_phase, ruling.next_pairs

    def _take(self, candidate: Contestant, phase: Phase, pairs: int, seed: int) -> Samples:
        names: dict[str, Contestant] = {"candidate": candidate, "best": self.best}
        plan = self._plan(phase, pairs, seed)
        if phase == "screen":
            return self.timer.time(names, self.task, plan)
        if phase == "confirm":
            names |= {"library": "library", "twin": candidate}
        return sets.timed(self.timer, names, self.task, plan, self.settings.pairs_per_process)

    def _plan(self, purpose: sets.Purpose, pairs: int, seed: int) -> TimingPlan:
        return sets.plan(self.settings, purpose, pairs, seed)

    def _count(self, done: Decided) -> None:
        self.verdicts[str(done.decision)] += 1
        self.phases[done.phase] += 1
        self.pairs += done.pairs
        self.blocks += done.blocks
