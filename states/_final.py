"""The last measurement of a session: best, start kernel and library together, in each regime.

Gains of single rounds were measured in different hours against different bests; their product is
no measurement. What a session came to is what its best kernel is worth at the end, in one fresh
window with the kernel that it began with and with the library. It is taken in the step that ends
the session and stored with it, so that a crash in it means that the step is begun again.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from croq_fsm import faults
from croq_fsm.domain.measurement import Samples
from croq_fsm.domain.records import Iteration, Measured, Record
from croq_fsm.domain.session import Session
from croq_fsm.errors import CandidateError, Contended, EnvironmentMissing
from croq_fsm.measure import sets, stats
from croq_fsm.ports import Ports
from croq_fsm.toolchain.workbench import Contestant, Regime, TimingPlan

#: Device time of a block in sustained running, seconds, and its most launches.
_SUSTAINED_S: Final = 0.7
_SUSTAINED_LAUNCHES: Final = 100_000
_FEWEST_PAIRS: Final = 3
#: Share of ``measure.final_pairs`` that a regime gets: its blocks are longer, or vary less.
_SHARE: Final[dict[Regime, float]] = {"isolated": 1.0, "burst": 0.5, "sustained": 0.25}


@dataclass
class Last:
    """What was measured at the end.

    Attributes:
        records: To be stored with the step.
        ratios: Regime → contestant → its time over the best kernel's.
        skipped: Regime → why it was not measured.
    """

    records: list[Record] = field(default_factory=list)
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def detail(self) -> dict[str, Any]:
        """For the transition."""
        return {"final": self.ratios, "final_skipped": self.skipped}


def take(session: Session, ports: Ports, best: Iteration | None) -> Last:
    """Measure in each regime, as long as that is possible; what is not is named.

    Raises:
        DeviceWedged, Drained: The step is begun again when the session is resumed.
    """
    found = Last()
    regimes = ports.workbench.regimes
    why = _impossible(session, ports, best)
    contestants: dict[str, Contestant] = {}
    if best is not None and not why:
        try:
            contestants = _contestants(session, ports, best)
        except (CandidateError, EnvironmentMissing) as exc:
            why = f"cannot be built again: {exc}"
    began = ports.clock.now()
    for regime in regimes:
        spent = ports.clock.now() - began
        if not why and spent > ports.config.measure.final_s:
            why = f"the time for it (measure.final_s) was used up after {spent:.0f} s"
        if why or best is None:
            found.skipped[regime] = why
            continue
        faults.point("in_final")
        _measure(found, session, ports, (best, contestants), regime)
    return found


def _impossible(session: Session, ports: Ports, best: Iteration | None) -> str:
    """Why nothing can be measured, or nothing shall be."""
    if ports.config.measure.final_pairs == 0:
        return "turned off (measure.final_pairs = 0)"
    if best is None or best.candidate is None:
        return "there is no kernel to measure"
    limit = ports.config.limits.resumes_per_step
    if session.begins >= limit > 1:
        # The end of a session is worth more than its last measurement.
        return f"it was begun {session.begins - 1} times without coming to its end"
    return ""


def _contestants(session: Session, ports: Ports, best: Iteration) -> dict[str, Contestant]:
    """The best is the ``candidate``; iter001 is left out when it is the best itself."""
    start = ports.history.iteration(1)
    if best.candidate is None or start.candidate is None:
        raise LookupError("a measured kernel without a source")
    found: dict[str, Contestant] = {
        "candidate": ports.workbench.build(best.candidate, session.task)
    }
    if best.number != start.number:
        found["start"] = ports.workbench.build(start.candidate, session.task)
    return found if session.task.own_host else found | {"library": "library"}


def _measure(
    found: Last,
    session: Session,
    ports: Ports,
    what: tuple[Iteration, dict[str, Contestant]],
    regime: Regime,
) -> None:
    best, contestants = what
    plan = _plan(session, ports, regime)
    # Long blocks say enough in one set of processes, and heat up a device only once there.
    per_process = plan.pairs if regime == "sustained" else ports.config.measure.pairs_per_process
    try:
        samples = sets.timed(ports.workbench, contestants, session.task, plan, per_process)
    except (CandidateError, EnvironmentMissing, Contended) as exc:
        found.skipped[regime] = str(exc)
        return
    environment = {"best": best.name, "regime": regime}
    round_ = session.work.round or session.round
    found.records.append(Measured(round_, "final", samples=samples, environment=environment))
    found.ratios[regime] = _ratios(samples, session.seed)


def _plan(session: Session, ports: Ports, regime: Regime) -> TimingPlan:
    settings = ports.config.measure
    pairs = max(_FEWEST_PAIRS, round(settings.final_pairs * _SHARE[regime]))
    seed = session.seed + 1000 * session.round + 501
    plan = replace(sets.plan(settings, "final", pairs, seed), regime=regime)
    if regime != "sustained":
        return plan
    return replace(plan, block_s=_SUSTAINED_S, max_launches=_SUSTAINED_LAUNCHES)


def _ratios(samples: Samples, seed: int) -> dict[str, float]:
    others = {b.contestant for b in samples.blocks} - {"candidate"}
    return {name: stats.estimate(samples, name, "candidate", seed).ratio for name in sorted(others)}
