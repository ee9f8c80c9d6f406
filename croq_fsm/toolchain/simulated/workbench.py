"""The simulated workbench: real kernels, real lints, modelled compilers, device and profiler.

Sources are read by the same text readers as for the real toolchain, and lints and structural
features are the real ones. What is modelled is marked as such in every artifact.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Final

from croq_fsm.config import Config
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.device import Device, Finding
from croq_fsm.domain.measurement import Samples, Verification
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.source import normalised_hash, sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import Contended, DiskFull, EnvironmentMissing, UsageError
from croq_fsm.profiling import ncu_metrics
from croq_fsm.profiling.classify import classify
from croq_fsm.toolchain import croqtile_lint
from croq_fsm.toolchain.build_cache import BuildCache
from croq_fsm.toolchain.croqtile_flags import NVCC_FORMS, allowed_flags
from croq_fsm.toolchain.process import Runner
from croq_fsm.toolchain.simulated import bench, compiler, model, report
from croq_fsm.toolchain.simulated import device as devices
from croq_fsm.toolchain.simulated.clock import SimulatedClock
from croq_fsm.toolchain.simulated.faults import Faults, Script, chance, read_script
from croq_fsm.toolchain.simulated.features import features
from croq_fsm.toolchain.workbench import Contestant, Regime, TimingPlan

_ROW_STEP: Final = 8
_PROFILE_S: Final = {False: 5.0, True: 9.0}
_BUILTIN: Final = "builtin:"
_MARKERS: Final = "simulated"


class SimulatedWorkbench:
    """Implements ``workbench.Workbench`` without a GPU, a compiler or a child process.

    Args:
        runner: Not used: nothing is started.
        config: The effective configuration; ``[simulation]`` and ``seed`` make the night.
        cache: Folder of the build cache.
        work: Not used.
    """

    dsl = "croqtile"
    suffix = ".co"
    generated_suffix = ".cu"
    regimes: tuple[Regime, ...] = ("isolated",)

    def __init__(self, runner: Runner, config: Config, cache: Path, work: Path) -> None:  # noqa: ARG002 - the registry's signature
        self._config = config
        self._cache = BuildCache(cache.absolute())
        self.clock = SimulatedClock()
        settings = config.simulation
        script = read_script(Path(settings.script)) if settings.script else Script()
        markers = cache.absolute().parent / _MARKERS
        self.faults = Faults(settings, script, config.seed, self.clock, markers)

    def doctor(self) -> list[Finding]:
        """See ``Workbench.doctor``."""
        return devices.findings()

    def device(self) -> Device:
        """See ``Workbench.device``."""
        return devices.device(self._config.seed)

    def dialect(self) -> dict[str, str]:
        """See ``Workbench.dialect``."""
        allowed = allowed_flags(devices.OPTIONS)
        bare = " ".join(flag.partition(":")[2] for flag in allowed)
        return {
            "dialect": "head",
            **devices.COMPILERS,
            "flags": bare,
            "candidate_flags": " ".join([*allowed, NVCC_FORMS]),
        }

    def supports(self, task: Task) -> None:
        """See ``Workbench.supports``."""
        if task.dsl != self.dsl or task.operator != "matmul":
            raise UsageError(
                f"the simulator models matmul of DSL croqtile, not {task.operator} of {task.dsl}"
            )
        for name in ("n", "k"):
            if task.sizes[name] % _ROW_STEP:
                raise UsageError(
                    f"size {name} = {task.sizes[name]} must be a multiple of {_ROW_STEP}"
                )

    def start_kernel(self, task: Task) -> Candidate:
        """See ``Workbench.start_kernel``."""
        self.supports(task)
        named = task.kernel.removeprefix(_BUILTIN) if task.kernel.startswith(_BUILTIN) else ""
        name = named if named not in ("", task.operator) else f"{task.operator}_{task.dtype}_plain"
        path = files("croq_fsm.kernels").joinpath(self.dsl, task.operator, f"{name}{self.suffix}")
        if not path.is_file():
            raise UsageError(f"no kernel {name!r} ships for {task.operator}")
        return Candidate(source=path.read_text(encoding="utf-8"))

    def lint(self, candidate: Candidate, task: Task) -> list[str]:
        """See ``Workbench.lint``; the real one."""
        return croqtile_lint.lint(candidate, task)

    def structure(self, candidate: Candidate) -> dict[str, str]:
        """See ``Workbench.structure``; the real one."""
        return croqtile_lint.structure(candidate)

    def build(self, candidate: Candidate, task: Task) -> Build:
        """See ``Workbench.build``. What was built before comes from the cache."""
        self.supports(task)
        if self.faults.once("disk_full"):
            raise DiskFull("no space left for the build cache (SIMULATED)")
        first = normalised_hash(candidate.source, candidate.flags)
        self.faults.spare_first(task.shape_key, first)
        identity = [task.operator, task.dtype, self._config.seed, candidate.model_dump(mode="json")]
        key = sha256(json.dumps(["simulated", *identity], sort_keys=True))
        stored = self._cache.meta(key)
        if stored is not None:
            return self._again(Build.model_validate(stored["build"]), stored["elapsed"])
        deadline_s = self._config.deadlines.compile_s
        made = compiler.compile_candidate(key, candidate, task, self.faults, deadline_s)
        meta = {
            "build": made.build.model_dump(mode="json"),
            "candidate": candidate.model_dump(mode="json"),
            "elapsed": self.clock.elapsed,
        }
        self._cache.put(key, dict(made.files), meta)
        return made.build

    def _again(self, build: Build, elapsed: float) -> Build:
        """A build of the cache. One of a step that was lost, and is done again, takes its time."""
        ahead = elapsed - self.clock.elapsed
        if ahead > 0:
            self.clock.advance(ahead)
            return build
        return build.model_copy(update={"seconds": 0.0, "cached": True})

    def verify(self, build: Build, task: Task, seeds: tuple[int, ...]) -> Verification:
        """See ``Workbench.verify``."""
        deadline_s = self._config.deadlines.verify_s
        return bench.verified(self._candidate(build), task, seeds, self.faults, deadline_s)

    def time(self, contestants: dict[str, Contestant], task: Task, plan: TimingPlan) -> Samples:
        """See ``Workbench.time``."""
        timed = {name: self._timed(c, task) for name, c in contestants.items()}
        return bench.take(timed, contestants, task, plan, self.faults)

    def truth(self, candidate: Candidate, task: Task) -> model.Truth:
        """What nobody on the night may know: the true time of a candidate.

        Raises:
            LookupError: The text is no GEMM that the model knows.
        """
        found = features(candidate)
        if found is None:
            raise LookupError("the model cannot read this kernel")
        m, n, k = task.shape
        return model.truth(found, (m, n, k))

    def profile(self, build: Build, task: Task, *, full: bool) -> Profile:
        """See ``Workbench.profile``."""
        if self.faults.contended:
            self.clock.advance(1.0)
            raise Contended("process 4711 of another user is on the device (SIMULATED)")
        if self.faults.now("profiler_denied"):
            raise EnvironmentMissing("ncu may not read the counters: ERR_NVGPUCTRPERM (SIMULATED)")
        self.clock.advance(_PROFILE_S[full])
        candidate = self._candidate(build)
        found = features(candidate)
        if found is None:
            raise LookupError("a build of a kernel that the model cannot read")
        scatter = 0.99 + 0.02 * chance(self._config.seed, "ncu", build.binary_sha256)
        kernel = f"__choreo_device_{task.operator}"
        text = report.raw_csv(kernel, found, self.truth(candidate, task), scatter)
        metrics = tuple(ncu_metrics.read_raw_csv(text)[0][1])
        counters = {metric.name: metric.value for metric in metrics}
        told = classify(counters, build.remarks)
        key = sha256(f"simulated profile {build.binary_sha256} {task.shape_key} {full}")
        self._cache.put(key, {"profile.csv": text.encode()}, {"kernel": kernel})
        return Profile(
            binary=build.binary_sha256,
            tool=f"ncu {report.VERSION}",
            full=full,
            bottleneck=told.bottleneck,
            confidence=told.confidence,
            evidence=told.evidence,
            metrics=metrics,
            remarks=build.remarks,
            duration=counters[ncu_metrics.DURATION] * 1e-9,
            files={"csv": f"{key}/profile.csv"},
        )

    def read(self, relative: str) -> bytes:
        """See ``Workbench.read``. Raises UsageError for a path outside of the cache."""
        path = (self._cache.folder / relative).resolve()
        if not path.is_relative_to(self._cache.folder.resolve()):
            raise UsageError(f"{relative!r} is not in the build cache")
        return path.read_bytes()

    def _candidate(self, build: Build) -> Candidate:
        meta = self._cache.meta(build.key)
        if meta is None:
            raise FileNotFoundError(f"build {build.key} is not in the cache any more")
        return Candidate.model_validate(meta["candidate"])

    def _timed(self, contestant: Contestant, task: Task) -> bench.Timed:
        if isinstance(contestant, Build):
            return bench.Timed.of(self.truth(self._candidate(contestant), task))
        return bench.Timed(devices.library_seconds(task), tensor=0.92, clock=1.57e9)
