"""From the samples of a phase to a ruling: the one path of DECIDE, its audit and the trials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from croq_fsm.domain.decision import Policy, Ruling, rule
from croq_fsm.domain.measurement import Estimate, Samples
from croq_fsm.domain.work import Phase
from croq_fsm.measure import stats


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
    phase: Phase, samples: Samples, policy: Callable[[float], Policy], noise: float, seed: int
) -> Judged:
    """Estimate, noise floor and ruling.

    Args:
        phase: What the samples were taken for.
        samples: All of that phase, merged.
        policy: Limits, from a noise floor.
        noise: Noise floor to go by where the samples hold no twin.
        seed: Of resampling.

    Raises:
        ValueError: Too few pairs.
    """
    estimate = stats.estimate(samples, "best", "candidate", seed=seed)
    fresh = stats.twin_noise(samples)
    used = noise if fresh is None else fresh
    return Judged(rule(phase, estimate, policy(used)), estimate, used, fresh)
