"""The views of a whole session from its history, equal byte for byte to what STORE wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from croq_fsm.domain.records import Round
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision
from croq_fsm.storage import views
from croq_fsm.storage.layout import Layout
from croq_fsm.storage.reading import Reader


@dataclass(frozen=True)
class Rebuilt:
    """Texts by path.

    Attributes:
        logs: Append-only files.
        snapshots: Files that each STORE replaces.
    """

    logs: dict[str, str]
    snapshots: dict[str, str]


def rebuild(reader: Reader, session: Session, layout: Layout) -> Rebuilt:
    """All views; grows with the history. Empty before BASELINE has ended."""
    if session.best_iteration is None:
        return Rebuilt({}, {})
    rounds = reader.rounds(session.id)
    return Rebuilt(
        _logs(reader, session, layout, rounds), _snapshots(reader, session, layout, rounds)
    )


def log_text(reader: Reader, session: Session, layout: Layout, path: str) -> str:
    """One append-only file, whole."""
    return rebuild(reader, session, layout).logs.get(path, "")


def _logs(reader: Reader, session: Session, layout: Layout, rounds: list[Round]) -> dict[str, str]:
    pieces: dict[str, list[str]] = {}
    for lines in _all_lines(reader, session, layout, rounds):
        for path, text in lines.items():
            pieces.setdefault(path, []).append(text)
    return {path: "".join(texts) for path, texts in pieces.items()}


def _all_lines(
    reader: Reader, session: Session, layout: Layout, rounds: list[Round]
) -> Iterator[views.Lines]:
    baseline = (reader.iteration(session.id, 0), reader.iteration(session.id, 1))
    yield views.baseline_lines(layout, session.task, baseline)
    for record in rounds:
        attempts = reader.attempts_of_round(session.id, record.round)
        yield views.round_lines(layout, record, attempts)


def _snapshots(
    reader: Reader, session: Session, layout: Layout, rounds: list[Round]
) -> dict[str, str]:
    counts: dict[Decision, int] = {}
    best, streak = 1, 0
    for record in rounds:
        counts[record.decision] = counts.get(record.decision, 0) + 1
        kept = record.decision is Decision.KEEP
        streak = 0 if kept else streak + 1
        if kept and record.iteration is not None:
            best = record.iteration
    taken = reader.last_idea(session.id)
    stored = taken is not None and bool(rounds) and taken[0] == rounds[-1].round
    files = views.snapshot_files(
        layout,
        session.task,
        views.Snapshot(
            session_id=session.id,
            library=reader.iteration(session.id, 0),
            best=reader.iteration(session.id, best),
            round=rounds[-1].round if rounds else 0,
            streak=streak,
            counts=counts,
            recent=tuple(rounds[-10:]),
            idea=taken[1] if taken is not None and stored else None,
            at=rounds[-1].stored_at if rounds else session.created_at,
        ),
    )
    if taken is not None and not stored:
        idea = taken[1]
        files[layout.current_idea] = views.idea_file(session.task, idea, "PLANNED", idea.planned_at)
    return files
