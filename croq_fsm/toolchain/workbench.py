"""Port of a DSL: build, verify, time and profile candidates of one device.

The state handlers know only this page; the DSLs ``c``, ``croqtile`` and ``cuda`` implement it.
Expected failures of a candidate are ``CandidateError``; everything else is the environment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.device import Device, Finding
from croq_fsm.domain.measurement import Check, Samples, Verification
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.task import Task

#: ``library`` stands for the operator's library reference (BLAS, cuBLAS).
Contestant = Build | Literal["library"]

#: One launch at a time, some back to back, or many of them until power and heat have settled.
Regime = Literal["isolated", "burst", "sustained"]


@dataclass(frozen=True)
class TimingPlan:
    """How to take one interleaved measurement.

    Attributes:
        purpose: Recorded with the samples.
        pairs: Number of interleaved blocks per contestant.
        block_s: Wanted device time of a block, seconds; at least one launch.
        max_launches: Upper bound of launches per block.
        warmup_s: Warm-up of each contestant before its first block, seconds.
        regime: ``isolated``, ``burst`` or ``sustained``.
        l2: ``cold`` or ``hot``.
        seed: Seed of the inputs and of the random order.
    """

    purpose: Literal["baseline", "noise", "screen", "pairs", "confirm", "final"]
    pairs: int
    block_s: float = 0.05
    max_launches: int = 50
    warmup_s: float = 0.05
    regime: Regime = "isolated"
    l2: Literal["cold", "hot"] = "cold"
    seed: int = 1


class Workbench(Protocol):
    """One DSL on one device."""

    @property
    def dsl(self) -> str:
        """Name of the DSL."""

    @property
    def suffix(self) -> str:
        """File suffix of its sources, with the dot."""

    @property
    def generated_suffix(self) -> str:
        """File suffix of generated target sources, with the dot; empty when there are none."""

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """Regimes that differ on this device, the usual one first."""

    def doctor(self) -> list[Finding]:
        """What is there, what is missing and what that forbids. Never raises for absence."""

    def device(self) -> Device:
        """The device of this workbench. Raises EnvironmentMissing when there is none."""

    def dialect(self) -> dict[str, str]:
        """Facts about the compilers, by probing: versions, dialect, ``flags`` (blank-joined)."""

    def supports(self, task: Task) -> None:
        """Raises UsageError when the DSL cannot run the task's operator, dtype or shape."""

    def start_kernel(self, task: Task) -> Candidate:
        """The kernel that ships for this operator. Raises UsageError when there is none."""

    def lint(self, candidate: Candidate, task: Task) -> list[str]:
        """Problems that can be seen before any compile; each a sentence. Empty means none."""

    def structure(self, candidate: Candidate) -> dict[str, str]:
        """Structural features: tile, topology, persistence, memory strategy, loop order.

        Two candidates with equal features are no structurally distinct bases.
        """

    def build(self, candidate: Candidate, task: Task) -> Build:
        """Compile and link with the harness, or take it from the cache.

        Raises:
            CompileFailed, CompilerCrashed, CompileTimeout: The candidate's fault.
            EnvironmentMissing: A tool is absent or broken.
        """

    def verify(self, build: Build, task: Task, seeds: tuple[int, ...]) -> Verification:
        """Run the candidate in a fresh process and check its whole output for each seed.

        Raises:
            CandidateCrashed, CandidateHung, CandidateRefused: See errors.
            Contended, DeviceWedged, Drained: Environment.
        """

    def time(self, contestants: dict[str, Contestant], task: Task, plan: TimingPlan) -> Samples:
        """Interleave blocks of the contestants, each in its own fresh process, in random order.

        Raises like ``verify``; a crash names the contestant in its text.
        """

    def profile(self, build: Build, task: Task, *, full: bool) -> Profile:
        """Profile one launch of the candidate's own kernel and classify its bottleneck.

        Raises:
            EnvironmentMissing: The profiler or the permission to read counters is absent.
            Contended: Another process profiles or loads the device now.
        """

    def read(self, relative: str) -> bytes:
        """Content of a file that a Build or Profile names by its relative path."""


@runtime_checkable
class Sanitizing(Protocol):
    """A workbench that can look for faults which outputs do not show."""

    def sanitize(self, candidate: Candidate, task: Task) -> tuple[Check, ...]:
        """Run a candidate on a small shape under each sanitizer of the DSL.

        A tool that is absent, unable or too slow leaves a check that was skipped.

        Raises like ``Workbench.build`` and ``Workbench.verify`` otherwise.
        """
