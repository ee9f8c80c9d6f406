"""Statistics of interleaved samples: pure functions, no I/O.

Ratios are taken inside a *pair*: two blocks that ran close together in time. Slow drift of clocks
or temperature moves both and leaves their ratio alone. The unit of evidence is the *group*, a set
of fresh processes: pairs of one group share what its processes happened to get (pages, caches),
so an interval over pairs would be too narrow. Where there is one group only, pairs must do.
"""

from __future__ import annotations

import math
from statistics import NormalDist, median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from croq_fsm.domain.measurement import Estimate, Samples

#: A noise floor above this says more about the neighbours than about the device.
DISTURBED: Final = 0.05
#: Two-sided confidence of all intervals.
CONFIDENCE: Final = 0.99

_RESAMPLES: Final = 4000
#: Student's two-sided 99 % quantiles for the few degrees of freedom where no expansion holds.
_STUDENT_99: Final = {1: 63.657, 2: 9.925, 3: 5.841, 4: 4.604}
_FEWEST_PAIRS: Final = 3
_FEWEST_GROUPS: Final = 3
_TRIM_ONE_IN: Final = 10


def block_medians(samples: Samples, contestant: str) -> dict[int, float]:
    """Median launch time of each block of one contestant, seconds, by pair."""
    return {block.pair: float(median(block.seconds)) for block in samples.of(contestant)}


def block_seconds(samples: Samples, contestant: str) -> float:
    """Median over blocks of the median launch time, seconds.

    Raises:
        ValueError: The contestant has no block.
    """
    medians = block_medians(samples, contestant)
    if not medians:
        raise ValueError(f"no block of {contestant!r} in these samples")
    return float(np.median(list(medians.values())))


def pair_ratios(samples: Samples, numerator: str, denominator: str) -> NDArray[np.float64]:
    """Time of ``numerator`` over time of ``denominator`` in each complete pair, in order."""
    return np.array(list(_ratios(samples, numerator, denominator).values()))


def estimate(samples: Samples, numerator: str, denominator: str, seed: int) -> Estimate:
    """How much longer ``numerator`` takes than ``denominator``, with its 99 % interval.

    With ``best`` as numerator and ``candidate`` as denominator, a ratio above 1 means that the
    candidate is faster. Exchanging the two gives exactly the reciprocal values.

    Raises:
        ValueError: Fewer than three complete pairs.
    """
    ratios = _ratios(samples, numerator, denominator)
    groups = _group_logs(samples, ratios)
    if len(groups) >= _FEWEST_GROUPS:
        return _over_groups(groups, len(ratios))
    return ratio_estimate(np.array(list(ratios.values())), seed)


def _ratios(samples: Samples, numerator: str, denominator: str) -> dict[int, float]:
    above, below = block_medians(samples, numerator), block_medians(samples, denominator)
    return {pair: above[pair] / below[pair] for pair in sorted(above.keys() & below.keys())}


def _group_logs(samples: Samples, ratios: dict[int, float]) -> NDArray[np.float64]:
    """Median log ratio of the pairs of each group, in order."""
    group_of = {block.pair: block.group for block in samples.blocks}
    logs: dict[int, list[float]] = {}
    for pair, ratio in ratios.items():
        logs.setdefault(group_of[pair], []).append(math.log(ratio))
    return np.array([median(values) for values in logs.values()])


def _over_groups(groups: NDArray[np.float64], pairs: int) -> Estimate:
    """Trimmed mean over groups with Student's interval: what other fresh processes would show.

    Of ten groups and more, the lowest and the highest tenth are set aside, and the interval is
    Yuen's: a disturbance of one group costs no more than that group. Below ten, all count.
    """
    count, cut = len(groups), len(groups) // _TRIM_ONE_IN
    ordered = np.sort(groups)
    kept = ordered[cut : count - cut]
    middle = float(np.mean(kept))
    winsorised = np.clip(groups, kept[0], kept[-1])
    share = len(kept) / count
    error = float(np.std(winsorised, ddof=1)) / (share * math.sqrt(count))
    reach = _student_quantile(len(kept) - 1) * error
    return Estimate(
        ratio=math.exp(middle),
        low=math.exp(middle - reach),
        high=math.exp(middle + reach),
        pairs=pairs,
    )


def ratio_estimate(ratios: NDArray[np.float64], seed: int) -> Estimate:
    """Median of independent ratios with its 99 % bootstrap interval.

    The percentile bootstrap of logarithms, widened for few pairs: resampling n values shows a
    spread that is too small by sqrt((n - 1) / n), and its tails are normal where Student's are
    due. Both are made good by stretching the interval about the median.

    Raises:
        ValueError: Fewer than three ratios, or one that is not positive and finite.
    """
    count = len(ratios)
    if count < _FEWEST_PAIRS:
        raise ValueError(f"{count} pairs are too few for an interval; {_FEWEST_PAIRS} are needed")
    if not (np.isfinite(ratios).all() and (ratios > 0).all()):
        raise ValueError("a ratio of times must be positive and finite")
    logs = np.log(ratios)
    middle = float(np.median(logs))
    # Deviations, mirrored, make the result independent of which way round the ratio is.
    below, above = _deviations(logs - middle, seed)
    stretch = _small_sample_factor(count)
    return Estimate(
        ratio=math.exp(middle),
        low=math.exp(middle - stretch * below),
        high=math.exp(middle + stretch * above),
        pairs=count,
    )


def noise_floor(samples: Samples, seed: int = 1) -> float:
    """Relative difference that two runs of the same thing may show here.

    The largest distance from 1 that the interval of an A/A measurement admits; for example
    0.01 means that gains up to 1 % cannot be told from nothing with as many pairs.

    Raises:
        ValueError: The samples do not hold exactly two contestants with enough pairs.
    """
    names = sorted({block.contestant for block in samples.blocks})
    if len(names) != 2:  # noqa: PLR2004 - an A/A test has two sides
        raise ValueError(f"an A/A measurement has two contestants, this one has {names}")
    return spread(estimate(samples, names[0], names[1], seed))


def twin_noise(samples: Samples) -> float | None:
    """Noise floor from a candidate that ran twice in these samples; None where it did not."""
    if not samples.of("twin"):
        return None
    return spread(estimate(samples, "candidate", "twin", seed=1))


def spread(aa: Estimate) -> float:
    """The largest relative difference that an A/A interval admits."""
    return max(aa.high - 1.0, 1.0 / aa.low - 1.0)


def _deviations(centred: NDArray[np.float64], seed: int) -> tuple[float, float]:
    """How far below and above the median the resampled medians reach."""
    rng = np.random.Generator(np.random.PCG64(seed))
    picks = rng.integers(0, len(centred), size=(_RESAMPLES, len(centred)))
    ordered = np.sort(centred)
    medians = np.median(ordered[picks], axis=1)
    # The same picks counted from the other end: exact symmetry under exchange of the sides.
    mirrored = np.median(ordered[::-1][picks], axis=1)
    both = np.concatenate([medians, mirrored])
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(both, [tail, 1.0 - tail])
    return max(0.0, -float(low)), max(0.0, float(high))


def _small_sample_factor(count: int) -> float:
    """Student's quantile over the normal one, times sqrt(n / (n - 1))."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)
    return _student_quantile(count - 1) / z * math.sqrt(count / (count - 1))


def _student_quantile(freedom: int) -> float:
    """Two-sided quantile of Student's distribution at ``CONFIDENCE``."""
    if freedom in _STUDENT_99:
        return _STUDENT_99[freedom]
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)
    v = freedom
    # Cornish-Fisher expansion, exact to four digits from five degrees of freedom.
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    )
