"""The work in hand of a session: all that a state needs to go on after a crash."""

from __future__ import annotations

from typing import Literal

from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.measurement import Estimate
from croq_fsm.domain.model import Value
from croq_fsm.domain.states import Bottleneck, Decision

Phase = Literal["screen", "pairs", "confirm"]


class Idea(Value):
    """A proposal that passed every guard: the idea checkpoint.

    Attributes:
        proposal: As the ideator gave it.
        name: Planned iteration name; the number is consumed only if the candidate is timed.
        fingerprint: Base x parameters x structure x flags.
        macro_only: Whether only macro values differ from the base.
        ideator: Who proposed it.
        bottleneck: Class of the profile that it answers to.
        planned_at: UTC microseconds at which it was taken.
    """

    proposal: Proposal
    name: str
    fingerprint: str
    macro_only: bool
    ideator: str
    bottleneck: Bottleneck
    planned_at: int


class Verdict(Value):
    """What DECIDE, or a failing state, made of the round."""

    decision: Decision
    reason: str
    estimate: Estimate | None = None
    seconds: float | None = None
    library_seconds: float | None = None
    best_seconds: float | None = None


class Start(Value):
    """A kernel that a session could begin with.

    Attributes:
        name: Where it is from, for people.
        candidate: What BASELINE builds.
    """

    name: str
    candidate: Candidate


class Work(Value):
    """Checkpoint of a session, written with each transition.

    Attributes:
        round: Round in hand, from 1; 0 before the first.
        base: Iteration number of the base of this round.
        profile: Binary hash whose profile the round rests on.
        idea: The idea in hand.
        proposal: Its present form; differs from ``idea.proposal`` after repairs.
        candidate: What is built and measured.
        candidate_hash: Normalised hash of ``candidate``, for the drift check.
        attempt: Failed attempts of this idea so far.
        build: Its build.
        verified: Whether the build passed verification in this round.
        phase: Which samples are being taken.
        samples: Keys (transition numbers) of this round's measurements.
        pairs: Pairs to take in the next measurement.
        verdict: Set once the round is decided.
        waits: Consecutive back-offs in this state.
        not_before: UTC seconds before which a backed-off state does not run again.
        backend: Index of the ideator to ask next, after one was down.
        exhausted: Escalations of this round forced by running out of ideas.
        starts: Kernels that BASELINE measures against each other; the best becomes iter001.
    """

    round: int = 0
    base: int | None = None
    profile: str | None = None
    idea: Idea | None = None
    proposal: Proposal | None = None
    candidate: Candidate | None = None
    candidate_hash: str = ""
    attempt: int = 0
    build: Build | None = None
    verified: bool = False
    phase: Phase = "screen"
    samples: tuple[int, ...] = ()
    pairs: int = 0
    verdict: Verdict | None = None
    waits: int = 0
    not_before: float | None = None
    backend: int = 0
    exhausted: int = 0
    starts: tuple[Start, ...] = ()
