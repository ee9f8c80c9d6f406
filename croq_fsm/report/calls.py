"""What models and agents were asked, what came of it, and what it cost. Pure functions."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from croq_fsm.domain.calls import Call, CallOutcome
from croq_fsm.storage.views import timestamp


@dataclass(frozen=True)
class Usage:
    """Calls of one model or agent on one day.

    Attributes:
        day: UTC date.
        name: Ideator, with the model where it has one.
        calls: How many.
        outcomes: How many of each.
        tokens: Tokens sent and received, as far as providers told.
        usd: Cost of those.
        reserved_usd: What calls may have cost whose end nobody told.
        latency_s: Median wall seconds.
    """

    day: str
    name: str
    calls: int
    outcomes: dict[CallOutcome, int]
    tokens: int
    usd: float
    reserved_usd: float
    latency_s: float


def by_day(calls: Iterable[Call]) -> list[Usage]:
    """Calls by UTC day and model, in order."""
    groups: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        begun = call.begun
        model = f" ({begun.model})" if begun.model and begun.model != begun.ideator else ""
        key = (timestamp(call.started_at)[:10], f"{begun.ideator}{model}")
        groups.setdefault(key, []).append(call)
    return [_usage(day, name, group) for (day, name), group in sorted(groups.items())]


def _usage(day: str, name: str, group: list[Call]) -> Usage:
    ends = [call.ended for call in group]
    untold = [e for e in ends if e.usd is None]
    return Usage(
        day=day,
        name=name,
        calls=len(group),
        outcomes=dict(Counter(e.outcome for e in ends)),
        tokens=sum((e.input_tokens or 0) + (e.output_tokens or 0) for e in ends),
        usd=sum(e.usd or 0.0 for e in ends),
        reserved_usd=sum(e.charged_usd for e in untold),
        latency_s=statistics.median(e.latency_s for e in ends),
    )


def lines(calls: Iterable[Call]) -> list[str]:
    """A line for each day and model; empty when nobody was asked."""
    found = []
    for use in by_day(calls):
        outcomes = ", ".join(f"{n} {o}" for o, n in sorted(use.outcomes.items(), key=_by_number))
        untold = f" (and up to {use.reserved_usd:.4f} untold)" if use.reserved_usd else ""
        found.append(
            f"{use.day}  {use.name}: {use.calls} calls ({outcomes}), {use.tokens} tokens, "
            f"{use.usd:.4f} USD{untold}, median {use.latency_s:.1f} s"
        )
    return found


def _by_number(item: tuple[CallOutcome, int]) -> tuple[int, str]:
    return -item[1], str(item[0])
