"""Which of several start kernels becomes iter001: the fastest of those that are right."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.session import Session
from croq_fsm.domain.work import Start
from croq_fsm.errors import CandidateError, UsageError
from croq_fsm.measure import sets, stats
from croq_fsm.ports import Ports
from croq_fsm.toolchain.workbench import Contestant


def best(session: Session, ports: Ports) -> tuple[Session, dict[str, str]]:
    """The session with the best start kernel in hand, and what came of each.

    When none is right, the kernel that ships takes their place. A single one, named by the user,
    is left alone: BASELINE says what is wrong with it.
    """
    if not session.work.starts:
        return session, {}
    told: dict[str, str] = {}
    built: dict[str, tuple[Start, Build]] = {}
    for number, start in enumerate(session.work.starts):
        try:
            built[f"start{number}"] = (start, _right(session, ports, start.candidate))
        except CandidateError as exc:
            told[start.name] = f"refused: {exc}"
    seconds = _times(session, ports, {name: build for name, (_, build) in built.items()})
    for name, (start, _) in built.items():
        measured = name in seconds
        told[start.name] = f"{seconds[name] * 1e6:.2f} us a call" if measured else "not measured"
    if not seconds:
        return _fallen_back(session, ports, told)
    fastest = built[min(seconds, key=lambda name: seconds[name])][0]
    told["chosen"] = fastest.name
    return _holding(session, fastest.candidate), told


def _right(session: Session, ports: Ports, candidate: Candidate) -> Build:
    """Its build; CandidateError when it is refused, does not build, or computes wrong results."""
    problems = ports.workbench.lint(candidate, session.task)
    if problems:
        raise CandidateError("; ".join(problems))
    build = ports.workbench.build(candidate, session.task)
    seeds = tuple(session.seed + i for i in range(ports.config.measure.verify_seeds))
    checks = ports.workbench.verify(build, session.task, seeds)
    failed = checks.first_failure
    if not checks.passed:
        raise CandidateError(f"wrong results: {failed.detail if failed else 'no check ran'}")
    return build


def _times(session: Session, ports: Ports, builds: dict[str, Build]) -> dict[str, float]:
    """Seconds of a call, in one window; one by one when one of them brings the window down."""
    if not builds:
        return {}
    try:
        return _window(session, ports, builds)
    except CandidateError:
        if len(builds) == 1:
            return {}
    alone = [_times(session, ports, {name: build}) for name, build in builds.items()]
    return {name: seconds for found in alone for name, seconds in found.items()}


def _window(session: Session, ports: Ports, builds: dict[str, Build]) -> dict[str, float]:
    settings = ports.config.measure
    plan = sets.plan(settings, "screen", settings.screen_pairs, session.seed)
    contestants: dict[str, Contestant] = dict(builds)
    samples = sets.timed(
        ports.workbench, contestants, session.task, plan, settings.pairs_per_process
    )
    return {name: stats.block_seconds(samples, name) for name in builds}


def _fallen_back(
    session: Session, ports: Ports, told: dict[str, str]
) -> tuple[Session, dict[str, str]]:
    try:
        candidate = ports.workbench.start_kernel(session.task)
    except UsageError as exc:
        return _holding(session, session.work.starts[0].candidate), {**told, "shipped": str(exc)}
    return _holding(session, candidate), {**told, "chosen": "the kernel that ships"}


def _holding(session: Session, candidate: Candidate) -> Session:
    changed: dict[str, Any] = {"candidate": candidate, "starts": ()}
    return replace(session, work=session.work.model_copy(update=changed))
