"""``checkpoint`` and ``next-iter``: what is planned, and whether what was built is that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from croq_fsm.daemon import Daemon
from croq_fsm.domain import guards, names, source
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Category, State
from croq_fsm.domain.task import SUFFIXES
from croq_fsm.errors import UsageError
from croq_fsm.root import Root
from croq_fsm.storage.layout import Layout
from croq_fsm.storage.reading import Reader
from croq_fsm.tools import plans
from croq_fsm.tools.answers import Answer, claims
from croq_fsm.tools.places import Key, session_of
from croq_fsm.tools.plans import Plan

DRIFT: Final = 3
_ABSENT: Final = 2


@dataclass(frozen=True)
class Wanted:
    """Arguments of ``checkpoint write``."""

    iter: str
    bottleneck: str
    idea: str
    expected_gain: str | None = None
    levers: str = ""
    hypothesis: str = ""
    metrics: str = ""
    category: str | None = None
    research: str = ""
    base: int | None = None


def write(daemon: Daemon, key: Key, wanted: Wanted) -> Answer:
    """Keep the plan of the round in hand; the class and the number are the engine's.

    Raises:
        UsageError: There is no profile in this round, or an idea is in hand already.
    """
    number, tag = plans.tag_of(wanted.iter)
    with daemon.repository.read() as reader:
        session = session_of(reader, key)
        _check_turn(session)
        taken = reader.last_profile(session.id, session.work.round)
        best = reader.iteration(session.id, session.best_iteration or 1)
    if taken is None:
        raise UsageError("no profile was taken in this round; call 'tool ncu-profile' first")
    profile = taken[0]
    metrics = _split(wanted.metrics)
    why, metrics, warnings = plans.grounded(wanted.idea, wanted.hypothesis, metrics, profile)
    gain, doubts = plans.gain_of(wanted.expected_gain, session.task.tflops(best.seconds))
    plan = Plan(
        round=session.work.round,
        tag=tag,
        base=session.work.base or 1 if wanted.base is None else wanted.base,
        idea=wanted.idea,
        hypothesis=why,
        metrics=metrics,
        category=_category(wanted.category),
        expected_gain=gain,
        levers=_split(wanted.levers),
        research_basis=wanted.research,
    )
    at = int(daemon.clock.now() * 1e6)
    plans.keep(daemon.repository, session, plans.PLAN, plan.model_dump_json(), at)
    own = {"bottleneck": str(profile.bottleneck), "iter": f"iter{session.next_iteration:03d}"}
    said: dict[str, object] = {"bottleneck": wanted.bottleneck, "iter": f"iter{number:03d}"}
    values = {**_shown(plan, session), "bottleneck": str(profile.bottleneck), "status": "PLANNED"}
    return Answer(values, warnings=[*claims(said, dict(own)), *warnings, *doubts])


def read(reader: Reader, key: Key, plan: Plan | None) -> Answer:
    """The plan, and how far it has come. Exit code 2 without one."""
    session = session_of(reader, key)
    if plan is None:
        return Answer({"status": "NONE", "session": session.id}, code=_ABSENT)
    stage = {State.IDEATE: "PLANNED", State.IMPLEMENT: "IMPLEMENTING", State.MEASURE: "BUILT"}
    status = stage.get(session.state, "MEASURED")
    return Answer({**_shown(plan, session), "status": status, "session": session.id})


def verify(reader: Reader, root: Root, key: Key, plan: Plan | None, name: str) -> Answer:
    """Compare plan, build and the source on the disk. Exit code 3 when they differ."""
    session = session_of(reader, key)
    if plan is None or session.work.idea is None:
        return Answer({"status": "NONE", "session": session.id}, code=_ABSENT)
    drift = [*_name_drift(session, name), *_build_drift(session, root)]
    drift += _lever_drift(reader, session, plan)
    values = {
        "iter": session.work.idea.name,
        "status": "DRIFTED" if drift else "VERIFIED",
        "drift_score": len(drift),
        "drift": drift,
        "source_sha256": source.sha256(session.work.candidate.source)
        if session.work.candidate
        else None,
        "binary_sha256": session.work.build.binary_sha256 if session.work.build else None,
    }
    return Answer(values, code=DRIFT if drift else 0)


def next_iter(reader: Reader, key: Key, tag: str, *, attempt: bool) -> Answer:
    """The next name, as the session will give it; nothing is reserved by asking."""
    session = session_of(reader, key)
    try:
        if attempt:
            return Answer(plain=names.attempt_name(session.next_attempt, tag))
        return Answer(plain=names.iter_name(session.next_iteration, tag))
    except ValueError as exc:
        raise UsageError(str(exc)) from exc


def _check_turn(session: Session) -> None:
    if session.state is State.IDEATE:
        return
    if session.state is State.PROFILE:
        raise UsageError("profile the base first: 'tool ncu-profile'; an idea answers a profile")
    raise UsageError(
        f"session {session.id} is at {session.state}; one idea at a time, store this round first"
    )


def _category(word: str | None) -> Category:
    if word is None:
        return Category.MISC
    for category in Category:
        if str(category) == word.lower():
            return category
    raise UsageError(f"--category must be one of: {', '.join(map(str, Category))}")


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _shown(plan: Plan, session: Session) -> dict[str, Any]:
    idea = session.work.idea
    return {
        "schema": "croq-checkpoint-v1",
        "dsl": session.task.dsl,
        "shape_key": session.task.shape_key,
        "iter": idea.name if idea else names.iter_name(session.next_iteration, plan.tag),
        "base": f"iter{plan.base:03d}",
        "idea": plan.idea,
        "hypothesis": plan.hypothesis,
        "metrics": list(plan.metrics),
        "category": str(plan.category),
        "expected_gain": f"{plan.expected_gain:+.1%}",
        "levers": list(plan.levers),
        "round": plan.round,
    }


def _name_drift(session: Session, name: str) -> list[str]:
    planned = session.work.idea.name if session.work.idea else ""
    short = planned.partition("_")[0]
    return [] if name in (planned, short) else [f"{name} was built, {planned} was planned"]


def _build_drift(session: Session, root: Root) -> list[str]:
    """What is built is what the record says, and what lies on the disk."""
    work = session.work
    if work.candidate is None or work.build is None or work.idea is None:
        return ["nothing was built"]
    found = []
    if guards.identity(work.candidate) != work.candidate_hash:
        found.append("the candidate is not the one that was planned")
    layout = Layout(session.device.key, session.task, "")
    relative = layout.source(work.idea.name, SUFFIXES[session.task.dsl])
    try:
        text = (root.path / relative).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return [*found, f"{relative} cannot be read"]
    now = Candidate(source=text, flags=work.candidate.flags, patches=work.candidate.patches)
    if guards.identity(now) != work.candidate_hash:
        found.append(f"{relative} was changed after it was built")
    return found


def _lever_drift(reader: Reader, session: Session, plan: Plan) -> list[str]:
    """Levers that are macros must have been moved, and no macro beside them."""
    work = session.work
    if work.candidate is None or not plan.levers:
        return []
    base = reader.iteration(session.id, plan.base).candidate
    before = source.macros(base.source) if base else {}
    after = source.macros(work.candidate.source)
    moved = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
    still = [lever for lever in plan.levers if lever in before and lever not in moved]
    beside = sorted(moved - set(plan.levers)) if set(plan.levers) & before.keys() else []
    return [
        *(f"lever {lever} was planned and is as in the base" for lever in still),
        *(f"{name} was changed and is no lever of the plan" for name in beside),
    ]
