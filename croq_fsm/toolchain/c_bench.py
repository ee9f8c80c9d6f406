"""Running built C kernels: verification, interleaved timing, counters."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from croq_fsm.config import Config
from croq_fsm.domain.build import Build
from croq_fsm.domain.measurement import Check, Samples, Verification
from croq_fsm.domain.shapes import format_shape
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateRefused
from croq_fsm.measure import fresh
from croq_fsm.measure.cases import KINDS
from croq_fsm.measure.interleave import LIBRARY, Interleaver
from croq_fsm.toolchain.build_cache import checked_binary
from croq_fsm.toolchain.c_audit import Audit, Bench, must_be_whole
from croq_fsm.toolchain.c_compile import CCompile
from croq_fsm.toolchain.c_judge import Judge, Judges, all_cores
from croq_fsm.toolchain.c_machine import CpuMachine
from croq_fsm.toolchain.process import Command, Conversation, Limits, Runner
from croq_fsm.toolchain.workbench import Contestant, TimingPlan

_MEMORY_SPARE: Final = 1 << 30
_MEMORY_PER_THREAD: Final = 256 << 20
_COPIES: Final = 4
#: Launches of the first case; their outputs must agree bit for bit.
_REPEATS: Final = 2
#: Bytes of one number of a proof, and launches of a block when nothing else is said.
_PROOF_BYTES: Final = 8
_LAUNCHES: Final = 64


class CBench:
    """Runs kernels.

    Args:
        runner: Starts children.
        config: Deadlines, threads.
        compile_: Builder of our helper programs, and of temporary folders.
        machine: The CPU.
        cache: Folder that the paths of a build are relative to.
        work: Folder for cases.
    """

    def __init__(
        self,
        runner: Runner,
        config: Config,
        *,
        compile_: CCompile,
        machine: CpuMachine,
        cache: Path,
        work: Path,
    ) -> None:
        self._runner = runner
        self._config = config
        self._compile = compile_
        self._machine = machine
        self._cache = cache
        self._judges = Judges(runner, work / "cases")
        self._ordinals = itertools.count(1)

    def verify(self, build: Build, task: Task, seeds: tuple[int, ...]) -> Verification:
        """See ``Workbench.verify``. The first seed also gives the operator's special data."""
        first, *special = KINDS[task.operator]
        cases = [(first, seed) for seed in seeds] + [(kind, seeds[0]) for kind in special]
        deadline = self._config.deadlines.verify_s
        checks: list[Check] = []
        with self._compile.folder() as cwd, ExitStack() as stack:
            judge = stack.enter_context(
                self._judges.start(task, cwd, deadline, threads=all_cores())
            )
            inputs = [judge.make(kind, seed) for kind, seed in cases]
            bench = stack.enter_context(
                self._bench(build, task, cwd, inputs, deadline_s=deadline, name="verify")
            )
            for number, (kind, seed) in enumerate(cases):
                checks += self._check(bench, judge, task, number, (kind, seed))
                if not checks[-1].passed:
                    break
        return Verification(checks=tuple(checks))

    def time(self, contestants: dict[str, Contestant], task: Task, plan: TimingPlan) -> Samples:
        """See ``Workbench.time``."""
        deadline = self._config.deadlines.block_s
        with self._compile.folder() as cwd, ExitStack() as stack:
            helper = self._compile.helper()
            judge = stack.enter_context(
                self._judges.start(task, cwd, deadline, threads=all_cores(), helper=helper)
            )
            talks: dict[str, Conversation] = {}
            benches: dict[str, Bench] = {}
            for name, contestant in contestants.items():
                if isinstance(contestant, Build):
                    bench = self._bench(
                        contestant,
                        task,
                        cwd,
                        [],
                        deadline_s=deadline,
                        name=name,
                        launches=max(_LAUNCHES, plan.max_launches + 1),
                    )
                    talks[name] = benches[name] = stack.enter_context(bench)
                else:
                    talks[LIBRARY] = stack.enter_context(self._library(task, cwd)).talk
            rng = random.Random(f"{plan.seed} {os.urandom(8).hex()}")  # noqa: S311 - hidden enough
            audit = Audit(benches, judge, rng, plan, task)
            return Interleaver(
                talks,
                plan,
                deadline_s=deadline,
                process=f"{os.getpid()}.{next(self._ordinals)}",
                options=audit.options,
                watch=audit,
                on_cpu=True,
            ).run()

    def count(
        self, build: Build, task: Task, launches: int
    ) -> tuple[list[float], dict[str, float]]:
        """Times (seconds) of cold launches, and the sums of the counters that can be read."""
        deadline = self._config.deadlines.profile_s
        with self._compile.folder() as cwd, ExitStack() as stack:
            bench = stack.enter_context(
                self._bench(build, task, cwd, [], deadline_s=deadline, name="profile")
            )
            bench.demand({"cmd": "time", "launches": 1, "seed": 1})
            answer = bench.demand({"cmd": "count", "launches": launches, "seed": 2})
        times, counters = answer.get("ns"), answer.get("counters", {})
        if not isinstance(times, list) or not isinstance(counters, dict):
            raise CandidateRefused("the harness gave no counters")
        return [float(t) * 1e-9 for t in times], {str(k): float(v) for k, v in counters.items()}

    def _check(
        self, bench: Bench, judge: Judge, task: Task, number: int, case: tuple[str, int]
    ) -> Iterator[Check]:
        """Checks of one case: whole output, untouched inputs, the same result twice."""
        kind, seed = case
        rows, cols = task.precision.output.shape(task.sizes)
        random_ = fresh.mix(seed + number)
        shift = ((random_ >> 32) % rows, (random_ & 0xFFFFFFFF) % cols)
        repeats = 1 if number else _REPEATS
        request: dict[str, object] = {"cmd": "run", "set": number, "repeats": repeats}
        answer = bench.demand(request | {"down": shift[0], "right": shift[1]})
        name = f"{kind}-seed-{seed}"
        if answer.get("intact") is not True:
            raise CandidateRefused("the kernel changed its inputs")
        if self._config.c.threads == 1 and answer.get("repeatable") is not True:
            yield Check(
                name=f"repeat-seed-{seed}",
                rung="verify",
                passed=False,
                detail="two launches on the same inputs gave different outputs: the kernel reads "
                "memory that it has not written, or keeps state between calls",
            )
            return
        must_be_whole(bench.output, task)
        yield judge.check(name, bench.output, kind, seed, shift)

    @contextmanager
    def _bench(
        self,
        build: Build,
        task: Task,
        cwd: Path,
        inputs: list[Path],
        *,
        deadline_s: float,
        name: str,
        launches: int = _LAUNCHES,
    ) -> Iterator[Bench]:
        """A fresh benchmark process of a build, ended afterwards."""
        threads = self._config.c.threads
        # All that it can write to; the judge and its rivals work elsewhere.
        own = cwd / f"bench-{name}"
        own.mkdir(exist_ok=True)
        output = (own / f"{name}.out").absolute()
        proofs = output.with_suffix(".proofs")
        cpus = ",".join(map(str, self._machine.cpus_for(threads))) or "-"
        command = Command(
            argv=(
                str(checked_binary(self._cache, build)),
                format_shape(task.shape),
                str(threads),
                cpus,
                str(output),
                str(proofs),
                *map(str, inputs),
            ),
            cwd=own,
            deadline_s=20 * deadline_s,
            label=f"bench of {name}",
            env={"OMP_NUM_THREADS": str(threads), "OMP_DYNAMIC": "false"},
            output_cap=1 << 16,
            flood_cap=1 << 20,
            limits=self._limits(task, len(inputs), launches, 20 * deadline_s),
            untrusted=True,
            reads=tuple(inputs),
        )
        talk = self._runner.converse(command)
        try:
            yield Bench(talk, output, proofs, deadline_s)
        finally:
            talk.close()

    @contextmanager
    def _library(self, task: Task, cwd: Path) -> Iterator[Judge]:
        """A judge of its own that is ready to time the library."""
        threads = self._config.c.threads
        started = self._judges.start(
            task,
            cwd,
            self._config.deadlines.block_s,
            threads=threads,
            helper=self._compile.helper(),
            cpus=self._machine.cpus_for(threads),
        )
        with started as judge:
            judge.load(int.from_bytes(os.urandom(6)))
            yield judge

    def _limits(self, task: Task, sets: int, launches: int, life_s: float) -> Limits:
        threads = self._config.c.threads
        memory = (_COPIES + sets) * task.nbytes + _MEMORY_SPARE + threads * _MEMORY_PER_THREAD
        return Limits(
            cpu_s=int(life_s * threads) + 1,
            memory_bytes=memory,
            file_bytes=task.nbytes + launches * fresh.PROOF_MOST * _PROOF_BYTES + (1 << 20),
        )
