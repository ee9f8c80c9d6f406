"""Nothing is tried twice, and structure changes when two rounds turned macros only."""

from __future__ import annotations

from croq_fsm.domain import guards
from croq_fsm.domain.build import Candidate
from croq_fsm.validation.record import Findings, Record


def check(record: Record) -> Findings:
    """Repeats, forgotten hashes, and runs of macro-only rounds."""
    yield from _repeats(record)
    yield from _macro_runs(record)


def _repeats(record: Record) -> Findings:
    """Normalised hashes recomputed from the sources, for a table cannot vouch for itself."""
    seen: dict[str, str] = {}
    for name, candidate in _candidates(record):
        normalised = guards.identity(candidate)
        if normalised in seen:
            text = f"{name} is the same candidate as {seen[normalised]}"
            yield record.problem("tried-twice", name, text)
        elif normalised not in record.tried:
            text = f"{name} is not remembered as tried; it could be tried again"
            yield record.problem("not-remembered", name, text)
        seen.setdefault(normalised, name)


def _candidates(record: Record) -> list[tuple[str, Candidate]]:
    """All that was built or tried, in rounds and then by name."""
    found = [
        (it.round, it.name, it.candidate) for it in record.iterations if it.candidate is not None
    ]
    found += [(a.round, a.name, a.candidate) for a in record.attempts]
    return [(name, candidate) for _, name, candidate in sorted(found, key=lambda e: e[:2])]


def _macro_runs(record: Record) -> Findings:
    limit, run = record.config.limits.macro_run, 0
    for done in record.rounds:
        run = run + 1 if done.macro_only else 0
        if run == limit + 1:
            text = f"more than {limit} rounds in a row changed macro values only"
            yield record.problem("macro-run", f"rounds {done.round}", text)
