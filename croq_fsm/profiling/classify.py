"""From counters and compiler remarks to a bottleneck, with the evidence spelt out.

Made for SM90: the tensor pipe is judged by its own cycles, since WGMMA issues so few
instructions that issue slots say nothing; and the long-scoreboard stall, which grows as a
producer waits for the copy engine, is never taken as a sign of latency by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from croq_fsm.domain.states import Bottleneck
from croq_fsm.profiling import ncu_metrics as names

Confidence = Literal["high", "medium", "low"]

_LAUNCH_NS, _SURELY_LAUNCH_NS = 10_000.0, 5_000.0
_BUSY, _SATURATED, _FULL = 60.0, 75.0, 90.0
_TAIL_LOSS: Final = 0.03
_CONFLICTS: Final = 1e6
_TOP_STALLS: Final = 3
_REMARKS: Final = {
    "C7510": "WGMMAs are serialised because the kernel calls a function",
    "C7514": "WGMMAs are serialised: their accumulators are read before a wait",
    "C7517": "warpgroup.wait was injected; WGMMAs end earlier than the text says",
    "C7519": "warpgroup.arrive was injected; harmless by itself",
    "C7520": "WGMMAs are serialised: their registers are touched while they run",
    "C7602": "there are not enough registers for a WGMMA",
    "C7508": "setmaxnreg is ignored",
}
_STALL_MEANS: Final = {
    "barrier": "warps wait for each other at a block or named barrier",
    "gmma": "warps wait for the tensor core to take the next WGMMA",
    "long_scoreboard": "warps wait for memory, or for barriers that the copy engine completes",
    "math_pipe_throttle": "the arithmetic pipe is full",
    "mio_throttle": "the shared-memory queue is full",
    "short_scoreboard": "warps wait for shared memory",
    "wait": "fixed latency between dependent instructions",
    "no_instruction": "the instruction cache misses",
}


@dataclass(frozen=True)
class Classification:
    """The class, how clearly the counters speak for it, and what they say."""

    bottleneck: Bottleneck
    confidence: Confidence
    evidence: tuple[str, ...]


def classify(counters: Mapping[str, float], remarks: Sequence[str] = ()) -> Classification:
    """Classify one launch.

    Args:
        counters: Values by name, in base units. An absent counter is absent, not 0.
        remarks: Compiler remarks.

    Raises:
        ValueError: Not one counter that says what is busy is there.
    """
    if all(counters.get(name) is None for name in (names.TENSOR, names.SM, names.DRAM, names.L2)):
        raise ValueError("the profile holds no counter that says which unit is busy")
    bottleneck, confidence, why = _decide(counters, remarks)
    evidence = [why, *_busy_units(counters), *_observations(counters), *_remarks(remarks)]
    return Classification(bottleneck, confidence, tuple(evidence))


def _decide(
    counters: Mapping[str, float], remarks: Sequence[str]
) -> tuple[Bottleneck, Confidence, str]:
    """First rule that holds."""
    duration = counters.get(names.DURATION)
    if duration is not None and duration < _LAUNCH_NS:
        sure: Confidence = "high" if duration < _SURELY_LAUNCH_NS else "medium"
        text = f"{names.DURATION} is {duration / 1e3:.2f} us, near the cost of a launch"
        return Bottleneck.LAUNCH, sure, text
    compute = _highest(counters, (names.TENSOR, names.SM))
    memory = _highest(counters, (names.DRAM, names.L2))
    if compute is None or memory is None:
        return _decide_half(compute or memory)
    if compute.value >= _BUSY and memory.value >= _BUSY and _gap(compute, memory) < _BUSY / 3:
        text = f"{compute} and {memory} are both busy"
        return (
            Bottleneck.MIXED,
            "high" if min(compute.value, memory.value) >= _SATURATED else "medium",
            text,
        )
    return _decide_one(compute, memory, serialised=_is_serialised(remarks))


def _decide_one(
    compute: _Share, memory: _Share, *, serialised: bool
) -> tuple[Bottleneck, Confidence, str]:
    leader, kind = (
        (compute, Bottleneck.COMPUTE)
        if compute.value >= memory.value
        else (memory, Bottleneck.MEMORY)
    )
    if leader.value >= _SATURATED:
        return kind, "high" if leader.value >= _FULL else "medium", f"{leader} is close to its roof"
    text = f"no unit is saturated: {compute} and {memory}; the time goes into waiting"
    clear = serialised or leader.value < _BUSY
    return Bottleneck.LATENCY, "high" if clear else "medium", text


def _decide_half(known: _Share | None) -> tuple[Bottleneck, Confidence, str]:
    """Only one side was measured: nothing can be certain."""
    if known is None or known.value < _SATURATED:
        return Bottleneck.LATENCY, "low", f"only {known} is known, and it is not saturated"
    is_memory = known.name in (names.DRAM, names.L2)
    kind = Bottleneck.MEMORY if is_memory else Bottleneck.COMPUTE
    return kind, "low", f"{known} is close to its roof; the other side was not measured"


@dataclass(frozen=True)
class _Share:
    """A unit's share of its peak, percent."""

    name: str
    value: float

    def __str__(self) -> str:
        return f"{self.name} {self.value:.1f} %"


def _highest(counters: Mapping[str, float], among: Iterable[str]) -> _Share | None:
    shares = [_Share(name, counters[name]) for name in among if name in counters]
    return max(shares, key=lambda share: share.value, default=None)


def _gap(a: _Share, b: _Share) -> float:
    return abs(a.value - b.value)


def _is_serialised(remarks: Sequence[str]) -> bool:
    return any(
        word in remark for remark in remarks for word in ("C7510", "C7514", "C7520", "serialized")
    )


def _busy_units(counters: Mapping[str, float]) -> Iterator[str]:
    for name in (names.TENSOR, names.DRAM, names.L2, names.L2_HIT):
        value = counters.get(name)
        yield f"{name} is absent" if value is None else f"{name} is {value:.1f} %"


def _observations(counters: Mapping[str, float]) -> Iterator[str]:
    yield from _tail(counters)
    yield from _stalls(counters)
    yield from _occupancy(counters)
    for name, what in ((names.STORE_CONFLICTS, "stores"), (names.LOAD_CONFLICTS, "loads")):
        value = counters.get(name)
        if value is not None and value >= _CONFLICTS:
            yield f"{name} is {value:.3g}: shared-memory {what} collide in their banks"
    for name in (names.LOCAL_LOADS, names.LOCAL_STORES):
        if counters.get(name):
            yield f"{name} is {counters[name]:.3g}: registers spill to local memory"


def _tail(counters: Mapping[str, float]) -> Iterator[str]:
    """Work that the last, partly filled wave of blocks leaves undone."""
    waves = counters.get(names.WAVES)
    if waves is None:
        yield f"{names.WAVES} is absent"
    elif 0 < waves < 1:
        yield f"{names.WAVES} is {waves:.2f}: {100 * (1 - waves):.0f} % of the device gets no block"
    elif waves > 0 and (loss := 1 - waves / math.ceil(waves)) > _TAIL_LOSS:
        yield f"{names.WAVES} is {waves:.2f}: the last wave leaves {100 * loss:.1f} % unused"


def _stalls(counters: Mapping[str, float]) -> Iterator[str]:
    stalls = {
        name.removeprefix(names.STALL_PREFIX).removesuffix(names.STALL_SUFFIX): value
        for name, value in counters.items()
        if name.startswith(names.STALL_PREFIX) and name.endswith(names.STALL_SUFFIX)
    }
    stalls.pop("selected", None)
    for stall in sorted(stalls, key=lambda s: -stalls[s])[:_TOP_STALLS]:
        means = _STALL_MEANS.get(stall, "see the profiler's manual")
        name = f"{names.STALL_PREFIX}{stall}{names.STALL_SUFFIX}"
        yield f"{name} is {stalls[stall]:.2f}: {means}"


def _occupancy(counters: Mapping[str, float]) -> Iterator[str]:
    limits = {name: counters[name] for name in names.OCCUPANCY_LIMITS if name in counters}
    if not limits:
        return
    least = min(limits.values())
    what = ", ".join(sorted(name for name, value in limits.items() if value == least))
    yield f"{what} is {least:.0f}: it limits the number of blocks on a multiprocessor"


def _remarks(remarks: Sequence[str]) -> Iterator[str]:
    for remark in remarks:
        known = next((means for code, means in _REMARKS.items() if code in remark), None)
        yield f"compiler: {remark}" + (f" ({known})" if known else "")
