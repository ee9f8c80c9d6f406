"""Do the champions still stand? Built, verified and timed again; nothing is written.

The comparison is the ratio to the library, taken in one window like the recorded one: absolute
times of two days say more about clocks and neighbours than about a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from croq_fsm.config import Config
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.measurement import Estimate, Samples
from croq_fsm.domain.model import Value
from croq_fsm.domain.records import Iteration
from croq_fsm.domain.session import Session
from croq_fsm.errors import CandidateError
from croq_fsm.measure import sets, stats
from croq_fsm.storage.reading import Reader
from croq_fsm.toolchain.workbench import Contestant, TimingPlan, Workbench
from croq_fsm.validation.problems import Problem

Verdict = Literal["pass", "wrong", "slower", "other toolchain", "other device"]

#: Loss against the recorded ratio that is never called slower, whatever the noise.
_LEAST_LOSS: Final = 0.05
_NOISE_FACTOR: Final = 3.0

_CURES: Final[dict[Verdict, str]] = {
    "wrong": "do not use this kernel; look at what changed since (driver, compiler, memory), and "
    "set its session aside with 'croq-fsm clean --invalid-only' if nothing did",
    "slower": "measure again on a quiet machine; if it stays, compare clocks and drivers with "
    "those of the record",
    "other toolchain": "its record stays true for the old toolchain; start a session with the new",
    "other device": "measure it again on a device of the recorded kind",
}


@dataclass(frozen=True)
class Champion:
    """The best kernel of a session.

    Attributes:
        session: Its session.
        config: Configuration of the session.
        iteration: The kernel.
        candidate: Its source.
        build: Its build as recorded.
    """

    session: Session
    config: Config
    iteration: Iteration
    candidate: Candidate
    build: Build

    @property
    def recorded_ratio(self) -> float | None:
        """Library time over its time, as recorded; above 1 is faster than the library."""
        library_s = self.iteration.library_seconds or self.session.library_seconds
        return None if library_s is None else library_s / self.iteration.seconds


class Remeasured(Value):
    """What came of one champion.

    Attributes:
        session: Its session.
        kernel: Its name.
        verdict: In a word or two.
        text: Figures and reasons.
    """

    session: str
    kernel: str
    verdict: Verdict
    text: str

    def problem(self, dsl: str) -> Problem | None:
        """A finding for the report; None for a champion that stands."""
        if self.verdict == "pass":
            return None
        found = Problem(
            kind=f"champion-{self.verdict.replace(' ', '-')}",
            dsl=dsl,
            session=self.session,
            where=self.kernel,
            text=self.text,
            cure=_CURES[self.verdict],
        )
        return found.as_warning() if self.verdict.startswith("other") else found


def champion(reader: Reader, session: Session) -> Champion | None:
    """The best kernel of a session; None before there is one."""
    if session.best_iteration is None:
        return None
    found = reader.iteration(session.id, session.best_iteration)
    if found.candidate is None or found.build is None:
        return None
    config = Config.model_validate(reader.config(session.id))
    return Champion(session, config, found, found.candidate, found.build)


def remeasure(subject: Champion, workbench: Workbench) -> Remeasured:
    """Build, verify and time one champion.

    Raises:
        Contended, DeviceWedged, Drained, EnvironmentMissing: Nothing can be said now.
    """
    device = workbench.device()
    if device.key != subject.session.device.key:
        text = f"measured on {subject.session.device.key}, this machine has {device.key}"
        return _said(subject, "other device", text)
    task = subject.session.task
    try:
        build = workbench.build(subject.candidate, task)
        other = _changes(subject.build, build)
        # Those of the round in which it was made, so that the inputs are the same.
        count = subject.config.measure.verify_seeds
        seeds = subject.session.verify_seeds(subject.iteration.round, count)
        checks = workbench.verify(build, task, seeds)
        failed = checks.first_failure
        if not checks.passed:
            text = f"{failed.name}: {failed.detail}" if failed else "no check was made"
            return _said(subject, "wrong", f"{text}{other and f' ({other})'}")
        return _timed(subject, _samples(subject, workbench, build), other)
    except CandidateError as exc:
        return _said(subject, "wrong", str(exc))


def _samples(subject: Champion, workbench: Workbench, build: Build) -> Samples:
    settings = subject.config.measure
    against: dict[str, Contestant] = {"candidate": build, "library": "library"}
    plan = TimingPlan(
        purpose="final",
        pairs=settings.pairs,
        block_s=settings.block_s,
        max_launches=settings.max_launches,
        warmup_s=settings.warmup_s,
        regime=settings.regime,
        l2=settings.l2,
        seed=subject.session.seed,
    )
    return sets.timed(
        workbench,
        {"candidate": build} if subject.session.task.own_host else against,
        subject.session.task,
        plan,
        settings.pairs_per_process,
    )


def _timed(subject: Champion, samples: Samples, other: str) -> Remeasured:
    if subject.session.task.own_host:
        return _own_time(subject, samples, other)
    found = stats.estimate(samples, "library", "candidate", seed=subject.session.seed)
    recorded = subject.recorded_ratio
    text = (
        f"{found.ratio:.3f}x library now [{found.low:.3f}, {found.high:.3f}], "
        f"{'unknown' if recorded is None else f'{recorded:.3f}x'} recorded"
    )
    if other:
        return _said(subject, "other toolchain", f"{text}; it is right; {other}")
    if recorded is not None and is_slower(found, recorded, subject.session.noise or 0.0):
        return _said(subject, "slower", text)
    return _said(subject, "pass", text)


def _own_time(subject: Champion, samples: Samples, other: str) -> Remeasured:
    """There is no library that could be a ruler: its own check passed, its time is told."""
    now = stats.block_seconds(samples, "candidate")
    text = (
        f"its own check passed; {now * 1e6:.4g} us a call now, "
        f"{subject.iteration.seconds * 1e6:.4g} us recorded, both self-reported"
    )
    if other:
        return _said(subject, "other toolchain", f"{text}; {other}")
    return _said(subject, "pass", text)


def is_slower(found: Estimate, recorded: float, noise: float) -> bool:
    """Whether the whole interval lies below the record by more than noise explains."""
    return found.high < recorded * (1.0 - max(_LEAST_LOSS, _NOISE_FACTOR * noise))


def _changes(was: Build, now: Build) -> str:
    """How the toolchain differs, in words; "" when the same program came out or the same tools."""
    if was.binary_sha256 == now.binary_sha256:
        return ""
    names = sorted({*was.compilers, *now.compilers})
    changed = [
        f"{name} was {was.compilers.get(name, 'absent')}, is {now.compilers.get(name, 'absent')}"
        for name in names
        if was.compilers.get(name) != now.compilers.get(name)
    ]
    return "; ".join(changed)


def _said(subject: Champion, verdict: Verdict, text: str) -> Remeasured:
    return Remeasured(
        session=subject.session.id, kernel=subject.iteration.name, verdict=verdict, text=text
    )
