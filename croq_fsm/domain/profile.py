"""A profile: counters, the bottleneck they speak for, and how sure that is."""

from __future__ import annotations

from typing import Literal

from croq_fsm.domain.model import Value
from croq_fsm.domain.states import Bottleneck


class Metric(Value):
    """One counter. A counter that the profiler did not give is absent, never zero."""

    name: str
    value: float
    unit: str = ""


class Profile(Value):
    """What was learnt about one binary.

    Attributes:
        binary: SHA-256 of the profiled binary; profiles are cached by it.
        tool: ``ncu 2025.3.1``, ``roofline-cpu`` …
        full: Whether the full metric set was taken.
        degraded: True when counters could not be read and the class rests on timing alone.
        bottleneck: The class.
        confidence: How clearly the evidence speaks.
        evidence: Sentences that name the metrics behind the class.
        metrics: Counters by name.
        remarks: Compiler remarks that matter for speed (ptxas C7520, vectoriser misses …).
        duration: Kernel time under the profiler, seconds; for orientation only.
        files: Artifacts of the profiler, name → path under the work folder.
    """

    binary: str
    tool: str
    full: bool
    degraded: bool = False
    bottleneck: Bottleneck
    confidence: Literal["high", "medium", "low"]
    evidence: tuple[str, ...]
    metrics: tuple[Metric, ...]
    remarks: tuple[str, ...] = ()
    duration: float | None = None
    files: dict[str, str] = {}

    def metric(self, name: str) -> float | None:
        """Value of a counter, or None when it is absent."""
        return next((m.value for m in self.metrics if m.name == name), None)
