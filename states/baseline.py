"""BASELINE: iter000 is the library, iter001 the start kernel, both measured in one window.

Effects come after the transition: files and a local commit of the start kernel.
"""

from __future__ import annotations

from dataclasses import replace

from croq_fsm.domain import guards
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.measurement import Samples, Verification
from croq_fsm.domain.records import (
    Effect,
    Facts,
    Iteration,
    Measured,
    Record,
    Step,
)
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.domain.task import Task
from croq_fsm.domain.work import Work
from croq_fsm.errors import CandidateError, Contended, DeviceWedged, EnvironmentMissing
from croq_fsm.measure import sets, stats
from croq_fsm.ports import Ports
from croq_fsm.storage import views
from croq_fsm.toolchain.workbench import Contestant, TimingPlan
from states import _choosing, _publishing, _waiting

_LIBRARY = {"croqtile": "cublas", "cuda": "cublas"}
#: Operators of DSL ``c`` whose library is not plain NumPy.
_CPU_LIBRARY = {"matmul": "blas"}
_LOG_EXCERPT = 2000
_NOISE_TRIES = 3


def run(session: Session, ports: Ports) -> Step:
    """Build, verify and time the start kernel against the library; measure the noise floor."""
    try:
        chosen, starts = _choosing.best(session, ports)
        step = _measure(chosen, ports)
        return replace(step, detail={**step.detail, "starts": starts}) if starts else step
    except CandidateError as exc:
        return _impossible(session, f"the start kernel failed: {_told(exc)}")
    except EnvironmentMissing as exc:
        return _impossible(session, str(exc))
    except Contended as exc:
        return _waiting.back_off(session, ports, str(exc), Outcome.CONTENDED, Outcome.IMPOSSIBLE)
    except DeviceWedged as exc:
        return Step(Outcome.WEDGED, session.work, {"reason": str(exc)}, reason=str(exc))


def _told(exc: CandidateError) -> str:
    """Message and log, without saying the same twice."""
    message, log = str(exc), exc.log[-_LOG_EXCERPT:].strip()
    if log in message:
        return message
    return log if message in log else f"{message}\n{log}"


def _measure(session: Session, ports: Ports) -> Step:
    candidate = session.work.candidate
    if candidate is None:
        return _impossible(session, "the session holds no start kernel")
    problems = ports.workbench.lint(candidate, session.task)
    if problems:
        return _impossible(session, "the start kernel is refused: " + "; ".join(problems))
    build = ports.workbench.build(candidate, session.task)
    checks = ports.workbench.verify(build, session.task, _seeds(session, ports))
    if not checks.passed:
        return _wrong(session, checks)
    samples = _time(session, ports, build, "baseline")
    session = _with_work(session, samples)
    noise = _quietest(session, ports, build)
    return _measured(session, ports, candidate, build, (checks, samples, noise))


def _with_work(session: Session, samples: Samples) -> Session:
    """With the work of a call that the program's own rate and time come to, if nobody said it."""
    task, flops = session.task, samples.reported_flops
    if not task.own_host or task.work is not None or flops is None:
        return session
    known = task.model_copy(update={"work": float(round(flops)), "work_from": "reported"})
    return replace(session, task=known)


def _seeds(session: Session, ports: Ports) -> tuple[int, ...]:
    return tuple(session.seed + i for i in range(ports.config.measure.verify_seeds))


def _quietest(session: Session, ports: Ports, build: Build) -> Samples:
    """A/A samples; taken again a few times when the machine was plainly disturbed."""
    taken = [_time(session, ports, build, "noise")]
    while stats.noise_floor(taken[-1]) > stats.DISTURBED and len(taken) < _NOISE_TRIES:
        taken.append(_time(session, ports, build, "noise"))
    return min(taken, key=stats.noise_floor)


def _time(session: Session, ports: Ports, build: Build, purpose: str) -> Samples:
    settings = ports.config.measure
    plan = TimingPlan(
        purpose="noise" if purpose == "noise" else "baseline",
        pairs=settings.pairs,
        block_s=settings.block_s,
        max_launches=settings.max_launches,
        warmup_s=settings.warmup_s,
        regime=settings.regime,
        l2=settings.l2,
        seed=session.seed,
    )
    same: dict[str, Contestant] = {"a": build, "b": build}
    against: dict[str, Contestant] = {"candidate": build, "library": "library"}
    if session.task.own_host:
        against = {"candidate": build}
    contestants = same if purpose == "noise" else against
    return sets.timed(ports.workbench, contestants, session.task, plan, settings.pairs_per_process)


def _measured(
    session: Session,
    ports: Ports,
    candidate: Candidate,
    build: Build,
    evidence: tuple[Verification, Samples, Samples],
) -> Step:
    checks, samples, noise = evidence
    seq = session.seq + 1
    library = _reference(session.task, samples, seq)
    library_s = library.library_seconds
    start = Iteration(
        number=1,
        name="iter001_draft",
        round=0,
        decision=Decision.KEEP,
        candidate=candidate,
        build=build,
        structure=ports.workbench.structure(candidate),
        seconds=stats.block_seconds(samples, "candidate"),
        library_seconds=library_s,
        estimate=None,
        measurement=seq,
        self_reported=session.task.own_host,
    )
    records: tuple[Record, ...] = (
        Facts(
            noise=stats.noise_floor(noise),
            tried=guards.identity(candidate),
            task=session.task if session.task.own_host else None,
        ),
        _publishing.build_record(ports, 0, build),
        Measured(0, "verify", verification=checks),
        Measured(0, "baseline", samples=samples),
        Measured(0, "noise", samples=noise),
        library,
        start,
    )
    task = session.task
    return Step(
        outcome=Outcome.MEASURED,
        work=Work(candidate=candidate),
        detail={
            "library_tflops": None if task.own_host else task.tflops(library.seconds),
            "start_tflops": task.tflops(start.seconds),
            "noise": stats.noise_floor(noise),
        },
        records=records,
        effects=_effects(session, ports, (library, start), samples),
    )


def _reference(task: Task, samples: Samples, seq: int) -> Iteration:
    """The library, iter000; where there is none, the start kernel's own figure, named so."""
    own = task.own_host
    seconds = stats.block_seconds(samples, "candidate" if own else "library")
    return Iteration(
        number=0,
        name="iter000_none" if own else f"iter000_{_library_name(task)}",
        round=0,
        decision=Decision.KEEP,
        candidate=None,
        build=None,
        structure={},
        seconds=seconds,
        library_seconds=None if own else seconds,
        estimate=None,
        measurement=seq,
        self_reported=own,
    )


def _library_name(task: Task) -> str:
    """What iter000 is. Where no library does exactly the same, the name says so."""
    if task.precision.library:
        return task.precision.library
    return _LIBRARY.get(task.dsl, _CPU_LIBRARY.get(task.operator, "numpy"))


def _effects(
    session: Session, ports: Ports, pair: tuple[Iteration, Iteration], samples: Samples
) -> tuple[Effect, ...]:
    library, start = pair
    layout, task = ports.layout, session.task
    artifacts = _publishing.iteration_artifacts(session, ports, start, samples)
    lines = views.baseline_lines(layout, task, pair)
    snapshots = views.snapshot_files(
        layout,
        task,
        views.Snapshot(
            session_id=session.id,
            library=library,
            best=start,
            round=0,
            streak=0,
            counts={},
            recent=(),
            idea=None,
            at=session.created_at,
        ),
    )
    publish = _publishing.publish(session, artifacts, lines, snapshots)
    if not ports.config.git.commit:
        return (publish,)
    paths = [a["path"] for a in artifacts if a["kind"] != "binary"]
    git = Effect(
        "git",
        {
            "paths": sorted({*paths, *lines, *snapshots}),
            "message": views.baseline_message(task, start, session.id, session.seq + 1),
            "trailer": f"{session.id}/{session.seq + 1}",
        },
    )
    return (publish, git)


def _wrong(session: Session, checks: Verification) -> Step:
    failed = checks.first_failure
    what = f"{failed.name}: {failed.detail}" if failed else "no check ran"
    return _impossible(
        session, f"the start kernel computes wrong results ({what}); give one that is right"
    )


def _impossible(session: Session, reason: str) -> Step:
    return Step(Outcome.IMPOSSIBLE, session.work, {"reason": reason}, reason=reason)
