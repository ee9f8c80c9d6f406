"""Files under ``tuning/`` as pure functions of the history.

STORE and ``rebuild`` call the same functions, so that a rebuilt file is equal byte for byte.
Ideas may hold tabs, quotes, newlines and any Unicode: TSV cells are escaped, the rest is JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from croq_fsm.domain import escalation, own_host
from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.records import Attempt, Iteration, Round
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import SUFFIXES, Task
from croq_fsm.domain.work import Idea
from croq_fsm.storage.layout import Layout

TSV_HEADER: Final = "round\titer\tkernel\ttflops\tdecision\tbottleneck\tidea_summary\n"
_ABSENT: Final = "-"
_RECENT: Final = 10
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})

Lines = dict[str, str]


@dataclass(frozen=True)
class Snapshot:
    """The session as the snapshot files show it.

    Attributes:
        session_id: Session.
        library: iter000.
        best: The best kernel.
        round: Finished rounds.
        streak: Rounds since the last KEEP.
        counts: Rounds by decision.
        recent: Latest rounds, oldest first, at most ten.
        idea: Idea of the latest round; None before the first.
        at: UTC microseconds of the latest stored fact.
    """

    session_id: str
    library: Iteration
    best: Iteration
    round: int
    streak: int
    counts: dict[Decision, int]
    recent: tuple[Round, ...]
    idea: Idea | None
    at: int

    def tflops(self, task: Task) -> tuple[float | None, float | None]:
        """TFLOPS of the best kernel and of the library; None where work or library is unknown."""
        library = None if task.own_host else task.tflops(self.library.seconds)
        return task.tflops(self.best.seconds), library


def timestamp(at: int) -> str:
    """UTC microseconds as ISO 8601 with Z."""
    moment = datetime.fromtimestamp(at / 1e6, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def tsv_row(cells: Iterable[object]) -> str:
    """One row; tabs, newlines and backslashes inside a cell are escaped."""
    return "\t".join(str(cell).translate(_ESCAPES) for cell in cells) + "\n"


def baseline_lines(layout: Layout, task: Task, iterations: Iterable[Iteration]) -> Lines:
    """Head of ``results.tsv`` with iter000 and iter001."""
    rows = [
        tsv_row(
            (
                0,
                f"iter{it.number:03d}",
                it.name,
                _number(task.tflops(it.seconds)),
                it.decision.name,
                _ABSENT,
                _baseline_text(task, it),
            )
        )
        for it in iterations
    ]
    return {layout.log("results.tsv"): TSV_HEADER + "".join(rows)}


def _baseline_text(task: Task, it: Iteration) -> str:
    """What iter000 and iter001 are; without a library, iter000 is no measurement of its own."""
    if not task.own_host:
        return "library reference" if it.number == 0 else "start kernel"
    what = "no library: the start kernel's own figure" if it.number == 0 else "start kernel"
    return f"{what} [{own_host.LABEL}]"


def round_lines(layout: Layout, record: Round, attempts: list[tuple[Attempt, int]]) -> Lines:
    """Lines that a finished round adds to the logs."""
    lines = {
        layout.log("idea-log.jsonl"): _json_line(_idea_entry(record) | _mark(layout.task)),
        layout.memory("rounds.raw.jsonl"): _json_line(_raw_entry(record) | _mark(layout.task)),
        layout.memory("rounds.md"): _markdown(record, layout.task),
    }
    if record.iteration is not None:
        lines[layout.log("results.tsv")] = tsv_row(
            (
                record.round,
                f"iter{record.iteration:03d}",
                record.kernel,
                _number(record.tflops),
                record.decision.name,
                str(record.bottleneck),
                record.summary + _label(layout.task),
            )
        )
    if attempts:
        lines[layout.log("attempt-log.jsonl")] = "".join(
            _json_line(_attempt_entry(attempt, at)) for attempt, at in attempts
        )
    return lines


def snapshot_files(layout: Layout, task: Task, snapshot: Snapshot) -> Lines:
    """Session checkpoint, idea checkpoint, baseline records and the context pack."""
    files = {
        layout.checkpoint: _json_file(_checkpoint(task, layout, snapshot)),
        layout.compaction_summary: _context_pack(task, layout, snapshot),
        layout.keyed("baseline", "cublas_result.json"): _json_file(
            _library_result(task, layout, snapshot)
        ),
        layout.keyed("baseline", "task_config.json"): _json_file(
            _task_config(task, layout, snapshot)
        ),
    }
    if snapshot.idea is not None:
        files[layout.current_idea] = idea_file(task, snapshot.idea, "STORED", snapshot.at)
    return files


def idea_file(task: Task, idea: Idea, status: str, at: int) -> str:
    """The idea checkpoint, ``current_idea.json``."""
    proposal: Proposal = idea.proposal
    return _json_file(
        {
            "schema": "croq-checkpoint-v1",
            "timestamp": timestamp(at),
            "dsl": task.dsl,
            "shape_key": task.shape_key,
            "iter": idea.name,
            "bottleneck": str(idea.bottleneck),
            "idea": proposal.summary,
            "hypothesis": proposal.hypothesis,
            "metrics": list(proposal.metrics),
            "expected_gain": f"{proposal.expected_gain:+.1%}",
            "levers": list(proposal.levers),
            "base": f"iter{proposal.base:03d}",
            "fingerprint": idea.fingerprint,
            "status": status,
        }
    )


def keep_message(task: Task, record: Round, session_id: str, seq: int) -> str:
    """Commit message of a KEEP: what, why, result, decision, and the trailer."""
    attempt = f"Croq-Attempt: {session_id}/{seq}"
    head = (
        f"tune({task.dsl}): {task.shape_key} - {record.kernel} "
        f"{_number(record.tflops)} TFLOPS (KEEP)"
    )
    body = (
        f"What: {_one_line(record.summary)}\n"
        f"Why: {_one_line(record.hypothesis)}\n"
        f"Result: {_one_line(record.reason)}{_label(task)}\n"
        f"Decision: {record.decision.name}"
    )
    return f"{head}\n\n{body}\n\n{attempt}\n"


def baseline_message(task: Task, start: Iteration, session_id: str, seq: int) -> str:
    """Commit message of the measured start kernel."""
    what = "the start kernel, verified on its whole output and measured against the library"
    if task.own_host:
        what = f"the start kernel, checked and timed by its own host part ({own_host.LABEL})"
    return (
        f"tune({task.dsl}): {task.shape_key} - {start.name} "
        f"{_number(task.tflops(start.seconds))} TFLOPS (KEEP)\n\n"
        f"What: {what}\n"
        "Why: the baseline that every later round is compared with\n"
        f"Result: {start.seconds * 1e6:.2f} us a call\nDecision: KEEP\n\n"
        f"Croq-Attempt: {session_id}/{seq}\n"
    )


def _mark(task: Task) -> dict[str, Any]:
    """What an entry of a log says beside the rest when its numbers are a program's own."""
    return {"self_reported": True} if task.own_host else {}


def _label(task: Task) -> str:
    return f" [{own_host.LABEL}]" if task.own_host else ""


def _number(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.4f}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _json_line(entry: dict[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False) + "\n"


def _json_file(entry: dict[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False, indent=2) + "\n"


def _iter(record: Round) -> str | None:
    return None if record.iteration is None else f"iter{record.iteration:03d}"


def _raw_entry(record: Round) -> dict[str, Any]:
    return {
        "iter": _iter(record),
        "kernel": record.kernel,
        "tflops": record.tflops,
        "decision": record.decision.name,
        "bottleneck": str(record.bottleneck),
        "idea": record.summary,
        "timestamp": timestamp(record.stored_at),
    }


def _idea_entry(record: Round) -> dict[str, Any]:
    return {
        "round": record.round,
        **_raw_entry(record),
        "category": str(record.category),
        "expected_gain": f"{record.expected_gain:+.1%}",
        "hypothesis": record.hypothesis,
        "levers": list(record.levers),
        "base": f"iter{record.base:03d}",
        "ratio": record.ratio,
        "attempts": record.attempts,
        "reason": record.reason,
    }


def _attempt_entry(attempt: Attempt, at: int) -> dict[str, Any]:
    return {
        "round": attempt.round,
        "attempt": attempt.name,
        "number": attempt.number,
        "decision": attempt.kind.name,
        "message": attempt.message,
        "timestamp": timestamp(at),
    }


def _markdown(record: Round, task: Task) -> str:
    ratio = _ABSENT if record.ratio is None else f"{record.ratio:.4f}"
    return (
        f"## {record.kernel} - {timestamp(record.stored_at)}\n\n"
        f"- round: {record.round} from iter{record.base:03d}\n"
        f"- kernel: {record.kernel}\n"
        f"- tflops: {_number(record.tflops)} (ratio to the best then: {ratio}){_label(task)}\n"
        f"- decision: {record.decision.name}: {_one_line(record.reason)}\n"
        f"- bottleneck: {record.bottleneck}\n"
        f"- idea: {_one_line(record.summary)}\n"
        f"- why: {_one_line(record.hypothesis)}\n\n"
    )


def _checkpoint(task: Task, layout: Layout, snapshot: Snapshot) -> dict[str, Any]:
    best, library = snapshot.tflops(task)
    return {
        "schema": "croq-session-v1",
        "session": snapshot.session_id,
        "timestamp": timestamp(snapshot.at),
        "dsl": task.dsl,
        "shape_key": task.shape_key,
        "model": task.model,
        "gpu": layout.gpu,
        "simulated": task.simulated,
        "self_reported": task.own_host,
        "round": snapshot.round,
        "current_best_iter": snapshot.best.number,
        "current_best_kernel": snapshot.best.name,
        "current_best_source": layout.source(snapshot.best.name, SUFFIXES[task.dsl]),
        "current_best_tflops": best,
        "baseline_tflops": library,
        "consecutive_discards": snapshot.streak,
        "escalation": escalation.level(snapshot.streak),
        "counts": {decision.name: snapshot.counts.get(decision, 0) for decision in Decision},
    }


def _library_result(task: Task, layout: Layout, snapshot: Snapshot) -> dict[str, Any]:
    _, library = snapshot.tflops(task)
    return {
        "tflops": library,
        "avg_ms": None if task.own_host else snapshot.library.seconds * 1e3,
        "library": snapshot.library.name.partition("_")[2],
        "dtype": task.dtype,
        **task.sizes,
        "status": _library_status(task),
        "gpu": layout.gpu,
        "dsl": task.dsl,
        "shape_key": task.shape_key,
        "model": task.model,
    }


def _library_status(task: Task) -> str:
    if task.own_host:
        return f"none: unknown operator, {own_host.LABEL}"
    return "simulated" if task.simulated else "ok"


def _task_config(task: Task, layout: Layout, snapshot: Snapshot) -> dict[str, Any]:
    best, library = snapshot.tflops(task)
    return {
        "task_uid": snapshot.session_id,
        "dsl": task.dsl,
        "operator": task.operator,
        "dtype": task.dtype,
        "shape_key": task.shape_key,
        "model": task.model,
        "device": layout.gpu,
        "kernel": task.kernel,
        "max_iterations": task.rounds,
        "best_tflops": best,
        "baseline_tflops": library,
        "best_kernel": snapshot.best.name,
    }


def _context_pack(task: Task, layout: Layout, snapshot: Snapshot) -> str:
    best, library = snapshot.tflops(task)
    ratio = best / library if best and library else None
    bottleneck = str(snapshot.recent[-1].bottleneck) if snapshot.recent else "not profiled yet"
    recent = "".join(_recent_line(r) for r in snapshot.recent[-5:]) or "- none yet\n"
    avoid = "".join(
        f"- {_one_line(r.summary)} ({r.decision.name})\n"
        for r in snapshot.recent[-_RECENT:]
        if r.decision is not Decision.KEEP
    )
    return (
        "# Compaction summary\n\n"
        f"Last updated: {timestamp(snapshot.at)}\n\n"
        "## Immediate action\n\n"
        f"`croq-fsm resume {snapshot.session_id}` goes on at the state in the database.\n\n"
        "## Current task\n\n"
        f"- task: {task.dsl} {task.shape_key} on {layout.gpu}\n"
        f"- best: {snapshot.best.name} {_number(best)} TFLOPS{_label(task)}\n"
        f"- library: {_number(library)} TFLOPS (ratio {_number(ratio)})\n"
        f"- bottleneck: {bottleneck}\n"
        f"- rounds since the last KEEP: {snapshot.streak}; {escalation.advice(snapshot.streak)}\n\n"
        f"## Recent history\n\n{recent}\n"
        f"## Do not repeat\n\n{avoid or '- nothing yet'}\n"
    )


def _recent_line(record: Round) -> str:
    return (
        f"- round {record.round} {record.kernel}: {record.decision.name} "
        f"{_number(record.tflops)} TFLOPS, {_one_line(record.summary)}\n"
    )
