"""IMPLEMENT: the edit is linted and compiled; five attempts per idea.

Builds live in a content-addressed cache, so running this state again costs nothing.
"""

from __future__ import annotations

from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.domain.work import Verdict
from croq_fsm.errors import CompileFailed, EnvironmentMissing
from croq_fsm.ports import Ports
from states import _bases, _failing, _publishing

_OUTCOMES = (Outcome.ATTEMPT_FAILED, Outcome.ABANDONED)


def run(session: Session, ports: Ports) -> Step:
    """Build the candidate in hand."""
    candidate = session.work.candidate
    if candidate is None:
        raise LookupError("IMPLEMENT without a candidate")
    problems = ports.workbench.lint(candidate, session.task)
    if problems:
        failure = (Decision.COMPILE_FAIL, "refused before compiling: " + "; ".join(problems), "")
        return _failing.failed(session, ports, failure, _OUTCOMES)
    try:
        build = ports.workbench.build(candidate, session.task)
    except CompileFailed as exc:
        failure = (Decision.COMPILE_FAIL, str(exc), exc.log)
        return _failing.failed(session, ports, failure, _OUTCOMES)
    except EnvironmentMissing as exc:
        return Step(Outcome.ENVIRONMENT_BROKEN, session.work, {"reason": str(exc)}, reason=str(exc))
    if _same_code(session, ports, build):
        return _no_change(session, build)
    return _built(session, ports, candidate, build)


def _same_code(session: Session, ports: Ports, build: Build) -> bool:
    """Whether the machine code equals the base's: there is nothing to measure then."""
    base = _bases.base_of(session, ports)
    return base.build is not None and base.build.device_code == build.device_code


def _no_change(session: Session, build: Build) -> Step:
    verdict = Verdict(
        decision=Decision.DISCARD,
        reason="the compiler emits the same machine code as for the base; nothing to measure",
    )
    work = session.work.model_copy(update={"build": build, "verdict": verdict})
    return Step(Outcome.ABANDONED, work, {"reason": verdict.reason})


def _built(session: Session, ports: Ports, candidate: Candidate, build: Build) -> Step:
    return Step(
        outcome=Outcome.BUILT,
        work=session.work.model_copy(update={"build": build, "candidate": candidate}),
        detail={
            "key": build.key,
            "seconds": build.seconds,
            "cached": build.cached,
            "remarks": list(build.remarks[:10]),
            "resources": build.resources,
        },
        records=(_publishing.build_record(ports, session.work.round, build),),
    )
