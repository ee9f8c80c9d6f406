"""Active bases and the context that ideators see."""

from __future__ import annotations

from croq_fsm.domain import escalation, guards
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.records import Iteration, Round
from croq_fsm.domain.session import Session
from croq_fsm.domain.source import difference, sha256
from croq_fsm.domain.states import Category
from croq_fsm.ideators.contract import Base, Context, Past
from croq_fsm.ports import Ports

_HISTORY = 60
_HINTS = 5
#: A second base is worth keeping only while it is within this factor of the best.
_SECOND_BASE_WITHIN = 1.25


def active(session: Session, ports: Ports) -> list[Iteration]:
    """At most two structurally distinct kernels, the best first."""
    if session.best_iteration is None:
        raise LookupError(f"session {session.id} has no measured kernel yet")
    best = ports.history.iteration(session.best_iteration)
    other = ports.history.fastest_other(best.structure)
    near = other is not None and other.seconds <= best.seconds * _SECOND_BASE_WITHIN
    return [best, other] if other is not None and near else [best]


def base_of(session: Session, ports: Ports) -> Iteration:
    """The base of the round in hand."""
    if session.work.base is None:
        raise LookupError("the round in hand has no base")
    return ports.history.iteration(session.work.base)


def profile_of(session: Session, ports: Ports) -> Profile | None:
    """The profile that the round in hand rests on."""
    taken = ports.history.last_profile(session.work.round)
    return None if taken is None else taken[0]


def context(session: Session, ports: Ports, refused: tuple[str, ...] = ()) -> Context:
    """All that an ideator may know about the round in hand."""
    base = base_of(session, ports)
    profile = profile_of(session, ports)
    if profile is None:
        raise LookupError(f"round {session.work.round} has no profile")
    rounds = ports.history.recent_rounds(_HISTORY)
    library = ports.history.iteration(0)
    level = max(escalation.level(session.streak), session.work.exhausted)
    return Context(
        task=session.task,
        device=session.device,
        base=_as_base(ports, base),
        others=tuple(
            _as_base(ports, it) for it in active(session, ports) if it.number != base.number
        ),
        profile=profile,
        library_seconds=library.seconds,
        noise=session.noise or 0.0,
        history=tuple(_as_past(r) for r in rounds),
        must_be_structural=session.macro_run >= ports.config.limits.macro_run,
        # Once ideas run out, a category that was set aside is better than the end.
        avoid_category=(
            _avoid(rounds)
            if level >= escalation.FULL_PROFILE and not session.work.exhausted
            else None
        ),
        escalation=level,
        hints=tuple(ports.history.hints(_HINTS)),
        dialect=session.dialect,
        is_new=lambda candidate: _is_new(ports, base, candidate),
        lint=lambda candidate: ports.workbench.lint(candidate, session.task),
        rng_seed=int(sha256(f"{session.seed}/{session.work.round}/{len(refused)}")[:12], 16),
        refused=refused,
        round=session.work.round,
        diff_of=lambda number: _diff_of(ports, rounds, number),
    )


def _diff_of(ports: Ports, rounds: list[Round], number: int) -> str:
    """What a round changed of its base, timed or not; "" for a round that is too long ago."""
    record = next((r for r in rounds if r.round == number), None)
    if record is None:
        return ""
    base = ports.history.iteration(record.base).candidate
    if record.iteration is not None:
        tried = ports.history.iteration(record.iteration).candidate
    else:
        attempts = ports.history.attempts_of_round(number)
        tried = attempts[-1][0].candidate if attempts else None
    return "" if base is None or tried is None else difference(base.source, tried.source)


def _is_new(ports: Ports, base: Iteration, candidate: Candidate) -> bool:
    if ports.history.is_tried(guards.identity(candidate)):
        return False
    if base.candidate is None:
        return True
    return not ports.history.has_fingerprint(guards.fingerprint(candidate, base.candidate))


def _as_base(ports: Ports, it: Iteration) -> Base:
    if it.candidate is None or it.build is None:
        raise LookupError(f"{it.name} has no source and cannot be a base")
    _, generated = ports.history.build_texts(it.build.key)
    return Base(
        iteration=it.number,
        name=it.name,
        candidate=it.candidate,
        seconds=it.seconds,
        structure=it.structure,
        generated=generated,
        resources=it.build.resources,
        remarks=it.build.remarks,
    )


def _as_past(record: Round) -> Past:
    return Past(
        round=record.round,
        base=record.base,
        tag=record.tag,
        summary=record.summary,
        category=record.category,
        levers=record.levers,
        macro_only=record.macro_only,
        decision=record.decision,
        ratio=record.ratio,
        reason=record.reason,
    )


def _avoid(rounds: list[Round]) -> Category | None:
    """Category of the latest rounds when they all share it: a stall asks for another one."""
    latest = rounds[-escalation.LADDER[1][0] :]
    kinds = {r.category for r in latest}
    return kinds.pop() if len(kinds) == 1 else None
