"""Rows of ``results.tsv`` and ``idea-log.jsonl`` in all the forms in which they occur."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final

#: What a decision column may say, and what that means here.
DECISIONS: Final = {
    "KEEP": "KEEP",
    "BEST": "KEEP",
    "DISCARD": "DISCARD",
    "COMPILE_FAIL": "COMPILE_FAIL",
    "VERIFY_FAIL": "VERIFY_FAIL",
    "SEGFAULT": "SEGFAULT",
    "HANG": "HANG",
    "RUN_FAIL": "RUN_FAIL",
    "RUNTIME_FAIL": "RUN_FAIL",
    "BASELINE": "BASELINE",
    "REFERENCE": "BASELINE",
    "TESTED": "UNKNOWN",
}
STANDARD: Final = frozenset({"KEEP", "DISCARD", "SEGFAULT", "HANG", "COMPILE_FAIL"})
_HEADERS: Final = frozenset({"iter", "round", "tflops", "decision", "kernel"})
_ITER: Final = re.compile(r"^iter0*(\d+)(?:[_-].*)?$")
_RANGE: Final = re.compile(r"^iter\d+-\d+")
_STAMP: Final = re.compile(r"^\d{4}-\d\d-\d\dT")
_SIX: Final = ("iter", "kernel", "tflops", "decision", "bottleneck", "idea_summary")
#: Documented 5-column forms: the place of the decision tells which.
_FIVE: Final = (
    ("iter", "kernel", "decision", "tflops", "idea_summary"),
    ("iter", "tflops", "decision", "bottleneck", "timestamp"),
)


@dataclass(frozen=True)
class Row:
    """One line of a file of somebody else's.

    Attributes:
        origin: ``tsv`` or ``idea-log``.
        line: Number of the line, from 1.
        raw: The line.
        iteration: Iteration number; None where none can be told.
        kernel: Name of the kernel, or "".
        tflops: Claimed rate; None where there is no number.
        decision: In our words; ``UNKNOWN`` for any other.
        said: The decision as it was written.
        bottleneck: As it was written.
        summary: What was tried, as it was written.
        stated_at: Time as it was written, or "".
        suspect: Why the row should not be believed.
        round: Round as it was written, or None.
    """

    origin: str
    line: int
    raw: str
    iteration: int | None
    kernel: str
    tflops: float | None
    decision: str
    said: str
    bottleneck: str
    summary: str
    stated_at: str = ""
    suspect: tuple[str, ...] = ()
    round: int | None = None

    def doubted(self, *why: str) -> Row:
        """With more reasons; each once."""
        return replace(self, suspect=tuple(dict.fromkeys((*self.suspect, *why))))


@dataclass
class Table:
    """What was read of one file.

    Attributes:
        rows: Rows in order.
        notes: Kind of irregularity → how often.
    """

    rows: list[Row] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str, times: int = 1) -> None:
        """Count an irregularity."""
        if times:
            self.notes[kind] = self.notes.get(kind, 0) + times


def read_tsv(text: str) -> Table:
    """Rows of a ``results.tsv``, by header where the width fits, else by width and content."""
    table = Table()
    header: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if line.startswith("#"):
            table.note("comment-line")
            continue
        cells = tuple(cell.strip() for cell in line.split("\t"))
        if not header and _HEADERS & {cell.lower() for cell in cells}:
            header = tuple(cell.lower() for cell in cells)
            _note_header(table, header)
            continue
        table.rows.append(_row(table, number, line, header, cells))
    return table


def read_idea_log(text: str) -> Table:
    """Rows of an ``idea-log.jsonl``, whatever its fields are called."""
    table = Table()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            table.note("not-json")
            continue
        if not isinstance(entry, dict):
            table.note("not-json")
            continue
        table.rows.append(_entry(table, number, line, entry))
    return table


def number_of(text: str) -> float | None:
    """A finite number, or None."""
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def iteration_of(text: str) -> int | None:
    """Number of ``iter012``, ``iter012_tag`` or ``12``; None for a range or anything else."""
    if _RANGE.match(text):
        return None
    found = _ITER.match(text)
    if found:
        return int(found[1])
    return int(text) if text.isdigit() else None


def decision_of(said: str) -> str:
    """A decision in our words."""
    return DECISIONS.get(said.strip().upper(), "UNKNOWN")


def _note_header(table: Table, header: tuple[str, ...]) -> None:
    if header in (_SIX, ("round", *_SIX)):
        table.note("leading-round-column", int(header[0] == "round"))
        return
    table.note("other-header")


def _row(
    table: Table, number: int, line: str, header: tuple[str, ...], cells: tuple[str, ...]
) -> Row:
    names = _columns(header, cells)
    why = []
    if len(cells) != len(header):
        why.append("columns")
        table.note("columns-unlike-header")
    values = dict(zip(names, cells, strict=False))
    rates = [v for k, v in values.items() if k.startswith("tflops")]
    if len(rates) > 1:
        why.append("two-shapes")
        table.note("two-shapes-in-a-row")
    tflops = next((n for n in map(number_of, rates) if n is not None), None)
    name = values.get("iter", "")
    if any(text.lower().lstrip("+-") in ("nan", "inf", "infinity") for text in rates):
        why.append("not-finite")
    return Row(
        origin="tsv",
        line=number,
        raw=line,
        iteration=iteration_of(name),
        kernel=values.get("kernel", name if "_" in name else ""),
        tflops=tflops,
        decision=decision_of(values.get("decision", "")),
        said=values.get("decision", ""),
        bottleneck=values.get("bottleneck", ""),
        summary=values.get("idea_summary", values.get("idea", "")),
        stated_at=values.get("timestamp", ""),
        suspect=tuple(why),
        round=int(values["round"]) if values.get("round", "").isdigit() else None,
    )


def _columns(header: tuple[str, ...], cells: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the cells: the header's where a decision stands where it says, else by content."""
    if len(cells) == len(header) and _fits(header, cells):
        return header
    for names in (_SIX, ("round", *_SIX), *_FIVE):
        if len(cells) == len(names) and _fits(names, cells):
            return names
    return _guessed(cells)


def _fits(names: tuple[str, ...], cells: tuple[str, ...]) -> bool:
    """Whether the decision is a word, and the rate no word."""
    values = dict(zip(names, cells, strict=False))
    said, rate = values.get("decision", ""), values.get("tflops", "0")
    is_word = bool(said) and number_of(said) is None and not _STAMP.match(said)
    return is_word and said == said.upper() and (number_of(rate) is not None or rate in ("", "-"))


def _guessed(cells: tuple[str, ...]) -> tuple[str, ...]:
    """By what each cell looks like; the rest is the idea."""
    names: list[str] = []
    for cell in cells:
        taken = set(names)
        if "iter" not in taken and iteration_of(cell) is not None:
            names.append("iter")
        elif "decision" not in taken and cell.upper() in DECISIONS:
            names.append("decision")
        elif "tflops" not in taken and number_of(cell) is not None:
            names.append("tflops")
        elif _STAMP.match(cell):
            names.append("timestamp")
        elif "kernel" not in taken and "_" in cell and " " not in cell and "decision" not in taken:
            names.append("kernel")
        elif "bottleneck" not in taken and cell.endswith("_bound"):
            names.append("bottleneck")
        else:
            names.append("idea_summary")
    return tuple(names)


def _entry(table: Table, number: int, line: str, entry: dict[str, Any]) -> Row:
    known = {"round", "iter", "bottleneck", "idea", "category", "expected_gain", "decision",
             "tflops", "timestamp"}  # fmt: skip
    why: tuple[str, ...] = ()
    if set(entry) != known:
        why = ("fields",)
        table.note("other-fields")
    name = str(entry.get("iter", ""))
    rate = entry.get("tflops", entry.get("median_tflops"))
    said = str(entry.get("decision", entry.get("status", "")))
    round_ = entry.get("round")
    return Row(
        origin="idea-log",
        line=number,
        raw=line,
        iteration=iteration_of(name),
        kernel=str(entry.get("kernel", name if "_" in name else "")),
        tflops=number_of(rate) if isinstance(rate, int | float | str) else None,  # type: ignore[arg-type]
        decision=decision_of(said),
        said=said,
        bottleneck=str(entry.get("bottleneck", "")),
        summary=str(entry.get("idea", entry.get("idea_summary", entry.get("note", "")))),
        stated_at=str(entry.get("timestamp", "")),
        suspect=why,
        round=round_ if isinstance(round_, int) else None,
    )
