"""All trials of a session, flat: one for each measured kernel and each failed attempt."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

from croq_fsm.domain import source
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.measurement import Samples
from croq_fsm.domain.records import Attempt, Iteration, Round
from croq_fsm.report.facts import Facts
from croq_fsm.storage.views import timestamp


@dataclass(frozen=True)
class Trial:
    """One candidate and what came of it.

    Attributes:
        kernel: ``iter004_tag`` or ``attemptAAAA_tag``.
        round: Round; 0 for the start kernel.
        base: Iteration that it derives from; None for the start kernel.
        decision: Verdict.
        seconds: Time of one call; None for what was not timed.
        tflops: Operations over that time.
        ratio: To the best of that time.
        low: Lower end of the 99 % interval of the ratio.
        high: Upper end.
        times: Time of each launch, seconds.
        source_sha256: Hash of its source.
        binary_sha256: Hash of its binary, or "".
        flags: Compiler flags.
        patches: Number of edits of generated code.
        macros: Macro values.
        compile_s: Wall time of its build; None when it was not built.
        summary: What was tried.
        reason: Why this verdict.
        simulated: Whether the times are of a model.
        stored_at: UTC time, or "".
    """

    kernel: str
    round: int
    base: int | None
    decision: str
    seconds: float | None
    tflops: float | None
    ratio: float | None
    low: float | None
    high: float | None
    times: tuple[float, ...]
    source_sha256: str
    binary_sha256: str
    flags: tuple[str, ...]
    patches: int
    macros: dict[str, str]
    compile_s: float | None
    summary: str
    reason: str
    simulated: bool
    stored_at: str


Sampled = Callable[[int], Samples | None]


def trials(facts: Facts, samples_of: Sampled) -> list[Trial]:
    """Measured kernels in order, then failed attempts in order.

    Args:
        facts: The session.
        samples_of: Samples that a transition wrote.
    """
    rounds = {record.round: record for record in facts.rounds}
    measured = [
        _measured(facts, it, rounds.get(it.round), samples_of(it.measurement))
        for it in facts.iterations.values()
        if it.candidate is not None
    ]
    return [*measured, *(_failed(facts, one, rounds.get(one.round)) for one in facts.attempts)]


def as_json(facts: Facts, found: list[Trial]) -> str:
    """One object: the task, the device, and the trials with all their samples."""
    session = facts.standing.session
    value = {
        "session": session.id,
        "task": session.task.model_dump(mode="json"),
        "device": session.device.model_dump(mode="json"),
        "library_seconds": session.library_seconds,
        "noise": session.noise,
        "trials": [asdict(trial) for trial in found],
    }
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def as_csv(found: list[Trial]) -> str:
    """A row for each trial; lists and tables as JSON in their cells, launches counted."""
    stream = io.StringIO()
    table = csv.writer(stream, lineterminator="\n")
    names = [field.name for field in fields(Trial)]
    table.writerow(["launches" if name == "times" else name for name in names])
    for trial in found:
        table.writerow([_cell(name, getattr(trial, name)) for name in names])
    return stream.getvalue()


def _cell(name: str, value: Any) -> Any:
    if name == "times":
        return len(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | tuple) else value


def _measured(facts: Facts, it: Iteration, record: Round | None, samples: Samples | None) -> Trial:
    candidate = it.candidate or Candidate(source="")
    estimate, build = it.estimate, it.build
    blocks = samples.of("candidate") if samples else ()
    return Trial(
        kernel=it.name,
        round=it.round,
        base=record.base if record else None,
        decision=it.decision.name,
        seconds=it.seconds,
        tflops=facts.standing.session.task.tflops(it.seconds),
        ratio=estimate.ratio if estimate else None,
        low=estimate.low if estimate else None,
        high=estimate.high if estimate else None,
        times=tuple(seconds for block in blocks for seconds in block.seconds),
        binary_sha256=build.binary_sha256 if build else "",
        compile_s=build.seconds if build else None,
        summary=record.summary if record else "start kernel",
        reason=record.reason if record else "",
        stored_at=timestamp(record.stored_at) if record else "",
        **_of_candidate(facts, candidate),
    )


def _failed(facts: Facts, attempt: Attempt, record: Round | None) -> Trial:
    return Trial(
        kernel=attempt.name,
        round=attempt.round,
        base=record.base if record else None,
        decision=attempt.kind.name,
        seconds=None,
        tflops=None,
        ratio=None,
        low=None,
        high=None,
        times=(),
        binary_sha256="",
        compile_s=None,
        summary=record.summary if record else "",
        reason=attempt.message,
        stored_at=timestamp(record.stored_at) if record else "",
        **_of_candidate(facts, attempt.candidate),
    )


def _of_candidate(facts: Facts, candidate: Candidate) -> dict[str, Any]:
    return {
        "source_sha256": source.sha256(candidate.source),
        "flags": candidate.flags,
        "patches": len(candidate.patches),
        "macros": source.macros(candidate.source),
        "simulated": facts.standing.session.task.simulated,
    }
