"""All rows of one session as values, loaded once and judged by pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from croq_fsm.config import Config
from croq_fsm.domain.records import Attempt, Iteration, Round
from croq_fsm.domain.session import Session
from croq_fsm.storage.auditing import Auditor, StoredIdea, StoredIntent, StoredProfile
from croq_fsm.storage.layout import Layout
from croq_fsm.storage.reading import StoredMeasurement
from croq_fsm.validation.problems import Problem

#: There is no cure for a row that contradicts another: the truth is not known any more.
CURE_ROWS = (
    "the database was changed by something else than croq_fsm; restore a backup from "
    "<state>/backups, or set the session aside with 'croq-fsm clean --invalid-only'"
)


@dataclass(frozen=True)
class Record:
    """What the database holds about one session.

    Attributes:
        session: Its row.
        config: Configuration that it was started with.
        layout: Its paths.
        transitions: All transitions, oldest first.
        rounds: All rounds.
        iterations: All measured kernels.
        attempts: All failed attempts.
        ideas: All ideas.
        profiles: All profiles.
        intents: All promised effects.
        tried: Normalised hashes that must not recur.
        measurements: Measurements of a round; asked for one round at a time, for they are big.
    """

    session: Session
    config: Config
    layout: Layout
    transitions: list[dict[str, Any]]
    rounds: list[Round]
    iterations: list[Iteration]
    attempts: list[Attempt]
    ideas: list[StoredIdea]
    profiles: list[StoredProfile]
    intents: list[StoredIntent]
    tried: set[str]
    measurements: Callable[[int], list[StoredMeasurement]]

    @cached_property
    def steps(self) -> dict[int, list[dict[str, Any]]]:
        """Transitions by round, in order; asked once for each round."""
        found: dict[int, list[dict[str, Any]]] = {}
        for row in self.transitions:
            found.setdefault(row["round"], []).append(row)
        return found

    def problem(
        self, kind: str, where: str, text: str, *, cure: str = CURE_ROWS, path: str = ""
    ) -> Problem:
        """A finding about this session."""
        return Problem(
            kind=kind,
            dsl=self.session.task.dsl,
            session=self.session.id,
            where=where,
            text=text,
            cure=cure,
            path=path,
        )


Findings = Iterator[Problem]


def load(auditor: Auditor, session_id: str) -> Record:
    """Read everything about a session.

    Raises:
        ValueError, LookupError, TypeError: A row holds what no version of this program wrote.
    """
    session = auditor.session(session_id)
    config = Config.model_validate(auditor.config(session.id))
    return Record(
        session=session,
        config=config,
        layout=Layout(session.device.key, session.task, config.storage.compaction_summary),
        transitions=auditor.transitions(session.id),
        rounds=auditor.rounds(session.id),
        iterations=auditor.iterations(session.id),
        attempts=auditor.attempts(session.id),
        ideas=auditor.ideas(session.id),
        profiles=auditor.profiles(session.id),
        intents=auditor.intents(session.id),
        tried=auditor.tried(session.id),
        measurements=lambda round_: auditor.measurements_of_round(session.id, round_),
    )
