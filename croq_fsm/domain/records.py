"""Facts that a state's work adds to the history of a session.

They are written in the transaction of the transition that they belong to, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.device import Device
from croq_fsm.domain.measurement import Estimate, Samples, Verification
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.states import Bottleneck, Category, Decision, Outcome
from croq_fsm.domain.task import Task
from croq_fsm.domain.work import Idea, Work


@dataclass(frozen=True)
class Facts:
    """Facts about the session itself, learnt in INIT and BASELINE.

    Attributes:
        device: The device.
        noise: Relative noise floor.
        dialect: Facts about the compilers.
        tried: Normalised hash of the start kernel.
        task: The task with what was learnt of it, where something was.
    """

    device: Device | None = None
    noise: float | None = None
    dialect: dict[str, str] | None = None
    tried: str | None = None
    task: Task | None = None


@dataclass(frozen=True)
class Iteration:
    """A measured kernel: iter000 is the library reference, iter001 the start kernel.

    Attributes:
        number: Iteration number.
        name: ``iter004_tag``; ``iter000_cublas`` and the like for the library.
        round: Round in which it was made; 0 for the baseline.
        decision: KEEP or DISCARD; KEEP for the baseline.
        candidate: Source, flags, patches; None for the library.
        build: Its build; None for the library.
        structure: Structural features.
        seconds: Time of one call, from the measurement of record.
        library_seconds: Library time in the same measurement, where it took part.
        estimate: Ratio to the best of that time, where there was one.
        measurement: Transition number of the measurement of record.
        self_reported: True when the kernel's own host part produced the numbers.
    """

    number: int
    name: str
    round: int
    decision: Decision
    candidate: Candidate | None
    build: Build | None
    structure: dict[str, str]
    seconds: float
    library_seconds: float | None
    estimate: Estimate | None
    measurement: int
    self_reported: bool = False


@dataclass(frozen=True)
class IdeaTaken:
    """The idea of a round, after all guards, with the fingerprints that must not recur."""

    round: int
    idea: Idea
    normalised: str
    refused: tuple[str, ...]


@dataclass(frozen=True)
class Attempt:
    """A failed attempt; it consumes no iteration number.

    Attributes:
        round: Round.
        number: 1 to 5 within the idea.
        ordinal: Ordinal within the session, for ``attemptAAAA``.
        name: ``attemptAAAA_tag``.
        kind: What the round would be called if the idea were given up here.
        message: One sentence.
        log: Compiler or run output, capped.
        candidate: What was tried.
        normalised: Its normalised hash; never tried again.
    """

    round: int
    number: int
    ordinal: int
    name: str
    kind: Decision
    message: str
    log: str
    candidate: Candidate
    normalised: str


@dataclass(frozen=True)
class ProfileTaken:
    """A profile of an active base."""

    round: int
    iteration: int
    profile: Profile
    csv: str = ""
    cached: bool = False


@dataclass(frozen=True)
class BuildDone:
    """A successful build of the candidate in hand."""

    round: int
    build: Build
    log: str = ""
    generated: str = ""


@dataclass(frozen=True)
class Measured:
    """Samples or checks, kept raw. Key: the number of the transition that wrote them."""

    round: int
    kind: Literal["baseline", "noise", "screen", "pairs", "confirm", "final", "verify"]
    samples: Samples | None = None
    verification: Verification | None = None
    environment: dict[str, str] | None = None


@dataclass(frozen=True)
class Round:
    """A finished round.

    Attributes:
        round: Number from 1.
        iteration: Its iteration number, if it was timed.
        kernel: ``iter004_tag`` or ``attemptAAAA_tag``.
        base: Iteration it derived from.
        decision: Verdict.
        seconds: Time of one call, if timed.
        tflops: Operations over that time.
        ratio: Median ratio to the best of that time (above 1 is faster), if timed.
        bottleneck: Class of the profile.
        category: Category of the idea.
        macro_only: Whether only macro values differed from the base.
        summary: What changed, in words.
        hypothesis: Why it was expected to help.
        expected_gain: As proposed.
        levers: As proposed.
        tag: As proposed.
        attempts: Failed attempts of the idea.
        reason: Why this verdict.
        ideator: Who proposed it.
        stored_at: UTC microseconds.
        wall_s: Wall seconds since the round began.
    """

    round: int
    iteration: int | None
    kernel: str
    base: int
    decision: Decision
    seconds: float | None
    tflops: float | None
    ratio: float | None
    bottleneck: Bottleneck
    category: Category
    macro_only: bool
    summary: str
    hypothesis: str
    expected_gain: float
    levers: tuple[str, ...]
    tag: str
    attempts: int
    reason: str
    ideator: str
    stored_at: int
    wall_s: float


Record = Facts | Iteration | IdeaTaken | Attempt | ProfileTaken | BuildDone | Measured | Round


@dataclass(frozen=True)
class Effect:
    """Something to be done outside the database after the transition is committed.

    Attributes:
        kind: ``publish`` (files) or ``git`` (a local commit).
        payload: All that is needed, JSON-able; names and hashes fixed in advance.
    """

    kind: Literal["publish", "git"]
    payload: dict[str, Any]


@dataclass(frozen=True)
class Step:
    """What the work of a state came to; becomes one transition in one transaction."""

    outcome: Outcome
    work: Work
    detail: dict[str, Any]
    records: tuple[Record, ...] = ()
    effects: tuple[Effect, ...] = ()
    reason: str = ""
