"""Imported sessions as text: what they claim, and why that is no measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from croq_fsm.report import words
from croq_fsm.storage.imports import ImportedSession


def table(sessions: Sequence[ImportedSession]) -> str:
    """A line for each imported session; "" without any."""
    if not sessions:
        return ""
    lines = [f"imported, unverified: {len(sessions)} sessions; no figure of theirs is a record"]
    lines += [
        f"  {s.id}  {s.dsl} {s.shape_key} {s.model or '-'}: {s.rows} rows, {s.suspect} suspect, "
        f"{_claim(s)}"
        for s in sessions
    ]
    return "\n".join(lines)


def as_json(sessions: Sequence[ImportedSession]) -> list[dict[str, Any]]:
    """For ``status --json``."""
    return [
        {
            "session": s.id,
            "gpu": s.gpu,
            "dsl": s.dsl,
            "shape_key": s.shape_key,
            "model": s.model,
            "verified": False,
            "rows": s.rows,
            "suspect_rows": s.suspect,
            "claimed_tflops": s.claimed,
            "findings": s.findings,
        }
        for s in sessions
    ]


def render(session: ImportedSession, rows: Sequence[dict[str, Any]]) -> str:
    """The report of one imported session."""
    lines = [
        f"IMPORTED SESSION {session.id}: UNVERIFIED",
        "Nothing below was measured by this program. A figure becomes a record when its kernel is",
        "built, verified on its whole output and timed here: 'croq-fsm start' with its source.",
        "",
        f"  task       {session.dsl} {session.shape_key} on {session.gpu}",
        f"  by         {session.model or 'nobody named'}",
        f"  rows       {session.rows} of results, {len(rows)} in all, {session.suspect} suspect",
        f"  claim      {_claim(session)}",
        "",
        "FINDINGS",
        *(f"  {kind:<28} {count}" for kind, count in session.findings.items()),
        "",
        "ROWS OF RESULTS",
        *(_line(row) for row in rows if row["origin"] == "tsv"),
    ]
    return "\n".join(lines) + "\n"


def _claim(session: ImportedSession) -> str:
    if session.claimed is None:
        return "claims no kept kernel"
    return f"claims {words.rate(session.claimed, 2)} TFLOPS for {session.claimed_by or '?'}"


def _line(row: dict[str, Any]) -> str:
    rate = "-" if row["tflops"] is None else f"{row['tflops']:.3f}"
    why = ", ".join(row["suspect"]) or "-"
    name = row["kernel"] or (f"iter{row['iteration']:03d}" if row["iteration"] is not None else "?")
    return f"  {row['line']:>5}  {name:<34} {rate:>12}  {row['decision']:<12}  {why}"
