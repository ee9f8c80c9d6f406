"""DECIDE: a pure function of the stored samples and the policy."""

from __future__ import annotations

from croq_fsm.domain.decision import Policy, Ruling, rule
from croq_fsm.domain.measurement import Estimate, Samples, merge
from croq_fsm.domain.records import Facts, Record, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.domain.work import Verdict, Work
from croq_fsm.measure import stats
from croq_fsm.ports import Ports


def run(session: Session, ports: Ports) -> Step:
    """Rule on the samples of the present phase."""
    work = session.work
    stored = ports.history.measurements(work.samples)
    phase = [m.samples for m in stored if m.kind == work.phase and m.samples is not None]
    merged = merge(phase)
    estimate = stats.estimate(merged, "best", "candidate", seed=session.seed)
    ruling = rule(work.phase, estimate, policy(session, ports))
    detail = {
        "phase": work.phase,
        "estimate": estimate.model_dump(),
        "reason": ruling.reason,
        "ruling": ruling.kind,
    }
    if ruling.decision is None:
        return Step(Outcome.AMBIGUOUS, _more(work, ruling), detail)
    verdict = _verdict(ruling.decision, ruling.reason, estimate, merged)
    decided = work.model_copy(update={"verdict": verdict})
    return Step(
        Outcome.DECIDED,
        decided,
        {**detail, "decision": ruling.decision.name},
        records=_noise_of_new_best(ruling.decision, merged),
    )


def _noise_of_new_best(decision: Decision, samples: Samples) -> tuple[Record, ...]:
    """Noise depends on the kernel; a new best brings its own floor from the confirmation."""
    if decision is not Decision.KEEP or not samples.of("twin"):
        return ()
    return (Facts(noise=stats.spread(stats.estimate(samples, "candidate", "twin", seed=1))),)


def policy(session: Session, ports: Ports) -> Policy:
    """Policy of this session."""
    settings = ports.config.measure
    return Policy(
        min_effect=settings.min_effect,
        screen_margin=settings.screen_margin,
        noise=session.noise or 0.0,
        pairs=settings.pairs,
        max_pairs=settings.max_pairs,
        confirm_pairs=settings.confirm_pairs,
    )


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
