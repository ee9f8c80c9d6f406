"""STORE: the round becomes history; files and the commit of a KEEP follow the transition."""

from __future__ import annotations

from croq_fsm.domain import names
from croq_fsm.domain.measurement import Samples
from croq_fsm.domain.records import Attempt, Effect, Iteration, Record, Round, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.domain.work import Idea, Verdict, Work
from croq_fsm.ports import Ports
from croq_fsm.storage import views
from states import _final, _publishing, _stopping

_RECENT = 10

Attempts = list[tuple[Attempt, int]]


def run(session: Session, ports: Ports) -> Step:
    """Write the round and look whether it was the last one."""
    idea, verdict = session.work.idea, session.work.verdict
    if idea is None or verdict is None:
        raise LookupError("STORE without an idea or a verdict")
    iteration = _iteration(session, ports, idea, verdict)
    attempts = ports.history.attempts_of_round(session.work.round)
    record = _round(session, ports, (idea, verdict), iteration, attempts)
    records: tuple[Record, ...] = (record,) if iteration is None else (iteration, record)
    reason = _stopping.reason(session, ports, record)
    effects = _effects(session, ports, idea, (record, iteration), attempts)
    final = _final.Last()
    if reason is not None:
        final = _final.take(session, ports, _best(session, ports, record, iteration))
    return Step(
        outcome=Outcome.STORED if reason is None else Outcome.FINISHED,
        work=session.work if reason else Work(round=0, backend=session.work.backend),
        detail={
            "round": record.round,
            "kernel": record.kernel,
            "decision": record.decision.name,
            "tflops": record.tflops,
            "reason": record.reason,
            "stop": reason,
            **(final.detail if reason is not None else {}),
        },
        records=(*records, *final.records),
        effects=effects,
        reason=reason or "",
    )


def _iteration(session: Session, ports: Ports, idea: Idea, verdict: Verdict) -> Iteration | None:
    """A timed candidate owns the planned number; anything else owns none."""
    work = session.work
    if not verdict.decision.is_measured or verdict.seconds is None:
        return None
    if work.candidate is None or work.build is None:
        raise LookupError("a timed round without a candidate or a build")
    tag = work.proposal.tag if work.proposal else idea.proposal.tag
    return Iteration(
        number=session.next_iteration,
        name=names.iter_name(session.next_iteration, tag),
        round=work.round,
        decision=verdict.decision,
        candidate=work.candidate,
        build=work.build,
        structure=ports.workbench.structure(work.candidate),
        seconds=verdict.seconds,
        library_seconds=verdict.library_seconds,
        estimate=verdict.estimate,
        measurement=work.samples[-1],
        self_reported=session.task.own_host,
    )


def _round(
    session: Session,
    ports: Ports,
    outcome: tuple[Idea, Verdict],
    iteration: Iteration | None,
    attempts: Attempts,
) -> Round:
    idea, verdict = outcome
    work, proposal = session.work, session.work.proposal or idea.proposal
    now = int(ports.clock.now() * 1e6)
    began = ports.history.round_began_at(work.round) or now
    name = iteration.name if iteration else _failed_name(session, idea, attempts)
    return Round(
        round=work.round,
        iteration=iteration.number if iteration else None,
        kernel=name,
        base=proposal.base,
        decision=verdict.decision,
        seconds=iteration.seconds if iteration else None,
        tflops=session.task.tflops(iteration.seconds) if iteration else None,
        ratio=verdict.estimate.ratio if verdict.estimate and iteration else None,
        bottleneck=idea.bottleneck,
        category=proposal.category,
        macro_only=idea.macro_only,
        summary=proposal.summary,
        hypothesis=proposal.hypothesis,
        expected_gain=proposal.expected_gain,
        levers=proposal.levers,
        tag=proposal.tag,
        attempts=len(attempts),
        reason=verdict.reason,
        ideator=idea.ideator,
        stored_at=now,
        wall_s=(now - began) / 1e6,
    )


def _failed_name(session: Session, idea: Idea, attempts: Attempts) -> str:
    """Name of the last attempt; an idea without machine code of its own has none and no number."""
    if attempts:
        return attempts[-1][0].name
    return f"round{session.work.round:03d}_{idea.proposal.tag}"


def _effects(
    session: Session,
    ports: Ports,
    idea: Idea,
    stored: tuple[Round, Iteration | None],
    attempts: Attempts,
) -> tuple[Effect, ...]:
    record, iteration = stored
    artifacts = [
        *_publishing.attempt_artifacts(ports, attempts),
        *_publishing.profile_artifacts(ports, record.round),
    ]
    if iteration is not None:
        samples = _samples(ports, iteration)
        artifacts += _publishing.iteration_artifacts(session, ports, iteration, samples)
    lines = views.round_lines(ports.layout, record, attempts)
    snapshots = views.snapshot_files(
        ports.layout, session.task, _snapshot(session, ports, idea, stored)
    )
    publish = _publishing.publish(session, artifacts, lines, snapshots)
    if record.decision is not Decision.KEEP or not ports.config.git.commit:
        return (publish,)
    mine = [a["path"] for a in artifacts if a["kind"] != "binary"]
    # Rounds that were discarded since the last KEEP ride along.
    since = record.round - session.streak
    paths = {*mine, *lines, *snapshots, *ports.history.artifact_paths(since)}
    git = Effect(
        "git",
        {
            "paths": sorted(paths | _logs(ports)),
            "message": views.keep_message(session.task, record, session.id, session.seq + 1),
            "trailer": f"{session.id}/{session.seq + 1}",
        },
    )
    return (publish, git)


def _logs(ports: Ports) -> set[str]:
    """Logs that earlier rounds may have grown without a commit."""
    return {ports.layout.log("attempt-log.jsonl")}


def _samples(ports: Ports, iteration: Iteration) -> Samples | None:
    stored = ports.history.measurements([iteration.measurement])
    return next((m.samples for m in stored if m.samples is not None), None)


def _best(session: Session, ports: Ports, record: Round, iteration: Iteration | None) -> Iteration:
    """The best kernel once this round is stored."""
    if record.decision is Decision.KEEP and iteration is not None:
        return iteration
    return ports.history.iteration(session.best_iteration or 1)


def _snapshot(
    session: Session, ports: Ports, idea: Idea, stored: tuple[Round, Iteration | None]
) -> views.Snapshot:
    record, iteration = stored
    kept = record.decision is Decision.KEEP
    counts = dict(session.counts)
    counts[record.decision] = counts.get(record.decision, 0) + 1
    return views.Snapshot(
        session_id=session.id,
        library=ports.history.iteration(0),
        best=_best(session, ports, record, iteration),
        round=record.round,
        streak=0 if kept else session.streak + 1,
        counts=counts,
        recent=(*ports.history.recent_rounds(_RECENT - 1), record),
        idea=idea,
        at=record.stored_at,
    )
