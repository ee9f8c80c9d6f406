"""Everything that a report rests on, read from the database in one look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from croq_fsm.config import Config
from croq_fsm.domain.calls import Call
from croq_fsm.domain.measurement import Estimate, Samples, Verification
from croq_fsm.domain.records import Attempt, Iteration, Round
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision
from croq_fsm.measure import stats
from croq_fsm.report.standing import Standing, gather
from croq_fsm.root import Root
from croq_fsm.storage.inspection import Inspector, TakenProfile
from croq_fsm.storage.layout import Layout


@dataclass(frozen=True)
class Facts:
    """A session's whole history.

    Attributes:
        standing: How it stands.
        config: Configuration of the session.
        layout: Its paths below the root.
        root: Top folder of the repository.
        rounds: Finished rounds in order.
        iterations: Measured kernels by number.
        attempts: Failed attempts in order.
        profiles: Profiles in order.
        commit: Commit of the best kernel, or "".
        artifacts: Artifact rows by path.
        record: Measurement of record of the best kernel.
        checks: Verification of the best kernel.
        hints: Latest hints of the user.
        resumptions: How many starts of the daemon worked on it.
        calls: Calls of ideators to models and agents, oldest first.
    """

    standing: Standing
    config: Config
    layout: Layout
    root: Path
    rounds: tuple[Round, ...]
    iterations: dict[int, Iteration]
    attempts: tuple[Attempt, ...]
    profiles: tuple[TakenProfile, ...]
    commit: str
    artifacts: dict[str, dict[str, Any]]
    record: Samples | None
    checks: Verification | None
    hints: tuple[str, ...]
    resumptions: int
    calls: tuple[Call, ...] = ()

    @property
    def session(self) -> Session:
        """The session."""
        return self.standing.session

    @property
    def best(self) -> Iteration | None:
        """The best kernel."""
        return self.standing.best

    @property
    def start(self) -> Iteration | None:
        """The start kernel, iter001."""
        return self.iterations.get(1)

    @property
    def library(self) -> Iteration | None:
        """The library reference, iter000."""
        return self.standing.library

    @property
    def kept(self) -> tuple[Round, ...]:
        """Rounds that became the best of their time."""
        return tuple(r for r in self.rounds if r.decision is Decision.KEEP)

    def profile_of(self, number: int) -> TakenProfile | None:
        """Latest profile of an iteration."""
        return next((p for p in reversed(self.profiles) if p.iteration == number), None)

    def against_library(self) -> Estimate | None:
        """Library time over the best kernel's, in the pairs of one measurement."""
        if self.record is None or not self.record.of("library"):
            return None
        try:
            return stats.estimate(self.record, "library", "candidate", seed=self.session.seed)
        except ValueError:  # too few pairs for an interval
            return None


def read(inspector: Inspector, session: Session, root: Root, now: float) -> Facts:
    """Gather the facts; grows with the history."""
    standing = gather(inspector, session, root, now)
    config = Config.model_validate(inspector.config(session.id))
    rounds = tuple(inspector.rounds(session.id))
    best = standing.best
    return Facts(
        standing=standing,
        config=config,
        layout=Layout(session.device.key, session.task, config.storage.compaction_summary),
        root=root.path,
        rounds=rounds,
        iterations={it.number: it for it in inspector.iterations(session.id)},
        attempts=_attempts(inspector, session),
        profiles=tuple(inspector.profiles(session.id)),
        commit=_commit(inspector, session, best),
        artifacts={row["path"]: row for row in inspector.artifacts(session.id)},
        record=_record(inspector, session, best),
        checks=_checks(inspector, session, best),
        hints=tuple(inspector.hints(session.id, 20)),
        resumptions=len({row["run_id"] for row in inspector.transitions(session.id)} - {""}),
        calls=tuple(inspector.calls(session.id)),
    )


def _attempts(inspector: Inspector, session: Session) -> tuple[Attempt, ...]:
    last = max(session.round, session.work.round)
    return tuple(
        attempt
        for round_ in range(1, last + 1)
        for attempt, _ in inspector.attempts_of_round(session.id, round_)
    )


def _commit(inspector: Inspector, session: Session, best: Iteration | None) -> str:
    if best is None:
        return ""
    seq = inspector.stored_at(session.id, best.round)
    return "" if seq is None else inspector.commits(session.id).get(seq, "")


def _record(inspector: Inspector, session: Session, best: Iteration | None) -> Samples | None:
    if best is None:
        return None
    stored = inspector.measurements(session.id, [best.measurement])
    return next((m.samples for m in stored if m.samples is not None), None)


def _checks(inspector: Inspector, session: Session, best: Iteration | None) -> Verification | None:
    """The last verification of the round in which the best kernel was made."""
    if best is None:
        return None
    stored = inspector.measurements_of_round(session.id, best.round)
    found = [m.verification for m in reversed(stored) if m.verification is not None]
    for verification in found:
        if any(check.rung != "sanitizer" for check in verification.checks):
            beside = found[0].checks if found[0] is not verification else ()
            return Verification(checks=(*verification.checks, *beside))
    return None
