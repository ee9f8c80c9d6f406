"""DSL ``c``: C kernels, compiled by ``cc``, run and measured on the CPU of this machine."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Final

import psutil

from croq_fsm.config import Config
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.device import Device, Finding
from croq_fsm.domain.measurement import Check, Samples, Verification
from croq_fsm.domain.operators import SUPPORTED
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.roofline import timing_profile
from croq_fsm.domain.shapes import format_shape
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateRefused, UsageError
from croq_fsm.measure import stats
from croq_fsm.profiling import roofline
from croq_fsm.toolchain import c_doctor, c_sources
from croq_fsm.toolchain.build_cache import BuildCache
from croq_fsm.toolchain.c_bench import CBench
from croq_fsm.toolchain.c_compile import CCompile
from croq_fsm.toolchain.c_machine import CpuMachine, measure_peaks
from croq_fsm.toolchain.c_sanitize import CSanitizer
from croq_fsm.toolchain.c_structure import structure_of
from croq_fsm.toolchain.own_host import OwnHost
from croq_fsm.toolchain.own_host_c import CMaker
from croq_fsm.toolchain.process import Runner
from croq_fsm.toolchain.workbench import Contestant, Regime, TimingPlan

_BUILTIN: Final = "builtin:"
_PROFILE_LAUNCHES, _FULL_LAUNCHES = 5, 15
_PROFILE_S: Final = 2.0
#: Inputs, work copies, output, kept output, double-precision reference: times the operands.
_MEMORY_TIMES: Final = 12
_PROFILES: Final = "roofline"
_FLAGS_ASKED: Final = (
    *("-O1", "-O2", "-O3", "-Ofast", "-march=native", "-mtune=native", "-mcpu=native"),
    *("-ffast-math", "-fassociative-math", "-fno-math-errno", "-fno-trapping-math"),
    *("-fno-signed-zeros", "-freciprocal-math", "-ffinite-math-only", "-ffp-contract=fast"),
    *("-funroll-loops", "-funroll-all-loops", "-fprefetch-loop-arrays", "-fopenmp-simd"),
    *("-ftree-vectorize", "-fvect-cost-model=unlimited", "-fno-tree-vectorize", "-fipa-pta"),
    *("-floop-interchange", "-floop-unroll-and-jam", "-fno-semantic-interposition"),
    *("-mprefer-vector-width=256", "-mprefer-vector-width=512", "-frename-registers"),
    *("-fomit-frame-pointer", "-fmodulo-sched", "-fno-plt", "-fsched-pressure"),
)


class CWorkbench:
    """Implements ``workbench.Workbench`` for C kernels.

    Args:
        runner: Starts all children.
        config: The effective configuration.
        cache: Folder of the build cache; paths in builds and profiles are relative to it.
        work: Folder for the children's private folders and for test cases.
    """

    dsl = "c"
    suffix = ".c"
    generated_suffix = ""
    regimes: tuple[Regime, ...] = ("isolated",)

    def __init__(self, runner: Runner, config: Config, cache: Path, work: Path) -> None:
        self._runner = runner
        self._config = config
        self._cache = cache.absolute()
        self._machine = CpuMachine()
        self._compile = CCompile(
            runner, config, BuildCache(self._cache), work.absolute() / "c", self._machine.uuid
        )
        self._bench = CBench(
            runner,
            config,
            compile_=self._compile,
            machine=self._machine,
            cache=self._cache,
            work=work.absolute(),
        )
        self._own = OwnHost(
            runner,
            config,
            CMaker(self._compile, config, BuildCache(self._cache), self._machine.uuid),
            cache=self._cache,
            work=work.absolute() / "own",
            device=False,
            guarded=nullcontext,
        )

    def doctor(self) -> list[Finding]:
        """See ``Workbench.doctor``."""
        return c_doctor.findings(self._runner, self._compile, self._config.deadlines.probe_s)

    def device(self) -> Device:
        """See ``Workbench.device``. The first call measures the peaks of the machine."""
        return self._device

    def dialect(self) -> dict[str, str]:
        """See ``Workbench.dialect``. ``flags`` are those that a candidate may bring."""
        return dict(self._dialect)

    def supports(self, task: Task) -> None:
        """See ``Workbench.supports``. What runs in a host part of its own is its own business."""
        if task.own_host:
            return
        if (task.operator, task.dtype) not in SUPPORTED["c"]:
            known = ", ".join(" ".join(pair) for pair in sorted(SUPPORTED["c"]))
            raise UsageError(f"DSL c cannot run {task.operator} {task.dtype}; it can run: {known}")
        rows, cols = task.precision.output.shape(task.sizes)
        if rows * cols < 2 or task.sizes.get("cols") == 1:  # noqa: PLR2004 - one number is no test
            raise UsageError(
                f"shape {format_shape(task.shape)}: a constant output would pass; choose a larger "
                "one"
            )
        needed, there = _MEMORY_TIMES * task.nbytes, psutil.virtual_memory().total
        if needed > there:
            raise UsageError(
                f"shape {format_shape(task.shape)} needs about {needed >> 30} GiB to verify; "
                f"this machine has {there >> 30} GiB"
            )

    def start_kernel(self, task: Task) -> Candidate:
        """See ``Workbench.start_kernel``. ``builtin:<file name without suffix>`` names another."""
        if task.own_host:
            return self._own.start_kernel(task)
        self.supports(task)
        name = task.kernel.removeprefix(_BUILTIN) if task.kernel.startswith(_BUILTIN) else ""
        if name in ("", task.operator):
            name = f"{task.operator}_plain"
        known = c_doctor.shipped_kernels(task.operator)
        if name not in known:
            raise UsageError(
                f"no kernel {name!r} ships for {task.operator}; known: {', '.join(known)}"
            )
        path = c_sources.KERNELS / task.operator / f"{name}.c"
        return Candidate(source=path.read_text(encoding="utf-8"))

    def lint(self, candidate: Candidate, task: Task) -> list[str]:
        """See ``Workbench.lint``."""
        if task.own_host:
            return self._own.lint(candidate, task)
        return self._compile.problems(candidate, task)

    def structure(self, candidate: Candidate) -> dict[str, str]:
        """See ``Workbench.structure``."""
        return structure_of(candidate.source)

    def build(self, candidate: Candidate, task: Task) -> Build:
        """See ``Workbench.build``."""
        if task.own_host:
            return self._own.build(candidate, task)
        self.supports(task)
        return self._compile.build(candidate, task)

    def verify(self, build: Build, task: Task, seeds: tuple[int, ...]) -> Verification:
        """See ``Workbench.verify``. Stops at the first check that fails."""
        if task.own_host:
            return self._own.verify(build)
        return self._bench.verify(build, task, seeds)

    def time(self, contestants: dict[str, Contestant], task: Task, plan: TimingPlan) -> Samples:
        """See ``Workbench.time``. The regime is recorded; on a CPU all three are the same."""
        if task.own_host:
            return self._own.time(contestants, task, plan)
        samples = self._bench.time(contestants, task, plan)
        for name, contestant in contestants.items():
            if isinstance(contestant, Build):
                self._check_plausible(name, task, stats.block_seconds(samples, name))
        return samples.model_copy(update={"sandbox": self._runner.sandbox})

    def sanitize(self, candidate: Candidate, task: Task) -> tuple[Check, ...]:
        """See ``Sanitizing.sanitize``."""
        if task.own_host:
            return self._own.sanitize()
        threads = self._config.c.threads
        tool = CSanitizer(self._runner, self._compile, self._config.deadlines, threads)
        return (tool.check(candidate, task),)

    def profile(self, build: Build, task: Task, *, full: bool) -> Profile:
        """See ``Workbench.profile``. A CPU is shared by design, so it is never Contended."""
        device = self._device
        if task.own_host:
            plan = TimingPlan(purpose="baseline", pairs=1)
            taken = self._own.time({"candidate": build}, task, plan)
            seconds = stats.block_seconds(taken, "candidate")
            return timing_profile(task, device, build.binary_sha256, seconds)
        first, _ = self._bench.count(build, task, 1)
        most = _FULL_LAUNCHES if full else _PROFILE_LAUNCHES
        launches = max(1, min(most, int(_PROFILE_S / first[0])))
        times, counters = self._bench.count(build, task, launches)
        if not all(times):
            raise CandidateRefused("a launch took no time at all; the timer cannot be believed")
        seen = roofline.Observation(tuple(times), counters)
        found = roofline.profile(build, task, device, seen, full=full)
        return found.model_copy(update={"files": {"metrics.csv": self._keep(found)}})

    def read(self, relative: str) -> bytes:
        """See ``Workbench.read``."""
        path = (self._cache / relative).resolve()
        if not path.is_relative_to(self._cache.resolve()):
            raise UsageError(f"{relative} is outside the build cache")
        return path.read_bytes()

    @cached_property
    def _device(self) -> Device:
        return self._measured_device(again=False)

    def _measured_device(self, *, again: bool) -> Device:
        folder = self._cache / "machine"
        folder.mkdir(parents=True, exist_ok=True)
        program = self._compile.peaks_program(self._config.c.threads)
        peaks = measure_peaks(
            self._runner, program, self._machine, self._config, folder, again=again
        )
        return self._machine.device(peaks, self._config.c.threads)

    def _check_plausible(self, name: str, task: Task, seconds: float) -> None:
        """Refuse a time below what the machine can do, once the peaks are measured again."""
        if roofline.excess(task, self._device, seconds):
            self._device = self._measured_device(again=True)
        if text := roofline.excess(task, self._device, seconds):
            raise CandidateRefused(f"{name}: {text}; such a time is not believed")

    @cached_property
    def _dialect(self) -> dict[str, str]:
        compiler = self._compile.compiler
        openmp = ("-fopenmp",) if self._config.c.threads > 1 else ()
        known = self._compile.known_flags((*_FLAGS_ASKED, *openmp))
        version = re.search(r"\d+(\.\d+)+", compiler.version)
        return {
            "compiler": compiler.kind,
            "version": version.group(0) if version else compiler.version,
            "base_flags": " ".join(self._config.c.flags),
            "threads": str(self._config.c.threads),
            "library": c_doctor.blas_name() or f"NumPy on {self._machine.name}",
            "flags": " ".join(known),
        }

    def _keep(self, found: Profile) -> str:
        """Write the metrics as a table; path relative to the cache."""
        relative = f"{_PROFILES}/{found.binary[:16]}-{'full' if found.full else 'short'}.csv"
        path = self._cache / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = ["metric,value,unit", *(f"{m.name},{m.value!r},{m.unit}" for m in found.metrics)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return relative
