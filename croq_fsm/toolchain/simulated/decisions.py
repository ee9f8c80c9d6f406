"""Thousands of decisions over synthetic samples whose truth is known.

The samples are synthetic, everything that judges them is what a session uses: sets of processes,
screen, pairs and confirmation, statistics, and the rule of DECIDE with its policy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from croq_fsm.config import Measure
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.measure.trial import Trial
from croq_fsm.toolchain.simulated.noise import Noise, SyntheticTimer

#: 3 % from trough to peak within 24 blocks, common to all contestants.
_DRIFT: Final = 0.03

#: The scatter of each scenario. The first is the goal's: 3 % from block to block is what remains
#: after the median over a block's launches, and so the hardest meaning of "3 % noise".
NOISES: Final = {
    "block 3 %": Noise(block=0.03, drift=_DRIFT),
    "block 1 %": Noise(block=0.01, drift=_DRIFT),
    "launch 3 %": Noise(launch=0.03, drift=_DRIFT),
    "block 1 %, process 1 %": Noise(block=0.01, process=0.01, drift=_DRIFT),
    "block 1 %, process 2 %": Noise(block=0.01, process=0.02, drift=_DRIFT),
    "block 3 %, process 1 %": Noise(block=0.03, process=0.01, drift=_DRIFT),
    "block 1 %, spikes": Noise(block=0.01, drift=_DRIFT, spikes=0.05, spike=0.3),
}
GOAL: Final = "block 3 %"
GAINS: Final = (0.0, 0.005, 0.01, 0.02, 0.05)

_BEST_S: Final = 1e-3
#: Launches in a block where launches scatter; elsewhere they are all alike and one is enough.
_LAUNCHES: Final = 20
_PER_NOISE_FLOOR: Final = 50
_Z95: Final = 1.959964
_TASK: Final = Task(
    dsl="croqtile", operator="matmul", dtype="f16", shape=(64, 64, 64), kernel="", model="trial"
)


@dataclass(frozen=True)
class Chunk:
    """A part of a scenario that runs by itself; the same wherever it runs.

    Attributes:
        noise: Name in ``NOISES``.
        gain: True gain of the candidate; 0 for A/A.
        decisions: How many.
        seed: Of the trial.
        ordinal: Which part of its scenario this is.
    """

    noise: str
    gain: float
    decisions: int
    seed: int
    ordinal: int

    def rng(self) -> np.random.Generator:
        """Randomness of this part alone."""
        scenario = (list(NOISES).index(self.noise), round(self.gain * 1e6), self.ordinal)
        return np.random.default_rng([self.seed, *scenario])


@dataclass
class Tally:
    """What came of the decisions of one scenario."""

    noise: str
    gain: float
    decisions: int = 0
    keeps: int = 0
    pairs: int = 0
    blocks: int = 0
    phases: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Count another part of the same scenario in."""
        self.decisions += other.decisions
        self.keeps += other.keeps
        self.pairs += other.pairs
        self.blocks += other.blocks
        self.phases += other.phases

    @property
    def kept(self) -> float:
        """Share of KEEPs: false ones where the gain is 0, else found gains."""
        return self.keeps / self.decisions

    def row(self) -> dict[str, Any]:
        """For people and for JSON."""
        wrong = self.keeps if self.gain == 0 else self.decisions - self.keeps
        return {
            "noise": self.noise,
            "true gain": self.gain,
            "decisions": self.decisions,
            "KEEP": self.keeps,
            ("false KEEP" if self.gain == 0 else "missed"): wrong / self.decisions,
            "at most (95 %)": round(_upper(wrong, self.decisions), 6),
            "pairs per decision": round(self.pairs / self.decisions, 1),
            "blocks per decision": round(self.blocks / self.decisions, 1),
            "decided in": dict(sorted(self.phases.items())),
        }


def chunks(decisions: int, others: int, seed: int, size: int = 250) -> Iterator[Chunk]:
    """All parts: the goal's two scenarios and each A/A at full length, the others shorter."""
    for noise in NOISES:
        for gain in GAINS:
            is_long = gain == 0.0 or (noise, gain) == (GOAL, 0.02)
            left = decisions if is_long else others
            for ordinal in range(math.ceil(left / size)):
                yield Chunk(noise, gain, min(size, left - ordinal * size), seed, ordinal)


def run(chunk: Chunk, settings: Measure) -> Tally:
    """Take the decisions of one part."""
    noise, rng = NOISES[chunk.noise], chunk.rng()
    faster = _BEST_S / (1.0 + chunk.gain)
    truth = dict.fromkeys(("best", "library", "a", "b"), _BEST_S)
    truth |= dict.fromkeys(("candidate", "twin"), faster)
    launches = _LAUNCHES if noise.launch else 1
    position = float(rng.uniform(0, 2 * noise.drift_blocks))
    timer = SyntheticTimer(truth, noise, rng, launches, position)
    trial = Trial(timer, _TASK, settings, "library")
    for number in range(chunk.decisions):
        if number % _PER_NOISE_FLOOR == 0:
            trial.measure_noise(number)
        trial.decide("library", 1000 * number)
    keeps = trial.verdicts[str(Decision.KEEP)]
    return Tally(
        chunk.noise, chunk.gain, chunk.decisions, keeps, trial.pairs, trial.blocks, trial.phases
    )


def summary(tallies: dict[tuple[str, float], Tally], settings: Measure) -> dict[str, Any]:
    """The whole result, with the meaning of each noise and whether the goals are met."""
    false, missed = tallies[GOAL, 0.0].kept, 1.0 - tallies[GOAL, 0.02].kept
    return {
        "what": "decisions over synthetic samples with the engine's own statistics and rule",
        "noise": {name: asdict(noise) for name, noise in NOISES.items()},
        "noise means": (
            "standard deviations of the logarithm, log-normal: launch for each launch (20 in a "
            "block), block common to the launches of a block, process common to the blocks of one "
            "contestant in one set of fresh processes; drift from trough to peak within "
            "drift_blocks blocks, common to all contestants; spikes: share of blocks that take "
            "longer by the share spike"
        ),
        "policy": settings.model_dump(mode="json"),
        "goal": {
            "noise": GOAL,
            "false KEEP": false,
            "false KEEP wanted": _FALSE_KEEP,
            "missed gains of 2 %": missed,
            "missed wanted": _MISSED,
            "met": false <= _FALSE_KEEP and missed <= _MISSED,
        },
        "rows": [tally.row() for tally in tallies.values()],
    }


_FALSE_KEEP: Final = 0.001
_MISSED: Final = 0.05


def _upper(count: int, of: int) -> float:
    """Upper end of Wilson's 95 % interval of a share."""
    share, z2 = count / of, _Z95**2
    middle = share + z2 / (2 * of)
    reach = _Z95 * math.sqrt(share * (1 - share) / of + z2 / (4 * of**2))
    return (middle + reach) / (1 + z2 / of)
