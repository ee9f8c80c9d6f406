"""DECIDE as a pure function of estimates and policy.

A gain is a statistical statement: a cheap screen drops what is clearly slower; interleaved
pairs against the best decide; fresh processes confirm. Both take more pairs until the matter is
clear, or until the pairs that are left could not make it clear; then the incumbent stays where
it is. Giving up early keeps nothing wrong: it can only miss a gain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from croq_fsm.domain.measurement import Estimate
from croq_fsm.domain.states import Decision
from croq_fsm.domain.work import Phase

#: Ratios beyond which a screen is taken twice: as likely a disturbed device as such an idea.
_INCREDIBLY_SLOW: Final = 0.5
_INCREDIBLY_FAST: Final = 1.5
#: Ratio to the best, and to the library, above which one confirmation is not enough.
_ASTONISHING: Final = 2.0
_ABOVE_LIBRARY: Final = 1.10
#: How the reason of a quarantined candidate begins.
QUARANTINED: Final = "quarantined"
#: From this ratio on, "times" reads better than per cent.
_TIMES_FROM: Final = 1.5
#: An undecided gain that is surely below this many smallest effects is given up: to tell 0.4 %
#: from 0.6 % would take ten times the pairs that tell 0 % from 1 %.
_WORTH: Final = 2.0


@dataclass(frozen=True)
class Policy:
    """Limits of the decision.

    Attributes:
        min_effect: Smallest relative gain that counts.
        screen_margin: Relative loss at which a screen alone rejects.
        noise: Relative noise floor now: what a kernel differs from itself in A/A samples of
            the same window where there are some, else of the latest A/A measurement.
        pairs: Pairs of the first full measurement.
        max_pairs: Cap of pairs, of the measurement and of the confirmation each.
        confirm_pairs: Pairs of the confirmation at first; as many as the decision took if more.
        screen_pairs: Pairs of the screen.
        greedy: Whether any higher median wins, as the protocol says literally.
        floor_s: Time of a call below which nothing is believed, seconds; None where it is unknown.
    """

    min_effect: float
    screen_margin: float
    noise: float
    pairs: int
    max_pairs: int
    confirm_pairs: int
    screen_pairs: int = 5
    greedy: bool = False
    floor_s: float | None = None

    @property
    def threshold(self) -> float:
        """Ratio that a gain's interval must lie above."""
        return 1.0 + self.min_effect

    @property
    def cap(self) -> int:
        """Pairs after which nothing more is measured."""
        return max(self.max_pairs, self.confirm_pairs)


@dataclass(frozen=True)
class Sight:
    """What else the samples show, beside the estimate.

    Attributes:
        seconds: Time of a call of the candidate.
        to_library: Library time over the candidate's, where the library took part.
        windows: Separate measurements of this phase.
        halves: Ratio in the earlier and in the later half of the samples.
    """

    seconds: float | None = None
    to_library: float | None = None
    windows: int = 1
    halves: tuple[float, ...] = ()


@dataclass(frozen=True)
class Ruling:
    """Either a decision, or what to measure next."""

    decision: Decision | None
    reason: str
    next_phase: Phase = "pairs"
    next_pairs: int = 0
    kind: Literal["decided", "more", "confirm", "quarantined"] = "decided"


def rule(phase: Phase, estimate: Estimate, policy: Policy, sight: Sight | None = None) -> Ruling:
    """What the evidence of a phase means.

    Args:
        phase: Which samples the estimate rests on.
        estimate: Ratio best time / candidate time; above 1 means that the candidate is faster.
        policy: Limits.
        sight: What else the samples show.
    """
    seen = sight or Sight()
    if policy.floor_s is not None and seen.seconds is not None and seen.seconds < policy.floor_s:
        return _quarantined(seen.seconds, policy.floor_s)
    ruling = _rule(phase, estimate, policy)
    if phase == "confirm" and ruling.decision is Decision.KEEP:
        return _once_more(ruling, estimate, policy, seen)
    return ruling


def _rule(phase: Phase, estimate: Estimate, policy: Policy) -> Ruling:
    if phase == "screen":
        return _after_screen(estimate, policy)
    if phase == "pairs":
        return _greedy(estimate, policy) if policy.greedy else _after_pairs(estimate, policy)
    if policy.greedy:
        return _greedy_confirmed(estimate)
    return _after_confirmation(estimate, policy)


def _quarantined(seconds: float, floor_s: float) -> Ruling:
    return Ruling(
        Decision.RUN_FAIL,
        f"{QUARANTINED}: {seconds * 1e6:.3f} us is less than the {floor_s * 1e6:.3f} us that the "
        "peaks of the device allow; such a time is not believed",
        kind="quarantined",
    )


def _once_more(ruling: Ruling, estimate: Estimate, policy: Policy, sight: Sight) -> Ruling:
    """What astonishes is kept only if it shows in a second confirmation, and in each by itself."""
    why = ""
    if estimate.ratio > _ASTONISHING:
        why = f"{estimate.ratio:.2f} times as fast as the best"
    elif sight.to_library is not None and sight.to_library > _ABOVE_LIBRARY:
        why = f"{sight.to_library - 1.0:.1%} faster than the library"
    if not why:
        return ruling
    if sight.windows < 2:  # noqa: PLR2004 - the second confirmation
        reason = f"{why}: to be confirmed a second time"
        return Ruling(None, reason, "confirm", policy.confirm_pairs, "confirm")
    if min(sight.halves, default=1.0) <= 1.0:
        return Ruling(
            Decision.DISCARD,
            f"{why} in all, but not in each confirmation by itself ({_interval(estimate)})",
        )
    return Ruling(ruling.decision, f"{ruling.reason}, twice")


def _after_screen(estimate: Estimate, policy: Policy) -> Ruling:
    margin = max(3.0 * policy.noise, policy.screen_margin)
    if estimate.ratio < _INCREDIBLY_SLOW and estimate.pairs < 2 * policy.screen_pairs:
        # Less than half as fast: as likely a disturbed device as a bad idea. Look once more.
        return Ruling(None, "less than half as fast", "screen", policy.screen_pairs, "more")
    if estimate.ratio > _INCREDIBLY_FAST and estimate.pairs < 2 * policy.screen_pairs:
        return Ruling(
            None, f"over {_INCREDIBLY_FAST} times as fast", "screen", policy.screen_pairs, "more"
        )
    if estimate.ratio < 1.0 - margin and estimate.high < 1.0:
        return Ruling(
            Decision.DISCARD, f"{_slower(estimate)}, beyond the screen's margin of {margin:.1%}"
        )
    return Ruling(None, "not clearly slower", "pairs", policy.pairs, "more")


def _after_pairs(estimate: Estimate, policy: Policy) -> Ruling:
    if estimate.low > policy.threshold:
        pairs = max(policy.confirm_pairs, estimate.pairs)
        return Ruling(None, _faster(estimate), "confirm", pairs, "confirm")
    if estimate.high < policy.threshold:
        return Ruling(Decision.DISCARD, _no_gain(estimate, policy))
    bar = math.log(policy.threshold) + _reach_at_cap(estimate, policy)
    return _more("pairs", estimate, policy, bar)


def _more(phase: Phase, estimate: Estimate, policy: Policy, bar: float) -> Ruling:
    """More pairs, unless the cap is reached or would change nothing.

    Args:
        phase: Present phase.
        estimate: All pairs of it.
        policy: Limits.
        bar: Logarithm of the ratio that would have to be seen at the cap.
    """
    cap, worth = policy.cap, _WORTH * policy.min_effect
    if estimate.pairs >= cap:
        return Ruling(
            Decision.DISCARD,
            f"undecided after {estimate.pairs} pairs ({_interval(estimate)}); the best stays",
        )
    if estimate.high < 1.0 + worth:
        return Ruling(
            Decision.DISCARD,
            f"any gain is below {worth:.1%}, not worth more pairs ({_interval(estimate)})",
        )
    if _best_at_cap(estimate, policy) < bar:
        return Ruling(
            Decision.DISCARD,
            f"no gain in sight that {cap} pairs would prove ({_interval(estimate)})",
        )
    # In growing steps: each look at the data is one more chance to be fooled.
    more = min(max(policy.pairs, estimate.pairs // 2), cap - estimate.pairs)
    return Ruling(None, f"undecided ({_interval(estimate)})", phase, more, "more")


def _reach_at_cap(estimate: Estimate, policy: Policy) -> float:
    """Half of the interval, as a logarithm, when all pairs that may be taken have been taken."""
    below = math.log(estimate.ratio / estimate.low)
    return below * _shrinkage(estimate, policy)


def _best_at_cap(estimate: Estimate, policy: Policy) -> float:
    """Logarithm of the best ratio that the pairs still to come may plausibly lead to.

    With a share s of the pairs taken, the mean at the cap scatters about the mean now by the
    present error times sqrt(1 - s): nothing is left to hope for at the cap.
    """
    above = math.log(estimate.high / estimate.ratio)
    left = 1.0 - _shrinkage(estimate, policy) ** 2
    return math.log(estimate.ratio) + above * math.sqrt(left)


def _shrinkage(estimate: Estimate, policy: Policy) -> float:
    """Factor by which the interval will have shrunk at the cap."""
    return math.sqrt(min(1.0, estimate.pairs / policy.cap))


def _greedy(estimate: Estimate, policy: Policy) -> Ruling:
    """Any higher median is confirmed, anything else is discarded; no interval is asked for."""
    if estimate.ratio > 1.0:
        return Ruling(None, _faster(estimate), "confirm", policy.confirm_pairs, "confirm")
    return Ruling(Decision.DISCARD, f"greedy policy: not faster, {_interval(estimate)}")


def _greedy_confirmed(estimate: Estimate) -> Ruling:
    if estimate.ratio > 1.0:
        return Ruling(
            Decision.KEEP,
            f"greedy policy, no statistical statement: higher median, {_interval(estimate)}",
        )
    return Ruling(Decision.DISCARD, f"greedy policy: not faster again, {_interval(estimate)}")


def _after_confirmation(estimate: Estimate, policy: Policy) -> Ruling:
    gain = estimate.ratio - 1.0
    if estimate.low > 1.0 and estimate.ratio > policy.threshold and gain > policy.noise:
        return Ruling(Decision.KEEP, f"{_faster(estimate)}, confirmed in fresh processes")
    if estimate.high < policy.threshold:
        return Ruling(
            Decision.DISCARD,
            f"the gain did not show again in fresh processes ({_interval(estimate)})",
        )
    if gain <= policy.noise and estimate.pairs >= policy.cap:
        return Ruling(
            Decision.DISCARD,
            f"the gain lies within the noise floor of {policy.noise:.2%} ({_interval(estimate)})",
        )
    # What the twin shows shrinks with the pairs as the interval does.
    noise = policy.noise * _shrinkage(estimate, policy)
    bar = max(math.log(policy.threshold), math.log1p(noise), _reach_at_cap(estimate, policy))
    return _more("confirm", estimate, policy, bar)


def _interval(estimate: Estimate) -> str:
    return (
        f"ratio {estimate.ratio:.4f} [{estimate.low:.4f}, {estimate.high:.4f}] "
        f"over {estimate.pairs} pairs"
    )


def _faster(estimate: Estimate) -> str:
    if estimate.ratio >= _TIMES_FROM:
        return f"{estimate.ratio:.2f} times as fast as the best, {_interval(estimate)}"
    return f"{estimate.ratio - 1.0:.2%} faster than the best, {_interval(estimate)}"


def _slower(estimate: Estimate) -> str:
    return f"{1.0 - estimate.ratio:.2%} slower than the best, {_interval(estimate)}"


def _no_gain(estimate: Estimate, policy: Policy) -> str:
    return f"no gain of {policy.min_effect:.1%} or more, {_interval(estimate)}"
