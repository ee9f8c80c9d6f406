"""What the session row sums up, recomputed from the rows that it sums up."""

from __future__ import annotations

from collections import Counter

from croq_fsm.domain.records import Round
from croq_fsm.domain.states import Decision
from croq_fsm.storage.rebuild import Rebuilt
from croq_fsm.validation.record import Findings, Record


def check(record: Record, rebuilt: Rebuilt) -> Findings:
    """Counts, streak, macro run, best, next numbers and sizes of the logs."""
    session = record.session
    best = _best(record)
    counts = Counter(r.decision for r in record.rounds)
    pairs = {
        "round": (session.round, len(record.rounds)),
        "counts": (_named(session.counts), _named(counts)),
        "streak": (session.streak, _streak(record.rounds)),
        "macro_run": (session.macro_run, macro_run(record.rounds)),
        "best_iteration": (session.best_iteration, best),
        "next_iteration": (session.next_iteration, len(record.iterations)),
        "next_attempt": (session.next_attempt, len(record.attempts)),
        "log_sizes": (
            session.log_sizes,
            {path: len(text.encode()) for path, text in rebuilt.logs.items()},
        ),
    }
    for name, (claimed, counted) in pairs.items():
        if claimed != counted:
            text = f"the session row says {claimed}, the rows say {counted}"
            yield record.problem(f"sum-{name.replace('_', '-')}", f"sessions {name}", text)
    yield from _best_is_kept(record)


def macro_run(rounds: list[Round]) -> int:
    """Macro-only rounds at the end of the history."""
    run = 0
    for done in reversed(rounds):
        if not done.macro_only:
            break
        run += 1
    return run


def _streak(rounds: list[Round]) -> int:
    streak = 0
    for done in reversed(rounds):
        if done.decision is Decision.KEEP:
            break
        streak += 1
    return streak


def _best(record: Record) -> int | None:
    kept = [r.iteration for r in record.rounds if r.decision is Decision.KEEP]
    if kept:
        return kept[-1]
    return 1 if len(record.iterations) > 1 else None


def _best_is_kept(record: Record) -> Findings:
    number = record.session.best_iteration
    if number is None:
        return
    it = next((it for it in record.iterations if it.number == number), None)
    if it is None or it.decision is not Decision.KEEP or number == 0:
        text = f"iteration {number} is called the best, but is no KEEP"
        yield record.problem("best-not-kept", "sessions best_iteration", text)


def _named(counts: dict[Decision, int] | Counter[Decision]) -> dict[str, int]:
    return {decision.name: n for decision, n in sorted(counts.items(), key=lambda kv: kv[0].name)}
