"""``run-iter``: one measured kernel again, built, verified and timed as the machine is now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from croq_fsm.cli.place import ConfigOption, RootOption, place
from croq_fsm.errors import CandidateError, CroqError, UsageError

if TYPE_CHECKING:
    from croq_fsm.config import Config
    from croq_fsm.daemon import Daemon
    from croq_fsm.domain.build import Build, Candidate
    from croq_fsm.domain.measurement import Samples, Verification
    from croq_fsm.domain.records import Iteration
    from croq_fsm.domain.session import Session
    from croq_fsm.toolchain.workbench import Workbench


class WrongResult(CroqError):
    """The kernel does not build, fails, or computes something else than the reference."""


@dataclass(frozen=True)
class Subject:
    """What is to be run.

    Attributes:
        session: Its session.
        config: Configuration of that session.
        iteration: The stored iteration.
        candidate: Its source, flags and patches.
        build: Its stored build.
    """

    session: Session
    config: Config
    iteration: Iteration
    candidate: Candidate
    build: Build


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run-iter")(run_iter)


def run_iter(
    session: Annotated[str, typer.Argument(help="Session, or the beginning of its name")],
    iteration: Annotated[str, typer.Argument(metavar="ITER", help="4, iter004 or iter004_tag")],
    *,
    root: RootOption = None,
    config: ConfigOption = None,
) -> None:
    """Build a kernel from the database, verify its whole output and time it.

    Exit code 1 means that it is wrong; 3 that a daemon works here and would be disturbed.
    """
    from croq_fsm.daemon import opened

    number = _number(iteration)
    here = place(root, config)
    if not here.root.database.is_file():
        raise UsageError(f"no session in {here.root.path} yet; 'croq-fsm start' makes one")
    with opened(here.root, here.config) as daemon:
        subject = _subject(daemon, session, number)
        workbench = daemon.workbench(subject.session.task.dsl, subject.config)
        with daemon.lease(workbench):
            _run(workbench, subject)


def _number(text: str) -> int:
    from croq_fsm.domain.names import iter_number

    try:
        number = int(text) if text.isdigit() else iter_number(text)
    except ValueError as exc:
        raise UsageError(str(exc)) from exc
    if number == 0:
        raise UsageError("iter000 is the library; every other iteration is timed against it")
    return number


def _subject(daemon: Daemon, name: str, number: int) -> Subject:
    from croq_fsm.config import Config

    with daemon.repository.read() as reader:
        session = reader.session(name)
        config = Config.model_validate(reader.config(session.id))
        try:
            found = reader.iteration(session.id, number)
        except LookupError as exc:
            last = session.next_iteration - 1
            known = f"it has iter001 to iter{last:03d}" if last > 0 else "it has none yet"
            raise UsageError(f"session {session.id} has no iteration {number}; {known}") from exc
    if found.candidate is None or found.build is None:
        raise UsageError(f"{found.name} has no source of its own")
    return Subject(session, config, found, found.candidate, found.build)


def _run(workbench: Workbench, subject: Subject) -> None:
    typer.echo(f"{subject.iteration.name} of session {subject.session.id}")
    try:
        build = workbench.build(subject.candidate, subject.session.task)
        _show_build(subject, build)
        # Those of the round in which it was made, so that the inputs are the same.
        count = subject.config.measure.verify_seeds
        seeds = subject.session.verify_seeds(subject.iteration.round, count)
        checks = workbench.verify(build, subject.session.task, seeds)
        _show_checks(checks)
        if not checks.passed:
            raise WrongResult(f"{subject.iteration.name} computes wrong results")
        _show_times(subject, _time(workbench, subject, build))
    except CandidateError as exc:
        raise WrongResult(f"{subject.iteration.name} failed: {exc}\n{exc.log}".rstrip()) from exc


def _time(workbench: Workbench, subject: Subject, build: Build) -> Samples:
    from croq_fsm.toolchain.workbench import Contestant, TimingPlan

    settings = subject.config.measure
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
    against: dict[str, Contestant] = {"candidate": build, "library": "library"}
    if subject.session.task.own_host:
        del against["library"]
    return workbench.time(against, subject.session.task, plan)


def _show_build(subject: Subject, build: Build) -> None:
    """Another binary is no fault of the kernel, but its times are another program's."""
    if build.binary_sha256 == subject.build.binary_sha256:
        typer.echo("  build     same binary as recorded")
        return
    changed = {
        name: (was, build.compilers.get(name, "absent"))
        for name, was in subject.build.compilers.items()
        if build.compilers.get(name) != was
    }
    why = "; ".join(f"{name} was {was}, is {now}" for name, (was, now) in changed.items())
    typer.echo(f"  build     another binary than recorded ({why or 'same compilers'})")


def _show_checks(checks: Verification) -> None:
    passed = sum(check.passed for check in checks.checks)
    typer.echo(f"  verify    {passed} of {len(checks.checks)} checks of the whole output passed")
    for check in checks.checks:
        if check.skipped:
            typer.echo(f"            {check.name}: {check.skipped}")
        elif not check.passed:
            typer.echo(f"            {check.name} ({check.rung}): {check.detail}")


def _show_times(subject: Subject, samples: Samples) -> None:
    from croq_fsm.measure import stats
    from croq_fsm.report import words

    task = subject.session.task
    if task.own_host:
        for label, value in (
            ("now", stats.block_seconds(samples, "candidate")),
            ("recorded", subject.iteration.seconds),
        ):
            rate = words.rate(task.tflops(value), words.decimals(task.tflops(value)))
            typer.echo(f"  {label:<8}  {rate} TFLOPS  {words.call_time(value)} [self-reported]")
        return
    seconds = stats.block_seconds(samples, "candidate")
    library_s = stats.block_seconds(samples, "library")
    ratio = stats.estimate(samples, "library", "candidate", seed=subject.session.seed)
    places = words.decimals(task.tflops(library_s))
    mark = " SIMULATED" if task.simulated else ""
    for label, value in (
        ("now", seconds), ("recorded", subject.iteration.seconds), ("library", library_s),
    ):  # fmt: skip
        rate = words.rate(task.tflops(value), places)
        typer.echo(f"  {label:<8}  {rate} TFLOPS  {words.call_time(value)}{mark}")
    typer.echo(
        f"  ratio     {words.times(ratio.ratio)} library {words.interval(ratio)} "
        f"(99 % interval over {ratio.pairs} pairs; {samples.regime})"
    )
