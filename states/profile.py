"""PROFILE: the base of the round is chosen, profiled (cached by binary) and classified."""

from __future__ import annotations

from dataclasses import dataclass

from croq_fsm.domain import escalation, roofline
from croq_fsm.domain.build import Build
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.records import Iteration, ProfileTaken, Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome
from croq_fsm.domain.work import Work
from croq_fsm.errors import CandidateError, Contended, DeviceWedged, EnvironmentMissing
from croq_fsm.ports import Ports
from states import _bases, _waiting


def run(session: Session, ports: Ports) -> Step:
    """Profile an active base; the round begins here."""
    base = _choose_base(session, ports)
    if base.candidate is None:  # the library is never a base
        raise LookupError(f"iteration {base.number} has no source")
    try:
        build = ports.workbench.build(base.candidate, session.task)
        taken = _profile(session, ports, build)
    except EnvironmentMissing as exc:
        return _unavailable(session, ports, base, str(exc))
    except CandidateError as exc:
        return _unavailable(session, ports, base, f"{base.name} failed under the profiler: {exc}")
    except Contended as exc:
        return _waiting.back_off(session, ports, str(exc), Outcome.BUSY, Outcome.UNAVAILABLE)
    except DeviceWedged as exc:
        return Step(Outcome.WEDGED, session.work, {"reason": str(exc)}, reason=str(exc))
    return _step(session, base, taken, Outcome.CLASSIFIED)


def _choose_base(session: Session, ports: Ports) -> Iteration:
    """The best kernel; the other active base when the escalation asks for it, every other time."""
    best, *others = _bases.active(session, ports)
    level = escalation.level(session.streak)
    turn = session.streak % 2 == 0 or session.work.exhausted % 2 == 1
    if others and turn and (level >= escalation.OTHER_BASE or session.work.exhausted):
        return others[0]
    return best


@dataclass(frozen=True)
class _Taken:
    """A profile, its CSV, and whether it was known before."""

    profile: Profile
    csv: str = ""
    cached: bool = False


def _profile(session: Session, ports: Ports, build: Build) -> _Taken:
    full = _wants_full(session, ports)
    known = ports.history.profile(build.binary_sha256, full=full)
    if known is not None:
        return _Taken(*known, cached=True)
    profile = ports.workbench.profile(build, session.task, full=full)
    path = profile.files.get("csv")
    csv = ports.workbench.read(path).decode(errors="replace") if path else ""
    return _Taken(profile, csv)


def _wants_full(session: Session, ports: Ports) -> bool:
    """Full set on the first kernel, on a win and on a stall; otherwise as configured."""
    mode = ports.config.profiling.full_on
    if mode != "win":
        return mode == "always"
    last = ports.history.recent_rounds(1)
    won = not last or last[0].decision is Decision.KEEP
    return won or escalation.level(session.streak) >= escalation.FULL_PROFILE


def _unavailable(session: Session, ports: Ports, base: Iteration, why: str) -> Step:
    if ports.config.profiling.when_unavailable == "fail" or base.build is None:
        reason = (
            f"no profile can be taken: {why}. Mend that, or set profiling.when_unavailable = "
            '"degrade" to go on with timing alone'
        )
        return Step(Outcome.UNAVAILABLE, session.work, {"reason": reason}, reason=reason)
    profile = roofline.timing_profile(
        session.task, session.device, base.build.binary_sha256, base.seconds
    )
    return _step(session, base, _Taken(profile), Outcome.DEGRADED)


def _step(session: Session, base: Iteration, taken: _Taken, outcome: Outcome) -> Step:
    round_ = session.round + 1
    same_round = session.work.round == round_
    profile = taken.profile
    return Step(
        outcome=outcome,
        work=Work(
            round=round_,
            base=base.number,
            profile=profile.binary,
            exhausted=session.work.exhausted if same_round else 0,
        ),
        detail={
            "base": base.name,
            "bottleneck": str(profile.bottleneck),
            "confidence": profile.confidence,
            "evidence": list(profile.evidence),
            "tool": profile.tool,
            "cached": taken.cached,
        },
        records=(
            ProfileTaken(
                round=round_,
                iteration=base.number,
                profile=profile,
                csv=taken.csv,
                cached=taken.cached,
            ),
        ),
    )
