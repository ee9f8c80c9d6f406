"""Every measured round is decided as its raw samples demand, and every KEEP is verified."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from croq_fsm.domain.decision import Ruling
from croq_fsm.domain.measurement import Estimate, Samples, merge
from croq_fsm.domain.plausible import floor_seconds
from croq_fsm.domain.records import Iteration, Round
from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.domain.work import Phase
from croq_fsm.measure import stats
from croq_fsm.measure.judging import RULES, judge
from croq_fsm.storage.reading import StoredMeasurement
from croq_fsm.validation.record import Findings, Record

_PHASES: Final[tuple[Phase, ...]] = ("screen", "pairs", "confirm")
#: Outcomes after which another candidate is in hand, so that older samples do not count.
_REPAIRED: Final = (Outcome.ATTEMPT_FAILED.name, Outcome.REPAIRABLE.name)
#: Rounding of numbers that went through text.
_SAME: Final = 1e-9
#: Share of the time of its launches that a round must at least have taken; clocks differ a little.
_SHORTEST: Final = 0.9

_CURE: Final = (
    "do not use this kernel; set the session aside with 'croq-fsm clean --invalid-only' and "
    "start again from a kernel that is proven"
)

#: Version of the rules before decisions wrote theirs down.
_FIRST_RULES: Final = 1
_CURE_RULES: Final = "nothing has to be done; 'croq-fsm validate --remeasure' times the best again"


def check(record: Record) -> Findings:
    """The baseline, then each measured round."""
    yield from _baseline(record)
    by_round = {it.round: it for it in record.iterations if it.round > 0}
    for done in record.rounds:
        it = by_round.get(done.round)
        if it is not None:
            yield from _round(record, done, it)


def _baseline(record: Record) -> Findings:
    if not record.iterations:
        return
    stored = record.measurements(0)
    if not _is_verified(stored):
        text = "the start kernel has no passed verification"
        yield record.problem("unverified", "iterations 1", text, cure=_CURE)
    samples = next((m.samples for m in stored if m.kind == "baseline" and m.samples), None)
    if samples is None:
        text = "the baseline has no samples"
        yield record.problem("no-samples", "iterations 0", text, cure=_CURE)
        return
    first = "candidate" if record.session.task.own_host else "library"
    for it, contestant in zip(record.iterations[:2], (first, "candidate"), strict=False):
        yield from _seconds(record, it, samples, contestant)


def _round(record: Record, done: Round, it: Iteration) -> Findings:
    where = f"rounds {done.round} ({it.name})"
    stored = record.measurements(done.round)
    if done.decision is Decision.KEEP and not _is_verified(stored):
        text = "kept without a passed verification in its round"
        yield record.problem("unverified", where, text, cure=_CURE)
    deciding = _deciding(record, done, it, stored)
    if deciding is None:
        text = f"transition {it.measurement} wrote no samples that could decide the round"
        yield record.problem("no-samples", where, text, cure=_CURE)
        return
    phase, samples = deciding
    if done.decision is Decision.KEEP and phase != "confirm":
        text = f"kept on the samples of the phase {phase}, without a confirmation"
        yield record.problem("unconfirmed", where, text, cure=_CURE)
        return
    yield from _seconds(record, it, samples, "candidate")
    yield from _figures(record, done, it)
    yield from _duration(record, done, stored)
    yield from _ruling(record, done, it, (phase, samples))


def _duration(record: Record, done: Round, stored: list[StoredMeasurement]) -> Findings:
    """A round takes at least as long as its launches; one that is shorter was never run."""
    blocks = [b for m in stored if m.samples is not None for b in m.samples.blocks]
    launches_s = sum(sum(block.seconds) for block in blocks)
    runs = {t["run_id"] for t in record.steps.get(done.round, ())}
    if len(runs) > 1:
        return  # between two starts of the daemon the wall clock may have been set
    if done.wall_s < launches_s * _SHORTEST and not record.session.task.simulated:
        text = f"{done.wall_s:.3f} s are claimed, its launches alone took {launches_s:.3f} s"
        yield record.problem("too-quick", f"rounds {done.round}", text, cure=_CURE)


def _ruling(
    record: Record, done: Round, it: Iteration, deciding: tuple[Phase, Samples]
) -> Findings:
    """The decision follows from the samples, by the same rule as on the night."""
    where = f"rounds {done.round} ({it.name})"
    if (rules := _decided(record, done, "rules") or _FIRST_RULES) != RULES:
        text = f"decided by version {rules} of the rules; this program has version {RULES}"
        found = record.problem("older-rules", where, text, cure=_CURE_RULES)
        yield found.as_warning("its decision is not worked out again")
        return
    phase, samples = deciding
    policy, noise = record.config.measure.decision_policy, _noise(record, done)
    session = record.session
    floor_s = floor_seconds(session.task, session.device, record.config.measure.l2)
    judged = judge(phase, samples, policy, noise, session.seed, floor_s=floor_s)
    ruling, estimate = judged.ruling, judged.estimate
    if ruling.decision is not done.decision:
        text = f"it says {done.decision}, its samples say {_said(ruling)}"
        yield record.problem("decision-unsupported", where, text, cure=_CURE)
    if it.estimate is None or not _close(it.estimate, estimate):
        text = f"its samples give the estimate {estimate}, stored is {it.estimate}"
        yield record.problem("estimate-unsupported", where, text, cure=_CURE)


def _noise(record: Record, done: Round) -> float:
    """The noise floor that DECIDE wrote down; counts where the samples show none themselves."""
    said = _decided(record, done, "noise")
    return (record.session.noise or 0.0) if said is None else float(said)


def _decided(record: Record, done: Round, name: str) -> Any:
    """What DECIDE wrote down under a name when it decided the round; None when it did not."""
    said = [
        json.loads(t["detail"]).get(name)
        for t in record.steps.get(done.round, ())
        if t["outcome"] == Outcome.DECIDED.name
    ]
    return next((value for value in reversed(said) if value is not None), None)


def _deciding(
    record: Record, done: Round, it: Iteration, stored: list[StoredMeasurement]
) -> tuple[Phase, Samples] | None:
    """Phase and merged samples that the round was decided on."""
    last = next((m for m in stored if m.seq == it.measurement and m.samples is not None), None)
    phase = next((p for p in _PHASES if last is not None and last.kind == p), None)
    if phase is None:
        return None
    since = max(
        (t["seq"] for t in record.steps.get(done.round, ()) if t["outcome"] in _REPAIRED),
        default=0,
    )
    parts = [m.samples for m in stored if m.kind == phase and m.seq > since and m.samples]
    return (phase, merge(parts)) if parts else None


def _is_verified(stored: list[StoredMeasurement]) -> bool:
    """The latest verification counts; earlier ones may be of candidates that were repaired."""
    checks = [m.verification for m in stored if m.verification is not None]
    return bool(checks) and checks[-1].passed


def _seconds(record: Record, it: Iteration, samples: Samples, contestant: str) -> Findings:
    """The time of record is what its samples say."""
    try:
        measured = stats.block_seconds(samples, contestant)
    except ValueError as exc:
        measured, text = math.nan, f"no samples of the {contestant}: {exc}"
    else:
        text = f"{it.seconds!r} s are claimed, its samples say {measured!r} s"
    if not math.isclose(measured, it.seconds, rel_tol=_SAME):
        where = f"iterations {it.number} ({it.name})"
        yield record.problem("time-unsupported", where, text, cure=_CURE)


def _figures(record: Record, done: Round, it: Iteration) -> Findings:
    """TFLOPS and ratio follow from time and estimate."""
    tflops = record.session.task.tflops(it.seconds)
    ratio = None if it.estimate is None else it.estimate.ratio
    for name, claimed, computed in (
        ("tflops", done.tflops, tflops),
        ("ratio", done.ratio, ratio),
    ):
        if name == "tflops" and claimed is None and computed is None:
            continue  # nobody knows the work of a call
        if (
            claimed is None
            or computed is None
            or not math.isclose(claimed, computed, rel_tol=_SAME)
        ):
            text = f"{name} {claimed!r} is claimed, {computed!r} follows from what was measured"
            yield record.problem(f"{name}-unsupported", f"rounds {done.round}", text, cure=_CURE)


def _close(stored: Estimate, computed: Estimate) -> bool:
    return stored.pairs == computed.pairs and all(
        math.isclose(getattr(stored, name), getattr(computed, name), rel_tol=_SAME)
        for name in ("ratio", "low", "high")
    )


def _said(ruling: Ruling) -> str:
    told = "nothing yet" if ruling.decision is None else str(ruling.decision)
    return f"{told}: {ruling.reason}"
