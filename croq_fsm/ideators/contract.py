"""Contract of ideators, on one page.

An ideator looks at a Context and returns one Proposal, or None when it has no idea left that
the guards would admit. It never supplies a number of record, a decision, a path or a name of
an iteration; the engine checks and applies what it returns. ``BackendDown`` means "ask
another one", ``BadReply`` "what I was given is no proposal; ask again". Third-party ideators
register in the entry-point group ``croq_fsm.ideators``; ``croq_fsm.ideators.testing`` holds the
tests of this contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.device import Device
from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.states import Category, Decision
from croq_fsm.domain.task import Task
from croq_fsm.ideators.services import Services


@dataclass(frozen=True)
class Base:
    """An active base.

    Attributes:
        iteration: Its number; a proposal names it.
        name: ``iter004_tile_k``.
        candidate: Source, flags, patches.
        seconds: Confirmed time of one call.
        structure: Structural features, as the workbench reads them.
        generated: Generated target source, or "".
        resources: Registers, spills, shared memory as the compiler reports.
        remarks: Compiler remarks.
    """

    iteration: int
    name: str
    candidate: Candidate
    seconds: float
    structure: dict[str, str]
    generated: str = ""
    resources: dict[str, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Past:
    """One earlier round."""

    round: int
    base: int
    tag: str
    summary: str
    category: Category
    levers: tuple[str, ...]
    macro_only: bool
    decision: Decision
    ratio: float | None
    reason: str


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed, for ``repair``.

    Attributes:
        kind: The decision that would be stored if the idea were given up now.
        attempt: Number of the failed attempt, from 1.
        message: One sentence.
        log: Compiler or run output, capped.
        candidate: What was tried.
    """

    kind: Decision
    attempt: int
    message: str
    log: str
    candidate: Candidate


@dataclass(frozen=True)
class Context:
    """Everything an ideator may know.

    Attributes:
        task: The task.
        device: Device with static limits.
        base: The base to derive from (the better of the active ones unless escalated).
        others: The other active base, if there is one.
        profile: Profile of ``base``; a hypothesis quotes its metrics by name.
        library_seconds: Time of the library reference.
        noise: Relative noise floor of this problem on this device.
        history: Latest rounds, oldest first.
        must_be_structural: True after two macro-only rounds.
        avoid_category: Category that the escalation rules out, or None.
        escalation: Level from 0; see domain.escalation.
        hints: Texts of the user, newest last. Advice, never instructions to skip a rule.
        dialect: Facts about the compiler: version, dialect, known flags.
        is_new: Whether this candidate has not been tried in this session.
        lint: Problems that the workbench sees in a candidate before compiling.
        rng_seed: Seed for any random choice, a function of session and round.
        refused: Why guards refused earlier proposals of this very round.
        round: Number of the round in hand.
        diff_of: What an earlier round changed, as a unified diff, by its number; "" when
            nothing is known. Read from the database when it is asked for.
    """

    task: Task
    device: Device
    base: Base
    others: tuple[Base, ...]
    profile: Profile
    library_seconds: float
    noise: float
    history: tuple[Past, ...]
    must_be_structural: bool
    avoid_category: Category | None
    escalation: int
    hints: tuple[str, ...]
    dialect: dict[str, str]
    is_new: Callable[[Candidate], bool]
    lint: Callable[[Candidate], list[str]]
    rng_seed: int
    refused: tuple[str, ...] = ()
    round: int = 0
    diff_of: Callable[[int], str] = lambda _round: ""


class Ideator(Protocol):
    """A source of ideas. Constructed with its section of the configuration."""

    @property
    def name(self) -> str:
        """``<model>`` of the file layout: ``rules``, ``claude-…``; lower case, hyphens."""

    def propose(self, context: Context) -> Proposal | None:
        """One idea, or None when exhausted. Raises BackendDown or BadReply."""

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """A genuinely different way to realise the same idea, or None to give it up."""


@runtime_checkable
class Equipped(Protocol):
    """An ideator that records calls, starts children or waits: it is handed what that takes."""

    def equip(self, services: Services) -> None:
        """Called once, before the first question, with what the engine lends."""


@runtime_checkable
class Composed(Protocol):
    """An ideator that asks others."""

    def author_of(self, proposal: Proposal) -> str:
        """Name of the one that made a proposal, as far as this one knows."""


class IdeatorFactory(Protocol):
    """What an entry point of the group names."""

    def __call__(self, settings: dict[str, Any]) -> Ideator:
        """Build the ideator from its section of the configuration."""
