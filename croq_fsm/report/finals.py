"""The figures of record: best, start kernel and library, measured together at the session's end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from croq_fsm.domain.measurement import Estimate, Samples
from croq_fsm.domain.records import Iteration
from croq_fsm.domain.session import Session
from croq_fsm.domain.task import Task
from croq_fsm.measure import stats
from croq_fsm.report import words
from croq_fsm.storage.inspection import Inspector


@dataclass(frozen=True)
class Regime:
    """The last measurement in one regime.

    Attributes:
        name: ``isolated``, ``burst`` or ``sustained``.
        samples: Its samples; the best kernel is the ``candidate``.
        seconds: Time of a call by contestant: ``candidate``, ``start``, ``library``.
        to_library: Library time over the best kernel's.
        to_start: Start kernel's time over the best kernel's; None when it is the best itself.
    """

    name: str
    samples: Samples
    seconds: dict[str, float]
    to_library: Estimate | None
    to_start: Estimate | None


@dataclass(frozen=True)
class Finals:
    """All regimes of the last measurement.

    Attributes:
        regimes: In the order in which they were measured.
        skipped: Regime → why it was not measured.
    """

    regimes: tuple[Regime, ...] = ()
    skipped: Mapping[str, str] | None = None


#: Nothing was measured at an end.
NOTHING: Final = Finals()


def read(inspector: Inspector, session: Session, best: Iteration | None) -> Finals:
    """The last measurement of this best kernel; empty when there is none."""
    stored = inspector.finals(session.id)
    mine = [m for m in stored if best is not None and m.environment.get("best") == best.name]
    regimes = tuple(_regime(m.samples, session.seed) for m in mine if m.samples is not None)
    return Finals(regimes, _skipped(inspector, session))


def as_json(finals: Finals, task: Task) -> dict[str, Any] | None:
    """For ``status --json``; None when nothing was measured at the end."""
    return {
        regime.name: {
            "best_tflops": task.tflops(regime.seconds["candidate"]),
            "library_tflops": _tflops(task, regime.seconds.get("library")),
            "to_library": _ratio(regime.to_library),
            "to_start": _ratio(regime.to_start),
        }
        for regime in finals.regimes
    } or None


def short(finals: Finals) -> str:
    """One line: the ratio to the library in each regime."""
    return "; ".join(
        f"{regime.name} {words.times(regime.to_library.ratio)} library "
        f"{words.interval(regime.to_library)}"
        for regime in finals.regimes
        if regime.to_library is not None
    )


def rows(finals: Finals, task: Task) -> list[tuple[str, str]]:
    """For the report: a row a regime, then what was left out."""
    found = [(regime.name, _row(regime, task)) for regime in finals.regimes]
    skipped = finals.skipped or {}
    return found + [(name, f"not measured at the end: {why}") for name, why in skipped.items()]


def _row(regime: Regime, task: Task) -> str:
    best, library = (_tflops(task, regime.seconds.get(n)) for n in ("candidate", "library"))
    places = words.decimals(library or best)
    parts = [f"{words.rate(best, places)} TFLOPS"]
    if library is not None:
        parts[0] += f", library {words.rate(library, places)}"
    for name, ratio in (("library", regime.to_library), ("iter001", regime.to_start)):
        if ratio is not None:
            parts.append(f"{words.times(ratio.ratio)} {name} {words.interval(ratio)}")
    return "; ".join(parts)


def _regime(samples: Samples, seed: int) -> Regime:
    names = {block.contestant for block in samples.blocks}
    return Regime(
        name=samples.regime.partition(" ")[0],
        samples=samples,
        seconds={name: stats.block_seconds(samples, name) for name in sorted(names)},
        to_library=_estimate(samples, "library", seed),
        to_start=_estimate(samples, "start", seed),
    )


def _estimate(samples: Samples, other: str, seed: int) -> Estimate | None:
    if not samples.of(other):
        return None
    try:
        return stats.estimate(samples, other, "candidate", seed=seed)
    except ValueError:  # too few pairs for an interval
        return None


def _skipped(inspector: Inspector, session: Session) -> dict[str, str]:
    """What the last step says that it left out; nothing while the session goes on."""
    if not session.state.is_final:
        return {}
    latest = inspector.transitions(session.id, limit=1)
    skipped = json.loads(latest[0]["detail"]).get("final_skipped", {}) if latest else {}
    return {str(k): words.one_line(str(v)) for k, v in skipped.items()}


def _tflops(task: Task, seconds: float | None) -> float | None:
    return None if seconds is None else task.tflops(seconds)


def _ratio(estimate: Estimate | None) -> dict[str, float] | None:
    if estimate is None:
        return None
    return {"ratio": estimate.ratio, "low": estimate.low, "high": estimate.high}
