"""Roofline profile of a CPU kernel: how near it comes to the machine's two roofs, and why not.

The roofs are measured on this machine (``peaks.c``). Traffic is the compulsory one, every
operand moved once; where the machine lets us read cache misses, the real one is shown beside
it. A counter that cannot be read is absent, never zero.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Final, Literal

from croq_fsm.domain.build import Build
from croq_fsm.domain.device import Device
from croq_fsm.domain.profile import Metric, Profile
from croq_fsm.domain.states import Bottleneck
from croq_fsm.domain.task import Task

TOOL: Final = "roofline-cpu"

_LAUNCH_S: Final = 5e-6
_NEAR_PCT: Final = 60.0
_CLEAR_PCT: Final = 75.0
_FAR_PCT: Final = 30.0
_NOISY: Final = 0.15
_LINE_BYTES: Final = 64
_LOW_IPC: Final = 1.0
_POSSIBLE: Final = 1.5

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True)
class Observation:
    """What was seen of one kernel.

    Attributes:
        seconds: Time of each launch, cold operands.
        counters: Sums over these launches, by the names of ``perf``.
    """

    seconds: tuple[float, ...]
    counters: dict[str, float]

    @property
    def typical(self) -> float:
        """Median launch time, seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Median distance from the median, relative."""
        middle = self.typical
        return statistics.median(abs(value - middle) for value in self.seconds) / middle

    def per_launch(self, counter: str) -> float | None:
        """A counter for one launch, or None."""
        value = self.counters.get(counter)
        return None if value is None else value / len(self.seconds)


def profile(build: Build, task: Task, device: Device, seen: Observation, *, full: bool) -> Profile:
    """Metrics, class, evidence and confidence."""
    metrics = _metrics(build, task, device, seen)
    values = {metric.name: metric.value for metric in metrics}
    bottleneck, evidence = _classify(values)
    return Profile(
        binary=build.binary_sha256,
        tool=TOOL,
        full=full,
        bottleneck=bottleneck,
        confidence=_confidence(bottleneck, values, seen.spread),
        evidence=(*evidence, *_hints(values)),
        metrics=tuple(metrics),
        remarks=build.remarks,
        duration=seen.typical,
    )


def excess(task: Task, device: Device, seconds: float) -> str:
    """Why a time cannot be, by the measured peaks; "" when it can.

    Reading the inputs from memory and, for operators with a fixed amount of arithmetic, doing
    it take their time. A peak that was measured among neighbours is too low, hence the margin.
    """
    inputs = sum(tensor.nbytes(task.sizes) for tensor in task.precision.inputs)
    shares = {"bandwidth": inputs / seconds / (device.peak_bandwidth or math.inf)}
    if not task.op.judged_by_time:
        shares["FLOP/s"] = task.flops / seconds / (device.peak_flops or math.inf)
    name = max(shares, key=lambda key: shares[key])
    if shares[name] <= _POSSIBLE:
        return ""
    return f"{seconds * 1e6:.2f} us would be {shares[name]:.1f} times the machine's peak {name}"


def _metrics(build: Build, task: Task, device: Device, seen: Observation) -> list[Metric]:
    seconds = seen.typical
    found = [
        Metric(name="time.us", value=seconds * 1e6, unit="us"),
        Metric(name="time.spread_pct", value=100 * seen.spread, unit="%"),
        Metric(name="flops.rate", value=task.flops / seconds / 1e9, unit="GFLOP/s"),
        Metric(name="bandwidth.rate", value=task.nbytes / seconds / 1e9, unit="GB/s"),
        Metric(name="intensity.flop_per_byte", value=task.flops / task.nbytes, unit="FLOP/byte"),
    ]
    found += _against_peaks(task, device, seconds)
    found += _from_counters(device, seen)
    for name in ("loops_vectorized", "loops_missed"):
        if name in build.resources:
            found.append(Metric(name=f"vector.{name}", value=build.resources[name]))
    return found


def _against_peaks(task: Task, device: Device, seconds: float) -> list[Metric]:
    found = []
    if device.peak_flops:
        share = 100 * task.flops / seconds / device.peak_flops
        found.append(Metric(name="flops.pct_of_peak", value=share, unit="%"))
    if device.peak_bandwidth:
        share = 100 * task.nbytes / seconds / device.peak_bandwidth
        found.append(Metric(name="bandwidth.pct_of_peak", value=share, unit="%"))
    if device.peak_flops and device.peak_bandwidth:
        balance = device.peak_flops / device.peak_bandwidth
        found.append(Metric(name="intensity.machine_balance", value=balance, unit="FLOP/byte"))
    return found


def _from_counters(device: Device, seen: Observation) -> list[Metric]:
    found = []
    for counter in ("cycles", "instructions", "cache-misses", "branch-misses", "page-faults"):
        value = seen.per_launch(counter)
        if value is not None:
            found.append(Metric(name=f"counter.{counter}", value=value, unit="per launch"))
    cycles, instructions = seen.per_launch("cycles"), seen.per_launch("instructions")
    if cycles and instructions is not None:
        found.append(Metric(name="ipc", value=instructions / cycles, unit="per cycle"))
    misses = seen.per_launch("cache-misses")
    if misses is not None and device.peak_bandwidth:
        traffic = misses * _LINE_BYTES / seen.typical
        share = 100 * traffic / device.peak_bandwidth
        found.append(Metric(name="bandwidth.missed_pct_of_peak", value=share, unit="%"))
    return found


def _classify(values: dict[str, float]) -> tuple[Bottleneck, tuple[str, ...]]:
    """The class, and the sentences that it rests on."""
    if values["time.us"] < _LAUNCH_S * 1e6:
        text = f"time.us is {values['time.us']:.2f}: a call this short is mostly the call itself"
        return Bottleneck.LAUNCH, (text,)
    if "flops.pct_of_peak" not in values or "bandwidth.pct_of_peak" not in values:
        text = "the peaks of this machine are unknown, so no roof can be named"
        return Bottleneck.LATENCY, (text,)
    compute, compulsory = values["flops.pct_of_peak"], values["bandwidth.pct_of_peak"]
    real = values.get("bandwidth.missed_pct_of_peak", compulsory)
    text = (
        f"flops.pct_of_peak is {compute:.1f} and bandwidth.pct_of_peak is {compulsory:.1f}: "
        f"the kernel is at {_place(compute, max(compulsory, real))}"
    )
    sentences = [text]
    if real >= _NEAR_PCT > compulsory:
        sentences.append(
            f"bandwidth.missed_pct_of_peak is {real:.1f}: data is fetched again and again"
        )
    return _class_of(compute, max(compulsory, real)), tuple(sentences)


def _class_of(compute: float, memory: float) -> Bottleneck:
    is_compute, is_memory = compute >= _NEAR_PCT, memory >= _NEAR_PCT
    if is_compute and is_memory:
        return Bottleneck.MIXED
    if is_compute:
        return Bottleneck.COMPUTE
    return Bottleneck.MEMORY if is_memory else Bottleneck.LATENCY


def _place(compute: float, memory: float) -> str:
    match _class_of(compute, memory):
        case Bottleneck.MIXED:
            return "both roofs"
        case Bottleneck.COMPUTE:
            return "the roof of arithmetic"
        case Bottleneck.MEMORY:
            return "the roof of memory"
        case _:
            return "neither roof; its time goes into waiting for results and scalar work"


def _hints(values: dict[str, float]) -> list[str]:
    """Further sentences, each resting on a metric that is there."""
    found = []
    if values.get("vector.loops_missed", 0) > 0:
        found.append(
            f"vector.loops_missed is {values['vector.loops_missed']:.0f}: these innermost loops "
            "run one number at a time"
        )
    if (ipc := values.get("ipc")) is not None and ipc < _LOW_IPC:
        found.append(f"ipc is {ipc:.2f}: instructions wait for memory or for each other")
    intensity, balance = values["intensity.flop_per_byte"], values.get("intensity.machine_balance")
    if balance is not None:
        side = "arithmetic" if intensity > balance else "memory"
        found.append(
            f"intensity.flop_per_byte is {intensity:.1f} against intensity.machine_balance "
            f"{balance:.1f}: the problem itself is limited by {side}"
        )
    return found


def _confidence(bottleneck: Bottleneck, values: dict[str, float], spread: float) -> Confidence:
    """How clearly the shares of the peaks speak; noise and missing peaks make it low."""
    shares = [v for name, v in values.items() if name.endswith("pct_of_peak")]
    if bottleneck is Bottleneck.LAUNCH:
        return "high"
    if not shares or spread > _NOISY:
        return "low"
    highest = max(shares)
    if bottleneck is Bottleneck.LATENCY:
        return "high" if highest < _FAR_PCT else "medium"
    return "high" if highest >= _CLEAR_PCT else "medium"
