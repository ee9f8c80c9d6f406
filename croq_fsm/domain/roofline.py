"""Classification from timing alone, for the openly marked degraded mode."""

from __future__ import annotations

from typing import Final, Literal

from croq_fsm.domain import own_host
from croq_fsm.domain.device import Device
from croq_fsm.domain.profile import Metric, Profile
from croq_fsm.domain.states import Bottleneck
from croq_fsm.domain.task import Task

_LAUNCH_BOUND_S: Final = 10e-6
_NEAR_ROOF_PCT: Final = 60.0


def timing_profile(task: Task, device: Device, binary: str, seconds: float) -> Profile:
    """A degraded profile: only time, and the shares of the peaks that it implies."""
    metrics = [Metric(name="time.us", value=seconds * 1e6, unit="us")]
    compute = _share(task.flops / seconds, device.peak_flops) if task.flops else None
    memory = _share(task.nbytes / seconds, device.peak_bandwidth) if task.nbytes else None
    if compute is not None:
        metrics.append(Metric(name="flops.pct_of_peak", value=compute, unit="%"))
    if memory is not None:
        metrics.append(Metric(name="bandwidth.pct_of_peak", value=memory, unit="%"))
    bottleneck, evidence = _classify(seconds, compute, memory)
    confidence: Literal["low"] = "low"
    return Profile(
        binary=binary,
        tool=f"timing only, {own_host.LABEL}" if task.own_host else "timing only",
        full=False,
        degraded=True,
        bottleneck=bottleneck,
        confidence=confidence,
        evidence=(evidence, "counters could not be read; this class rests on timing alone"),
        metrics=tuple(metrics),
        duration=seconds,
    )


def _share(rate: float, peak: float | None) -> float | None:
    return None if not peak else 100.0 * rate / peak


def _classify(
    seconds: float, compute: float | None, memory: float | None
) -> tuple[Bottleneck, str]:
    if seconds < _LAUNCH_BOUND_S:
        return Bottleneck.LAUNCH, f"time.us is {seconds * 1e6:.2f}, near the cost of a launch"
    if compute is None or memory is None:
        return _half_known(compute, memory)
    shares = {Bottleneck.COMPUTE: compute or 0.0, Bottleneck.MEMORY: memory or 0.0}
    highest = max(shares, key=lambda kind: shares[kind])
    text = (
        f"{shares[Bottleneck.COMPUTE]:.1f} % of peak FLOP/s, "
        f"{shares[Bottleneck.MEMORY]:.1f} % of peak bandwidth"
    )
    if all(share >= _NEAR_ROOF_PCT for share in shares.values()):
        return Bottleneck.MIXED, text
    return (highest if shares[highest] >= _NEAR_ROOF_PCT else Bottleneck.LATENCY), text


def _half_known(compute: float | None, memory: float | None) -> tuple[Bottleneck, str]:
    """A share that is not known can be the high one: only a high known share says something."""
    for kind, share, what in (
        (Bottleneck.COMPUTE, compute, "FLOP/s"),
        (Bottleneck.MEMORY, memory, "bandwidth"),
    ):
        if share is not None:
            found = kind if share >= _NEAR_ROOF_PCT else Bottleneck.MIXED
            return found, f"{share:.1f} % of peak {what}, and the other share is not known"
    return Bottleneck.MIXED, "neither work nor traffic can be set against peaks"
