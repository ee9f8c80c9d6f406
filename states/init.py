"""INIT: the environment is validated and the device is known, or the session cannot be."""

from __future__ import annotations

from croq_fsm.domain.device import Finding
from croq_fsm.domain.records import Facts, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Outcome
from croq_fsm.errors import EnvironmentMissing, UsageError
from croq_fsm.ports import Ports

#: Findings about the profiler, by name.
_PROFILER = frozenset({"ncu", "counters"})


def run(session: Session, ports: Ports) -> Step:
    """Check tools, device and task; nothing is built yet."""
    findings = ports.workbench.doctor()
    missing = [f for f in findings if f.required and not f.ok and _is_needed(f, ports)]
    if missing:
        lines = [f"{f.name}: forbids {f.forbids}; {f.cure}" for f in missing]
        return _invalid(session, "the environment is incomplete: " + " | ".join(lines))
    try:
        ports.workbench.supports(session.task)
        device = ports.workbench.device()
    except (EnvironmentMissing, UsageError) as exc:
        return _invalid(session, str(exc))
    return Step(
        outcome=Outcome.READY,
        work=session.work,
        detail={"device": device.key, "findings": {f.name: f.found for f in findings if f.ok}},
        records=(Facts(device=device, dialect=ports.workbench.dialect()),),
    )


def _is_needed(finding: Finding, ports: Ports) -> bool:
    """The degraded mode works without a profiler; that is what it is for."""
    degraded = ports.config.profiling.when_unavailable == "degrade"
    return not (degraded and finding.name in _PROFILER)


def _invalid(session: Session, reason: str) -> Step:
    return Step(Outcome.INVALID, session.work, {"reason": reason}, reason=reason)
