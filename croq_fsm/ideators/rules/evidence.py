"""Quoting a profile: which metrics a hypothesis rests on, and the sentence that names them."""

from __future__ import annotations

from typing import Final

from croq_fsm.domain.profile import Metric, Profile

#: A hypothesis with more figures than this is not read.
_MOST_QUOTES: Final = 3


def quote(profile: Profile, wanted: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Text such as ``flops.pct_of_peak is 1.4 %`` and the names of the metrics in it.

    Only metrics that the profile holds are quoted. When it holds none of ``wanted``, its own
    first ones are; a profile without any metric gives its bottleneck class and no names.
    """
    found = [m for name in wanted for m in profile.metrics if m.name == name][:_MOST_QUOTES]
    found = found or list(profile.metrics[:2])
    if not found:
        return f"the profile says {profile.bottleneck}", ()
    text = ", ".join(_told(metric) for metric in found)
    return f"{text} ({profile.bottleneck})", tuple(metric.name for metric in found)


def _told(metric: Metric) -> str:
    unit = f" {metric.unit}" if metric.unit else ""
    return f"{metric.name} is {metric.value:.4g}{unit}"
