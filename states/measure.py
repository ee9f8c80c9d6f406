"""MEASURE: drift check, verification of the whole output, then interleaved timing."""

from __future__ import annotations

from dataclasses import replace

from croq_fsm.domain import escalation, guards
from croq_fsm.domain.build import Build
from croq_fsm.domain.hidden import hidden_tasks
from croq_fsm.domain.measurement import Samples, Verification, demanded
from croq_fsm.domain.records import Facts, Measured, Record, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.shapes import format_shape
from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.domain.task import Task
from croq_fsm.domain.work import Verdict
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateError,
    CandidateHung,
    Contended,
    DeviceWedged,
    EnvironmentMissing,
    UsageError,
)
from croq_fsm.measure import sets, stats
from croq_fsm.ports import Ports
from croq_fsm.toolchain.workbench import Contestant, Sanitizing, TimingPlan
from states import _bases, _failing, _waiting

#: Failures of the best kernel that are waited out.
_INCUMBENT_TRIES = 4

_OUTCOMES = (Outcome.REPAIRABLE, Outcome.REJECTED)


def run(session: Session, ports: Ports) -> Step:
    """Verify once per build, then take the samples that DECIDE asked for."""
    try:
        return _measure(session, ports)
    except CandidateError as exc:
        return _failed(session, ports, exc)
    except Contended as exc:
        return _contended(session, ports, exc)
    except EnvironmentMissing as exc:
        return _ended(session, Outcome.ENVIRONMENT_BROKEN, str(exc))
    except DeviceWedged as exc:
        return _ended(session, Outcome.WEDGED, str(exc))


def _measure(session: Session, ports: Ports) -> Step:
    build = _checked_build(session, ports)
    records: tuple[Record, ...] = ()
    if not session.work.verified:
        checks = ports.workbench.verify(build, session.task, _seeds(session, ports))
        records = (Measured(session.work.round, "verify", verification=checks),)
        if not checks.passed:
            return _wrong(session, ports, checks, records)
    if session.work.phase == "confirm" and not _confirms_again(session, ports):
        for task in _hidden(session, ports):
            checks = ports.workbench.verify(build, task, _seeds(session, ports)[:1])
            records = (*records, Measured(session.work.round, "verify", verification=checks))
            if not checks.passed:
                return _wrong(session, ports, _named(checks, task), records)
        found = _sanitized(session, ports)
        if found is not None:
            records = (*records, Measured(session.work.round, "verify", verification=found))
            if not found.passed:
                return _wrong(session, ports, found, records)
    step = _timed(session, build, _time(session, ports, build), records)
    if not _wants_noise(session, ports):
        return step
    return replace(step, records=(*step.records, *_noise(session, ports)))


def _wants_noise(session: Session, ports: Ports) -> bool:
    """Whether the noise floor of the best kernel is due, once in every so many rounds."""
    every = ports.config.measure.noise_every
    work = session.work
    is_first = work.phase == "screen" and not work.samples
    return bool(every) and is_first and work.round % every == 0


def _noise(session: Session, ports: Ports) -> tuple[Record, ...]:
    """The best against itself, in the window of the candidate's screen: the floor of the hour.

    A floor that says more about the neighbours than about the kernel is stored, and not gone by.
    """
    settings, incumbent = ports.config.measure, _incumbent(session, ports)
    seed = session.seed + 1000 * session.work.round + 900
    plan = sets.plan(settings, "noise", settings.pairs, seed)
    same: dict[str, Contestant] = {"a": incumbent, "b": incumbent}
    samples = sets.timed(ports.workbench, same, session.task, plan, settings.pairs_per_process)
    floor = stats.noise_floor(samples)
    measured = Measured(session.work.round, "noise", samples=samples)
    return (measured,) if floor > stats.DISTURBED else (measured, Facts(noise=floor))


def _confirms_again(session: Session, ports: Ports) -> bool:
    """Whether this is more of a confirmation that has begun; the build is the same."""
    stored = ports.history.measurements(session.work.samples)
    return any(m.kind == "confirm" for m in stored)


def _hidden(session: Session, ports: Ports) -> list[Task]:
    """Shapes on which a winner must be right as well; those that the DSL can run."""
    seed = session.seed + session.work.round
    count = ports.config.measure.hidden_shapes
    return [t for t in hidden_tasks(session.task, seed, count) if _is_supported(ports, t)]


def _sanitized(session: Session, ports: Ports) -> Verification | None:
    """What sanitizers say of a winner; None where they are off or the workbench has none."""
    mode, candidate = ports.config.measure.sanitizer, session.work.candidate
    if mode == "off" or candidate is None or not isinstance(ports.workbench, Sanitizing):
        return None
    checks = ports.workbench.sanitize(candidate, session.task)
    return demanded(checks, required=mode == "required")


def _is_supported(ports: Ports, task: Task) -> bool:
    try:
        ports.workbench.supports(task)
    except UsageError:
        return False
    return True


def _named(checks: Verification, task: Task) -> Verification:
    """The same checks, each saying that its shape was a hidden one."""
    shape = format_shape(task.shape)
    renamed = (
        c.model_copy(update={"rung": "hidden-shape", "detail": f"on {shape}: {c.detail}"})
        for c in checks.checks
    )
    return Verification(checks=tuple(renamed))


def _wants_fresh_baseline(session: Session) -> bool:
    """A long stall may be the device's: look at the library again beside the best."""
    stalled = escalation.level(session.streak) >= escalation.FRESH_BASELINE
    return stalled and session.work.phase == "pairs"


def _contended(session: Session, ports: Ports, exc: Contended) -> Step:
    """Wait for the others, however long, but not beyond the session's own deadline."""
    deadline = session.task.deadline
    if deadline is None or ports.clock.now() < deadline:
        return _waiting.back_off(session, ports, str(exc), Outcome.CONTENDED, Outcome.CONTENDED)
    verdict = Verdict(
        decision=Decision.RUN_FAIL,
        reason=f"not measured: the device was in use until the deadline ({exc})",
    )
    work = session.work.model_copy(update={"verdict": verdict})
    return Step(Outcome.REJECTED, work, {"reason": verdict.reason})


def _failed(session: Session, ports: Ports, exc: CandidateError) -> Step:
    if str(exc).startswith("best: "):
        return _incumbent_failed(session, ports, exc)
    return _failing.failed(session, ports, (_kind(exc), str(exc), exc.log), _OUTCOMES)


def _incumbent_failed(session: Session, ports: Ports, exc: CandidateError) -> Step:
    """The best kernel fails now: the device or the toolchain changed, not the candidate."""
    if session.work.waits < _INCUMBENT_TRIES:
        return _waiting.back_off(session, ports, str(exc), Outcome.CONTENDED, Outcome.CONTENDED)
    return _ended(
        session,
        Outcome.ENVIRONMENT_BROKEN,
        f"the best kernel, verified before, fails again and again now: {exc}",
    )


def _ended(session: Session, outcome: Outcome, reason: str) -> Step:
    return Step(outcome, session.work, {"reason": reason}, reason=reason)


def _checked_build(session: Session, ports: Ports) -> Build:
    """The build of exactly what was planned; comes from the cache unless that was trimmed."""
    candidate = session.work.candidate
    if candidate is None or guards.identity(candidate) != session.work.candidate_hash:
        raise LookupError("the candidate in hand is not the one of the checkpoint (drift)")
    return ports.workbench.build(candidate, session.task)


def _seeds(session: Session, ports: Ports) -> tuple[int, ...]:
    """Seeds of this round: fixed by the session and the round, unknown to the ideator."""
    return session.verify_seeds(session.work.round, ports.config.measure.verify_seeds)


def _time(session: Session, ports: Ports, build: Build) -> Samples:
    settings, work = ports.config.measure, session.work
    incumbent = _incumbent(session, ports)
    contestants: dict[str, Contestant] = {"candidate": build, "best": incumbent}
    against_library = work.phase == "confirm" or _wants_fresh_baseline(session)
    if against_library and not session.task.own_host:
        contestants["library"] = "library"
    if work.phase == "confirm":
        # The same build once more: what a new best differs from itself is its noise floor.
        contestants["twin"] = build
    plan = TimingPlan(
        purpose=work.phase,
        pairs=work.pairs,
        block_s=settings.block_s,
        max_launches=settings.max_launches,
        warmup_s=settings.warmup_s,
        regime=settings.regime,
        l2=settings.l2,
        seed=session.seed + 1000 * work.round + len(work.samples),
    )
    if work.phase == "screen":  # one set is enough to see what is clearly slower
        return ports.workbench.time(contestants, session.task, plan)
    return sets.timed(ports.workbench, contestants, session.task, plan, settings.pairs_per_process)


def _incumbent(session: Session, ports: Ports) -> Build:
    """The best kernel, from the cache unless that was trimmed."""
    best = _bases.active(session, ports)[0]
    if best.build is None or best.candidate is None:
        raise LookupError(f"{best.name} has no build")
    return ports.workbench.build(best.candidate, session.task)


def _timed(session: Session, build: Build, samples: Samples, records: tuple[Record, ...]) -> Step:
    work = session.work
    measured = Measured(work.round, work.phase, samples=samples)
    return Step(
        outcome=Outcome.TIMED,
        work=work.model_copy(
            update={
                "build": build,
                "verified": True,
                "samples": (*work.samples, session.seq + 1),
                "waits": 0,
                "not_before": None,
            }
        ),
        detail={"phase": work.phase, "pairs": work.pairs, "dropped": list(samples.dropped)},
        records=(*records, measured),
    )


def _wrong(
    session: Session, ports: Ports, checks: Verification, records: tuple[Record, ...]
) -> Step:
    failed = checks.first_failure
    message = (
        f"{failed.name} on rung {failed.rung}: {failed.detail}" if failed else "no check was made"
    )
    failure = (Decision.VERIFY_FAIL, message, checks.model_dump_json(indent=1))
    return _failing.failed(session, ports, failure, _OUTCOMES, records)


def _kind(exc: CandidateError) -> Decision:
    if isinstance(exc, CandidateCrashed):
        return Decision.SEGFAULT
    if isinstance(exc, CandidateHung):
        return Decision.HANG
    return Decision.RUN_FAIL
