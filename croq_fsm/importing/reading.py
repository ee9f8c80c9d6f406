"""Sessions of a ``tuning/`` tree: found, read, and compared with what lies beside them."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from croq_fsm.domain.source import sha256
from croq_fsm.errors import UsageError
from croq_fsm.importing import evidence, suspicion
from croq_fsm.importing.rows import Row, read_idea_log, read_tsv

_RECORDS: Final = ("results.tsv", "idea-log.jsonl")
_KINDS: Final = frozenset({"logs", "srcs", "perf", "memory", "baseline"})
_BESIDE: Final = ("baseline", "checkpoints", "perf", "srcs")
_WRONG_PLACE: Final = "records-in-a-wrong-folder"


@dataclass(frozen=True)
class Imported:
    """One session as its files tell it.

    Attributes:
        gpu: Device key of its folder.
        dsl: DSL of its folder.
        shape_key: Shape key of its folder, verbatim.
        model: Who proposed, verbatim; "" where there is no such folder.
        rows: Rows of both files.
        findings: Kind of irregularity → how often.
        digest: Hash over its files, so that a second import of the same changes nothing.
    """

    gpu: str
    dsl: str
    shape_key: str
    model: str
    rows: tuple[Row, ...]
    findings: dict[str, int]
    digest: str

    @property
    def id(self) -> str:
        """Name; the same for the same key on any machine."""
        key = f"{self.gpu}/{self.dsl}/{self.shape_key}/{self.model}"
        return f"imported-{sha256(key)[:10]}"

    @property
    def suspect(self) -> int:
        """Rows with a reason against them."""
        return sum(bool(row.suspect) for row in self.rows)


def read_tree(top: Path) -> list[Imported]:
    """All sessions below a folder. Links are not followed; nothing is changed.

    Raises:
        UsageError: No such folder, or no records in it.
    """
    if not top.is_dir():
        raise UsageError(f"{top} is no folder; name a tree with tuning/<gpu>/<dsl>/logs in it")
    folders = sorted({p.parent for name in _RECORDS for p in top.rglob(name) if not p.is_symlink()})
    found = [one for folder in folders if (one := _session(top, folder)) is not None]
    if not found:
        raise UsageError(f"{top} holds no {' and no '.join(_RECORDS)} below a folder 'logs'")
    return found


def _session(top: Path, folder: Path) -> Imported | None:
    """The session whose records are in a folder; None where its path says nothing."""
    parts = folder.relative_to(top).parts
    at = next((i for i, part in enumerate(parts) if part in _KINDS), None)
    if at is None or at < 2 or len(parts) < at + 2:  # noqa: PLR2004 - <gpu>/<dsl>/<kind>/<key>
        return None
    gpu, dsl, kind, shape_key = parts[at - 2 : at + 2]
    model = "/".join(parts[at + 2 :])
    base = top.joinpath(*parts[:at])
    notes: Counter[str] = Counter()
    notes[_WRONG_PLACE] += kind != "logs"
    beside = {name: base / name / shape_key / model for name in _BESIDE}
    rows = _rows(folder, beside["srcs"], notes)
    _look_beside(folder, beside, (shape_key, rows), notes)
    notes.update(suspicion.counted(rows))
    return Imported(
        gpu, dsl, shape_key, model, tuple(rows), dict(sorted((+notes).items())),
        _digest([folder, *beside.values()]),
    )  # fmt: skip


def _rows(folder: Path, srcs: Path, notes: Counter[str]) -> list[Row]:
    table = read_tsv(evidence.text_of(folder / _RECORDS[0]))
    log = read_idea_log(evidence.text_of(folder / _RECORDS[1]))
    notes.update(table.notes)
    notes.update(log.notes)
    numbers, odd = evidence.sources(srcs)
    notes.update(odd)
    tsv = suspicion.without_source(suspicion.of_table(table.rows), numbers)
    timed = suspicion.of_pace(suspicion.of_table(log.rows))
    tsv, timed = suspicion.across(tsv, timed)
    jumps, skipped = suspicion.gaps(tsv)
    notes["gaps-in-numbering"] += jumps
    notes["numbers-skipped"] += skipped
    notes["no-iter000"] += not any(row.iteration == 0 for row in tsv)
    rounds = Counter(row.round for row in timed if row.round is not None)
    notes["duplicate-round"] += sum(n - 1 for n in rounds.values())
    return [*tsv, *timed]


def _look_beside(
    folder: Path, beside: dict[str, Path], what: tuple[str, list[Row]], notes: Counter[str]
) -> None:
    shape_key, rows = what
    tsv = [row for row in rows if row.origin == "tsv"]
    notes.update(evidence.timings(beside["perf"], rows))
    notes.update(evidence.profiles(beside["perf"]))
    notes.update(evidence.baseline(beside["baseline"] / "cublas_result.json", shape_key, tsv))
    path = beside["checkpoints"] / "current_idea.json"
    notes.update(evidence.checkpoint(path, shape_key, tsv))
    for place in (beside["baseline"], folder):
        notes.update(evidence.task_config(place / "task_config.json", tsv, beside["srcs"]))


def _digest(folders: list[Path]) -> str:
    """Over names and contents of all files that were looked at."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.glob("*")) if folder.is_dir() else []:
            if path.is_file() and not path.is_symlink():
                total.update(f"{folder.parts[-3:]}/{path.name}\0".encode())
                total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
