"""From the samples of a phase to a ruling: the one path of DECIDE, its audit and the trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from croq_fsm.domain.decision import Policy, Ruling, Sight, rule
from croq_fsm.domain.measurement import Estimate, Samples
from croq_fsm.domain.work import Phase
from croq_fsm.measure import stats

#: Version of estimates and rules, written down with each decision. Raised whenever equal samples
#: may come to another estimate or ruling, so that an audit does not call an older night wrong.
RULES: Final = 2


@dataclass(frozen=True)
class Judged:
    """What the samples of a phase come to.

    Attributes:
        ruling: A decision, or what to measure next.
        estimate: Best time / candidate time.
        noise: The noise floor that was gone by.
        fresh: The noise floor that these samples show by themselves; None where they cannot.
    """

    ruling: Ruling
    estimate: Estimate
    noise: float
    fresh: float | None


def judge(
    phase: Phase,
    samples: Samples,
    policy: Callable[[float], Policy],
    noise: float,
    seed: int,
    *,
    floor_s: float | None = None,
) -> Judged:
    """Estimate, noise floor and ruling.

    Args:
        phase: What the samples were taken for.
        samples: All of that phase, merged.
        policy: Limits, from a noise floor.
        noise: Noise floor to go by where the samples hold no twin.
        seed: Of resampling.
        floor_s: Time of a call below which nothing is believed; None where it is unknown.

    Raises:
        ValueError: Too few pairs.
    """
    estimate = stats.estimate(samples, "best", "candidate", seed=seed)
    fresh = stats.twin_noise(samples)
    used = noise if fresh is None else fresh
    limits = replace(policy(used), floor_s=floor_s)
    return Judged(rule(phase, estimate, limits, _sight(samples)), estimate, used, fresh)


def _sight(samples: Samples) -> Sight:
    ratios = list(stats.pair_ratios(samples, "best", "candidate"))
    middle = len(ratios) // 2
    halves = (ratios[:middle], ratios[middle:])
    library = list(stats.pair_ratios(samples, "library", "candidate"))
    return Sight(
        seconds=stats.block_seconds(samples, "candidate"),
        to_library=median(library) if library else None,
        windows=samples.windows,
        halves=tuple(float(median(half)) for half in halves if half),
    )
