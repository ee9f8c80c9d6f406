"""Running kernels of unknown operators in their own host part, whatever the DSL.

A program is a process of its own each time it is asked for a number: it makes its inputs, checks,
times and prints, in the sandbox, without arguments and without any variable that could switch a
part of that off. Its numbers are self-reported; what they cannot say is named with the checks.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from croq_fsm.config import Config
from croq_fsm.domain import own_host
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.measurement import Block, Check, Samples, Verification
from croq_fsm.domain.task import Task
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateHung,
    CandidateRefused,
    CompileFailed,
    EnvironmentMissing,
    UsageError,
)
from croq_fsm.toolchain import own_host_output as output
from croq_fsm.toolchain.build_cache import checked_binary
from croq_fsm.toolchain.process import Command, Completed, Ending, Limits, Runner
from croq_fsm.toolchain.workbench import Contestant, TimingPlan

#: Rung of the ladder that a program's own check belongs to.
RUNG: Final = own_host.LABEL
#: How the times were taken, recorded with the samples.
METHOD: Final = "self-reported: the program's own timing, one fresh process for each number"
#: Fresh processes whose own check must pass before any time is taken.
_CHECKS: Final = 2
_NOT_RUN: Final = {
    "reference": "nobody but the program knows what is right",
    "own-inputs": "the program makes its inputs itself",
    "hidden-shapes": "the size is written in the program",
    "guard-bands": "the program allocates its memory itself",
    "static-rules": "they are made for kernels of known operators",
    "library": "there is no library for an unknown operator",
}
_LARGEST_FILE: Final = 64 << 20
_OUTPUT: Final = 1 << 20


class Maker(Protocol):
    """What a DSL adds: making a program out of a whole source."""

    @property
    def dsl(self) -> str:
        """Name of the DSL."""

    def flag_problems(self, candidate: Candidate) -> list[str]:
        """Flags that a candidate may not bring; each a sentence."""

    def build(self, candidate: Candidate, task: Task) -> Build:
        """Compile and link, or take it from the cache; raises like ``Workbench.build``."""


class OwnHost:
    """The part of a workbench that handles tasks with ``own_host``.

    Args:
        runner: Starts the programs.
        config: Deadlines.
        maker: Of the DSL.
        cache: Folder that the paths of a build are relative to.
        work: Folder for the programs' private folders.
        device: Whether the programs use a GPU.
        guarded: Held around all runs of one request; for the health of a device.
    """

    def __init__(
        self,
        runner: Runner,
        config: Config,
        maker: Maker,
        *,
        cache: Path,
        work: Path,
        device: bool,
        guarded: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._runner = runner
        self._config = config
        self._maker = maker
        self._cache = cache
        self._work = work
        self._device = device
        self._guarded = guarded

    def start_kernel(self, task: Task) -> Candidate:
        """None ships for what is unknown. Raises UsageError."""
        raise UsageError(
            f"no kernel ships for operator {task.operator!r}; name one with --kernel, with a main "
            "of its own"
        )

    def lint(self, candidate: Candidate, task: Task) -> list[str]:
        """See ``Workbench.lint``."""
        found = own_host.problems(candidate, self._maker.dsl, task.operator, task.host)
        return [*found, *self._maker.flag_problems(candidate)]

    def build(self, candidate: Candidate, task: Task) -> Build:
        """See ``Workbench.build``; ``Build.harness`` is the hash of the host part."""
        problems = self.lint(candidate, task)
        if problems:
            raise CompileFailed(problems[0], log="\n".join(problems))
        parts = own_host.split(candidate.source, self._maker.dsl, task.operator)
        build = self._maker.build(candidate, task)
        return build.model_copy(update={"harness": parts.host_hash})

    def verify(self, build: Build) -> Verification:
        """Its own check in fresh processes; what that leaves open is listed as not run."""
        checks: list[Check] = []
        with self._guarded():
            for number in range(1, _CHECKS + 1):
                checks.append(self._checked(build, number))
                if not checks[-1].passed:
                    return Verification(checks=tuple(checks))
        return Verification(checks=(*checks, *_not_run(_NOT_RUN)))

    def time(self, contestants: dict[str, Contestant], task: Task, plan: TimingPlan) -> Samples:
        """See ``Workbench.time``; each pair is a set of fresh processes of its own."""
        programs = {n: c for n, c in contestants.items() if isinstance(c, Build)}
        if len(programs) != len(contestants):
            raise EnvironmentMissing(f"there is no library for operator {task.operator}")
        rng = random.Random(plan.seed)  # noqa: S311 - order of runs, no secret
        blocks: list[Block] = []
        work: float | None = None
        with self._guarded():
            for pair in range(plan.pairs):
                for name in rng.sample(sorted(programs), len(programs)):
                    block, flops = self._block(name, programs[name], pair)
                    blocks.append(block)
                    work = work or flops
        return Samples(
            purpose=plan.purpose,
            regime="isolated (as the program times itself)",
            blocks=tuple(blocks),
            method=METHOD,
            self_reported=True,
            reported_flops=work,
            sandbox=self._runner.sandbox,
        )

    def sanitize(self) -> tuple[Check, ...]:
        """See ``Sanitizing.sanitize``."""
        why = {"sanitizer": "it would judge the host part as well"}
        return tuple(c.model_copy(update={"rung": "sanitizer"}) for c in _not_run(why))

    def _checked(self, build: Build, number: int) -> Check:
        """A check that did not pass is a wrong result; what cannot be read is refused."""
        name = f"own-check-{number}"
        done = self._run(build, "own check", self._config.deadlines.verify_s)
        try:
            passed = _passed(done)
        except CandidateRefused as exc:
            return Check(name=name, rung=RUNG, passed=False, detail=str(exc))
        _said(done)
        return Check(name=name, rung=RUNG, passed=True, detail=f"the program says {passed}")

    def _block(self, name: str, build: Build, pair: int) -> tuple[Block, float | None]:
        try:
            done = self._run(build, name, self._config.deadlines.block_s)
            said = _said(done)
        except CandidateRefused as exc:
            raise CandidateRefused(f"{name}: {exc}", log=exc.log) from exc
        block = Block(
            contestant=name,
            pair=pair,
            seconds=(said.seconds,),
            host_seconds=done.seconds,
            group=pair,
        )
        return block, said.flops

    def _run(self, build: Build, label: str, deadline_s: float) -> Completed:
        """One fresh process. Raises for a crash or a hang."""
        with self._folder() as folder:
            done = self._runner.run(
                Command(
                    argv=(str(checked_binary(self._cache, build)),),
                    cwd=folder,
                    deadline_s=deadline_s,
                    label=label,
                    output_cap=_OUTPUT,
                    limits=Limits(file_bytes=_LARGEST_FILE),
                    untrusted=True,
                    device=self._device,
                )
            )
        if done.ending is Ending.DEADLINE:
            text = f"{label}: the program did not end within {deadline_s:g} s"
            raise CandidateHung(text, log=done.output)
        if done.ending is Ending.SIGNALLED:
            signal = -(done.returncode or 0)
            raise CandidateCrashed(f"{label}: signal {signal}", log=done.output)
        if done.ending is Ending.FLOODED or done.breach:
            text = done.breach or "the program flooded its output"
            raise CandidateRefused(f"{label}: {text}", log=done.output)
        return done

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        self._work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix="own-", dir=self._work, ignore_cleanup_errors=True
        ) as name:
            yield Path(name)


def _passed(done: Completed) -> str:
    """The line of its passed check. Raises CandidateRefused."""
    if not done.ok:
        last = next((t for t in reversed(done.output.splitlines()) if t.strip()), "no output")
        raise CandidateRefused(
            f"its own check did not pass: exit status {done.returncode}: {last.strip()[:200]}",
            log=done.output,
        )
    return output.check_line(done.output.splitlines())


def _said(done: Completed) -> output.Said:
    """What it printed. Raises CandidateRefused for what does not hold, or cannot be."""
    _passed(done)
    if done.truncated:
        raise CandidateRefused("the program printed too much to be read", log=done.output)
    said = output.read(done.output)
    if said.seconds > done.seconds:
        raise CandidateRefused(
            f"a call of {said.seconds:g} s is claimed by a process that lived {done.seconds:g} s",
            log=done.output,
        )
    return said


def _not_run(reasons: dict[str, str]) -> Iterator[Check]:
    for name, why in reasons.items():
        yield Check(
            name=name,
            rung="verify",
            passed=False,
            skipped=f"not run: {own_host.LABEL}; {why}",
        )
