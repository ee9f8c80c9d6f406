"""DECIDE as a pure function of estimates and policy.

A gain is a statistical statement: a cheap screen drops what is clearly slower; interleaved
pairs against the best decide; a fresh process confirms; what stays unclear after the cap of
pairs leaves the incumbent where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from croq_fsm.domain.measurement import Estimate
from croq_fsm.domain.states import Decision
from croq_fsm.domain.work import Phase

#: Ratio below which a screen is taken twice.
_INCREDIBLY_SLOW: Final = 0.5
#: From this ratio on, "times" reads better than per cent.
_TIMES_FROM: Final = 1.5


@dataclass(frozen=True)
class Policy:
    """Limits of the decision.

    Attributes:
        min_effect: Smallest relative gain that counts.
        screen_margin: Relative loss at which a screen alone rejects.
        noise: Relative noise floor now: what a kernel differs from itself in A/A samples of
            the same window where there are some, else of the latest A/A measurement.
        pairs: Pairs of the first full measurement.
        max_pairs: Cap of pairs.
        confirm_pairs: Pairs of the confirmation.
        screen_pairs: Pairs of the screen.
        greedy: Whether any higher median wins, as the protocol says literally.
    """

    min_effect: float
    screen_margin: float
    noise: float
    pairs: int
    max_pairs: int
    confirm_pairs: int
    screen_pairs: int = 5
    greedy: bool = False

    @property
    def threshold(self) -> float:
        """Ratio that a gain's interval must lie above."""
        return 1.0 + self.min_effect


@dataclass(frozen=True)
class Ruling:
    """Either a decision, or what to measure next."""

    decision: Decision | None
    reason: str
    next_phase: Phase = "pairs"
    next_pairs: int = 0
    kind: Literal["decided", "more", "confirm"] = "decided"


def rule(phase: Phase, estimate: Estimate, policy: Policy) -> Ruling:
    """What the evidence of a phase means.

    Args:
        phase: Which samples the estimate rests on.
        estimate: Ratio best time / candidate time; above 1 means that the candidate is faster.
        policy: Limits.
    """
    if phase == "screen":
        return _after_screen(estimate, policy)
    if phase == "pairs":
        return _greedy(estimate, policy) if policy.greedy else _after_pairs(estimate, policy)
    if policy.greedy:
        return _greedy_confirmed(estimate)
    return _after_confirmation(estimate, policy)


def _after_screen(estimate: Estimate, policy: Policy) -> Ruling:
    margin = max(3.0 * policy.noise, policy.screen_margin)
    if estimate.ratio < _INCREDIBLY_SLOW and estimate.pairs < 2 * policy.screen_pairs:
        # Less than half as fast: as likely a disturbed device as a bad idea. Look once more.
        return Ruling(None, "less than half as fast", "screen", policy.screen_pairs, "more")
    if estimate.ratio < 1.0 - margin and estimate.high < 1.0:
        return Ruling(
            Decision.DISCARD, f"{_slower(estimate)}, beyond the screen's margin of {margin:.1%}"
        )
    return Ruling(None, "not clearly slower", "pairs", policy.pairs, "more")


def _after_pairs(estimate: Estimate, policy: Policy) -> Ruling:
    if estimate.low > policy.threshold:
        return Ruling(None, _faster(estimate), "confirm", policy.confirm_pairs, "confirm")
    if estimate.high < policy.threshold:
        return Ruling(Decision.DISCARD, _no_gain(estimate, policy))
    if estimate.pairs >= policy.max_pairs:
        return Ruling(
            Decision.DISCARD,
            f"undecided after {estimate.pairs} pairs ({_interval(estimate)}); the best stays",
        )
    more = min(policy.pairs, policy.max_pairs - estimate.pairs)
    return Ruling(None, f"undecided ({_interval(estimate)})", "pairs", more, "more")


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
    if estimate.ratio - 1.0 <= policy.noise:
        return Ruling(
            Decision.DISCARD,
            f"the gain lies within the noise floor of {policy.noise:.2%} ({_interval(estimate)})",
        )
    if estimate.low > 1.0 and estimate.ratio > policy.threshold:
        return Ruling(Decision.KEEP, f"{_faster(estimate)}, confirmed in a fresh process")
    return Ruling(
        Decision.DISCARD, f"the gain did not show again in a fresh process ({_interval(estimate)})"
    )


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
