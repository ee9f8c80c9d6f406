"""Roofline profiles: which class, how sure, and that nothing is invented."""

from __future__ import annotations

import pytest
from c_dsl_support import task

from croq_fsm.domain.build import Build
from croq_fsm.domain.device import Device
from croq_fsm.domain.states import Bottleneck
from croq_fsm.profiling.roofline import Observation, excess, profile

DEVICE = Device(key="cpu_x", name="x", uuid="u", peak_flops=1e11, peak_bandwidth=1e10)
BUILD = Build(
    key="0" * 64,
    binary="b",
    binary_sha256="1" * 64,
    device_code="2" * 64,
    resources={"loops_vectorized": 1, "loops_missed": 2},
    remarks=("line 3: not vectorized: because",),
)
#: 2 * 512^3 operations and 3 MiB: 2.7 ms at the roof of arithmetic, 0.3 ms at that of memory.
MATMUL = task("matmul", 512, 512, 512)
#: 5 operations and 8 bytes per number: 0.84 ms at the roof of memory.
SOFTMAX = task("softmax", 1024, 1024)


def seen(seconds: float, spread: float = 0.01, **counters: float) -> Observation:
    """Five launches around a time."""
    times = tuple(seconds * (1 + spread * (i - 2)) for i in range(5))
    named = {name.replace("_", "-"): 5 * value for name, value in counters.items()}
    return Observation(times, named)


@pytest.mark.parametrize(
    ("chosen", "seconds", "bottleneck", "confidence"),
    [
        (MATMUL, 0.2, Bottleneck.LATENCY, "high"),
        (MATMUL, 0.006, Bottleneck.LATENCY, "medium"),
        (MATMUL, 0.0040, Bottleneck.COMPUTE, "medium"),
        (MATMUL, 0.0028, Bottleneck.COMPUTE, "high"),
        (SOFTMAX, 0.02, Bottleneck.LATENCY, "high"),
        (SOFTMAX, 0.0009, Bottleneck.MEMORY, "high"),
        (task("matmul", 16, 16, 16), 2e-6, Bottleneck.LAUNCH, "high"),
    ],
)
def test_class_follows_the_roofs(
    chosen: object, seconds: float, bottleneck: Bottleneck, confidence: str
) -> None:
    """Near a roof, at neither, or too short: each has its class and its confidence."""
    found = profile(BUILD, chosen, DEVICE, seen(seconds), full=False)  # type: ignore[arg-type]
    assert (found.bottleneck, found.confidence) == (bottleneck, confidence)
    assert found.evidence
    assert not found.degraded


def test_both_roofs_at_once_are_mixed() -> None:
    """A kernel near both roofs is limited by both."""
    device = DEVICE.model_copy(update={"peak_bandwidth": 1.2e9})
    assert profile(BUILD, MATMUL, device, seen(0.003), full=False).bottleneck is Bottleneck.MIXED


def test_cache_misses_show_traffic_that_reuse_would_save() -> None:
    """Where counters can be read, real traffic decides, and the text says so."""
    found = profile(BUILD, MATMUL, DEVICE, seen(0.02, cache_misses=2.8e6), full=True)
    assert found.bottleneck is Bottleneck.MEMORY
    assert any("again and again" in sentence for sentence in found.evidence)


def test_evidence_names_metrics_that_exist() -> None:
    """Each sentence of the evidence rests on metrics that the profile holds."""
    found = profile(BUILD, MATMUL, DEVICE, seen(0.2, cycles=6e8, instructions=3e8), full=False)
    names = {metric.name for metric in found.metrics}
    for sentence in found.evidence:
        assert any(name in sentence for name in names), sentence
    assert found.metric("ipc") == pytest.approx(0.5)
    assert any("ipc is 0.50" in sentence for sentence in found.evidence)
    assert found.metric("vector.loops_missed") == 2
    assert found.remarks == BUILD.remarks


def test_absent_counters_are_absent() -> None:
    """What was not measured is not there, and never zero."""
    bare = DEVICE.model_copy(update={"peak_flops": None, "peak_bandwidth": None})
    found = profile(BUILD, MATMUL, bare, seen(0.2), full=False)
    assert found.metric("ipc") is None
    assert found.metric("flops.pct_of_peak") is None
    assert found.metric("intensity.machine_balance") is None
    assert found.confidence == "low"
    assert "unknown" in found.evidence[0]


def test_noise_lowers_the_confidence() -> None:
    """Times that scatter do not speak clearly."""
    found = profile(BUILD, MATMUL, DEVICE, seen(0.2, spread=0.3), full=False)
    assert found.confidence == "low"


def test_numbers_are_those_of_the_problem() -> None:
    """Rates, shares and intensity follow from operations, bytes, time and peaks."""
    found = profile(BUILD, MATMUL, DEVICE, seen(0.01), full=False)
    flops = 2 * 512**3
    assert found.metric("time.us") == pytest.approx(10_000)
    assert found.metric("flops.rate") == pytest.approx(flops / 0.01 / 1e9)
    assert found.metric("flops.pct_of_peak") == pytest.approx(100 * flops / 0.01 / 1e11)
    assert found.metric("intensity.flop_per_byte") == pytest.approx(flops / (3 * 512 * 512 * 4))
    assert found.metric("intensity.machine_balance") == pytest.approx(10)


@pytest.mark.parametrize(
    ("chosen", "seconds", "word"),
    [
        (MATMUL, 2.7e-3, ""),
        (MATMUL, 1.0e-3, "2.7 times the machine's peak FLOP/s"),
        (SOFTMAX, 0.42e-3, ""),
        (SOFTMAX, 0.1e-3, "4.2 times the machine's peak bandwidth"),
    ],
)
def test_times_beyond_the_peaks_are_named(chosen: object, seconds: float, word: str) -> None:
    """What no machine with these peaks can do is told apart from what is merely good."""
    text = excess(chosen, DEVICE, seconds)  # type: ignore[arg-type]
    assert (word in text) if word else text == ""
    bare = DEVICE.model_copy(update={"peak_flops": None, "peak_bandwidth": None})
    assert excess(chosen, bare, seconds) == ""  # type: ignore[arg-type]
