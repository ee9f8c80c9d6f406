"""DECIDE: a pure function of the stored samples and the policy."""

from __future__ import annotations

from croq_fsm.domain.decision import Ruling
from croq_fsm.domain.measurement import Estimate, Samples, merge
from croq_fsm.domain.plausible import floor_seconds
from croq_fsm.domain.records import Facts, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.domain.work import Verdict, Work
from croq_fsm.measure import stats
from croq_fsm.measure.judging import RULES, judge
from croq_fsm.ports import Ports


def run(session: Session, ports: Ports) -> Step:
    """Rule on the samples of the present phase."""
    work = session.work
    stored = ports.history.measurements(work.samples)
    phase = [m.samples for m in stored if m.kind == work.phase and m.samples is not None]
    merged = merge(phase)
    policy = ports.config.measure.decision_policy
    floor_s = floor_seconds(session.task, session.device, ports.config.measure.l2)
    judged = judge(work.phase, merged, policy, session.noise or 0.0, session.seed, floor_s=floor_s)
    ruling, estimate, fresh = judged.ruling, judged.estimate, judged.fresh
    detail = {
        "phase": work.phase,
        "estimate": estimate.model_dump(),
        "noise": judged.noise,
        "reason": ruling.reason,
        "ruling": ruling.kind,
        "rules": RULES,
    }
    # Noise depends on the kernel and on the hour; the latest A/A samples speak for both.
    records = () if fresh is None else (Facts(noise=fresh),)
    if ruling.decision is None:
        return Step(Outcome.AMBIGUOUS, _more(work, ruling), detail, records)
    verdict = _verdict(ruling.decision, ruling.reason, estimate, merged)
    decided = work.model_copy(update={"verdict": verdict})
    detail["decision"] = ruling.decision.name
    return Step(Outcome.DECIDED, decided, detail, records)


def _more(work: Work, ruling: Ruling) -> Work:
    return work.model_copy(update={"phase": ruling.next_phase, "pairs": ruling.next_pairs})


def _verdict(decision: Decision, reason: str, estimate: Estimate, samples: Samples) -> Verdict:
    """The figures of record come from the samples of the deciding phase."""
    has_library = bool(samples.of("library"))
    return Verdict(
        decision=decision,
        reason=reason,
        estimate=estimate,
        seconds=stats.block_seconds(samples, "candidate"),
        best_seconds=stats.block_seconds(samples, "best"),
        library_seconds=stats.block_seconds(samples, "library") if has_library else None,
    )
