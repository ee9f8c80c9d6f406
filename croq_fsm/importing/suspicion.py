"""Why rows of somebody else's should not be believed, and how often that is so."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from croq_fsm.domain.states import Bottleneck
from croq_fsm.importing.rows import STANDARD, Row

_SAME_RATES: Final = 3
#: A round that was really built, verified and timed takes longer than this, seconds.
_SHORTEST_S: Final = 5.0
_CUT: Final = 80
_BATCH: Final = re.compile(r"\b(batch|sweep|grid search|fill(?:er)?|estimat\w+)\b", re.IGNORECASE)
_TAGGED: Final = re.compile(r"^iter\d{3,}_[a-z][a-z0-9_]{1,30}$")
_CLASSES: Final = frozenset({*map(str, Bottleneck), "baseline"})
_DIFFERENT: Final = 0.005


def of_table(rows: list[Row]) -> list[Row]:
    """Rows of a table with what speaks against each, seen with the others."""
    seen: set[int] = set()
    last, best = -1, 0.0
    rates = Counter(r.tflops for r in rows if r.tflops)
    found = []
    for row in rows:
        why = [*_alone(row), *(["equal-values"] if rates[row.tflops or 0.0] >= _SAME_RATES else [])]
        if row.iteration is not None:
            why += ["duplicate-iter"] if row.iteration in seen else []
            why += ["iter-not-increasing"] if row.iteration <= last else []
            seen.add(row.iteration)
            last = max(last, row.iteration)
        why += _against_best(row, best)
        if row.decision == "KEEP" and row.tflops and row.iteration != 0:
            best = max(best, row.tflops)
        found.append(row.doubted(*why))
    return found


def of_pace(rows: list[Row]) -> list[Row]:
    """Rows of a log whose times cannot be those of work."""
    found: list[Row] = []
    before: datetime | None = None
    for row in rows:
        at = moment(row.stated_at)
        if at is not None and before is not None:
            gap = (at - before).total_seconds()
            if gap < 0:
                row = row.doubted("time-goes-back")  # noqa: PLW2901 - the row with a reason more
            elif gap < _SHORTEST_S:
                row = row.doubted("impossible-pace")  # noqa: PLW2901
        before = at or before
        found.append(row)
    texts = Counter(r.summary for r in rows if r.summary)
    return [r.doubted("repeated-idea") if texts[r.summary] > 1 else r for r in found]


def across(tsv: list[Row], log: list[Row]) -> tuple[list[Row], list[Row]]:
    """Rows that are in one of the two files only, or differ between them."""
    if not tsv or not log:
        return tsv, log
    in_tsv = {r.iteration: r for r in tsv if r.iteration is not None}
    in_log = {r.iteration: r for r in log if r.iteration is not None}
    return (
        [r.doubted(*_compared(r, in_log)) for r in tsv],
        [r.doubted(*_compared(r, in_tsv)) for r in log],
    )


def without_source(rows: list[Row], numbers: frozenset[int]) -> list[Row]:
    """Timed rows whose iteration left no source."""
    return [
        r.doubted("no-source")
        if r.tflops and r.iteration not in numbers and r.iteration != 0
        else r
        for r in rows
    ]


def counted(rows: Iterable[Row]) -> dict[str, int]:
    """Reasons by number of rows."""
    return dict(sorted(Counter(why for row in rows for why in row.suspect).items()))


def gaps(rows: list[Row]) -> tuple[int, int]:
    """Gaps in the numbering and how many numbers they skip."""
    numbers = sorted({r.iteration for r in rows if r.iteration is not None})
    jumps = [b - a - 1 for a, b in pairwise(numbers) if b - a > 1]
    return len(jumps), sum(jumps)


def moment(text: str) -> datetime | None:
    """A time as it was written, in UTC; one without a zone is taken for UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _alone(row: Row) -> list[str]:
    """What speaks against a row by itself."""
    why = []
    if row.said.upper() not in STANDARD:
        why.append("decision-outside-enum")
    if row.bottleneck not in _CLASSES:
        why.append("bottleneck-outside-enum")
    if row.iteration is None:
        why.append("no-iteration")
    if row.tflops is None:
        why.append("no-number")
    elif row.tflops < 0:
        why.append("negative")
    elif row.tflops == 0 and row.decision == "DISCARD":
        why.append("discard-without-time")
    if _BATCH.search(row.summary) or _BATCH.search(row.kernel.replace("_", " ")):
        why.append("batch-words")
    if row.origin == "tsv":
        why += _names(row)
    return why


def _names(row: Row) -> list[str]:
    why = []
    if not _TAGGED.match(row.kernel):
        why.append("kernel-untagged")
    elif row.iteration is not None and not row.kernel.startswith(f"iter{row.iteration:03d}_"):
        why.append("kernel-unlike-iter")
    if len(row.summary) == _CUT:
        why.append("summary-cut")
    return why


def _against_best(row: Row, best: float) -> list[str]:
    if not row.tflops or row.iteration == 0 or not best:
        return []
    if row.decision == "KEEP" and row.tflops <= best:
        return ["keep-not-above-best"]
    if row.decision in ("DISCARD", "UNKNOWN") and row.tflops > best:
        return ["better-than-kept"]
    return []


def _compared(row: Row, others: dict[int, Row]) -> list[str]:
    other = None if row.iteration is None else others.get(row.iteration)
    if other is None:
        return ["in-one-file-only"]
    why = []
    if other.decision != row.decision:
        why.append("decisions-differ")
    a, b = row.tflops or 0.0, other.tflops or 0.0
    if abs(a - b) > _DIFFERENT * max(a, b):
        why.append("figures-differ")
    return why
