"""What the DSLs of an NVIDIA device share behind the port of ``workbench``.

Identity of the device, start kernels, verification, timing and profiles are the same whatever
language a kernel is written in: both harness programs see an object that exports one function.
A DSL adds its doctor, its dialect, its lints and its builder.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Final

from croq_fsm.config import Config
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.device import Device
from croq_fsm.domain.hidden import small_task
from croq_fsm.domain.measurement import Check, Samples, Verification
from croq_fsm.domain.operators import SUPPORTED
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.source import sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import Contended, EnvironmentMissing, UsageError
from croq_fsm.gpu import device as gpu
from croq_fsm.gpu.contention import Neighbours
from croq_fsm.gpu.eviction import end_own_users
from croq_fsm.gpu.health import Health
from croq_fsm.gpu.lease import DeviceLease, lease_folder
from croq_fsm.gpu.sensors import open_sensors
from croq_fsm.profiling import ncu
from croq_fsm.profiling.classify import classify
from croq_fsm.toolchain import compute_sanitizer as sanitizer
from croq_fsm.toolchain import croqtile_bench as benches
from croq_fsm.toolchain.build_cache import BuildCache
from croq_fsm.toolchain.croqtile_probe import Probe
from croq_fsm.toolchain.croqtile_time import Timing
from croq_fsm.toolchain.croqtile_tools import CURES, Tools, find_tools
from croq_fsm.toolchain.device_build import TARGET_SOURCE, DeviceBuilder
from croq_fsm.toolchain.own_host import Maker, OwnHost
from croq_fsm.toolchain.process import Conversation, Runner
from croq_fsm.toolchain.sanitizing import not_run
from croq_fsm.toolchain.workbench import Contestant, Regime, TimingPlan

#: Sizes of the shape on which sanitizers run: some tiles along each side, some steps of the ring.
_SANITIZED: Final = 512
_BUILTIN: Final = "builtin:"
#: Elements of 16 bits in 16 bytes, the widest piece that one instruction moves.
_ROW_STEP: Final = 8
_PROFILE_LAUNCHES: Final = 3
_TINY: Final = (8, 8, 8)
#: Device memory that others hold when more is in use than ever before without us, MiB.
_MEMORY_STEP: Final = 100
#: Device memory in use at the first look that no idle device shows, MiB.
_MEMORY_IDLE: Final = 2000


class DeviceWorkbench(ABC):
    """The shared half of a workbench; a DSL derives from it.

    Args:
        runner: Starts all children.
        config: The effective configuration; ``[croqtile]`` says where the CUDA toolkit is.
        cache: Folder of the build cache; paths in builds and profiles are relative to it.
        work: Folder for the children's private folders.

    Attributes:
        dsl: Name of the DSL.
        suffix: File suffix of its sources, with the dot.
        aligned_sizes: Sizes that must be multiples of 8.
        aligned_for: What needs that, for the message.
        regimes: See ``Workbench.regimes``.
    """

    dsl: ClassVar[str]
    suffix: ClassVar[str]
    aligned_sizes: ClassVar[tuple[str, ...]]
    aligned_for: ClassVar[str]
    regimes: tuple[Regime, ...] = ("isolated", "burst", "sustained")
    _builder: DeviceBuilder

    def __init__(self, runner: Runner, config: Config, cache: Path, work: Path) -> None:
        self._runner = runner
        self._config = config
        self._cache = BuildCache(cache.absolute())
        self._work = work.absolute()
        self._tools: Tools = find_tools(config.croqtile)
        self._quiet_mb: int | None = None
        self._health = Health(self._probe_device)
        self._library_errors: dict[tuple[str, int], float | None] = {}
        probes = self._work / "probes"
        self._probe = Probe(runner, self._tools, probes, config.deadlines.probe_s)

    def device(self) -> Device:
        """See ``Workbench.device``."""
        return self._device

    def supports(self, task: Task) -> None:
        """See ``Workbench.supports``. What runs in a host part of its own is its own business."""
        if task.own_host:
            return
        if (task.operator, task.dtype) not in SUPPORTED[self.dsl]:
            known = ", ".join(" ".join(pair) for pair in sorted(SUPPORTED[self.dsl]))
            raise UsageError(
                f"DSL {self.dsl} cannot run {task.operator} {task.dtype}; it can run: {known}"
            )
        task.op.check_shape(task.shape, task.dtype)
        for name in self.aligned_sizes:
            if task.sizes[name] % _ROW_STEP:
                raise UsageError(
                    f"size {name} = {task.sizes[name]} must be a multiple of {_ROW_STEP}: rows of "
                    f"16-bit elements must be multiples of 16 bytes for {self.aligned_for}"
                )

    def start_kernel(self, task: Task) -> Candidate:
        """See ``Workbench.start_kernel``. ``builtin:<file name without suffix>`` names another."""
        if task.own_host:
            return self._own.start_kernel(task)
        self.supports(task)
        name = f"{task.operator}_{task.dtype}_plain"
        named = task.kernel.removeprefix(_BUILTIN) if task.kernel.startswith(_BUILTIN) else ""
        if named not in ("", task.operator):
            name = named
        shipped = files("croq_fsm.kernels").joinpath(self.dsl, task.operator)
        names = [p.name for p in shipped.iterdir()]
        known = sorted(n.removesuffix(self.suffix) for n in names if n.endswith(self.suffix))
        if name not in known:
            raise UsageError(f"no kernel {name!r} ships; known: {', '.join(known)}")
        return Candidate(
            source=shipped.joinpath(f"{name}{self.suffix}").read_text(encoding="utf-8")
        )

    def build(self, candidate: Candidate, task: Task) -> Build:
        """See ``Workbench.build``."""
        if task.own_host:
            return self._own.build(candidate, task)
        self.supports(task)
        return self._builder.build(candidate, task)

    def verify(self, build: Build, task: Task, seeds: tuple[int, ...]) -> Verification:
        """See ``Workbench.verify``. Stops at the first check that fails."""
        if task.own_host:
            return self._own.verify(build)
        checks: list[Check] = []
        programs = self._programs(self._config.deadlines.verify_s)
        with (
            self._health.guarded(),
            self._folder("verify") as folder,
            programs.trusted(task, folder) as judge,
            programs.bench(self._cache.folder / build.binary, task, folder, "verify") as bench,
        ):
            for case in benches.cases(task, seeds):
                path = folder / "output.bin"
                seen = benches.run_case(case, bench, path, programs.answer_s)
                judged = benches.judge_output(case, judge, path, programs.answer_s)
                benches.discard(path)
                differ = self._uses_atomics(build)
                library = self._library_error(case, task, seeds, judge)
                check = benches.verdict(
                    case, seen, judged, task.shape[1], may_differ=differ, library=library
                )
                checks.append(check)
                if not check.passed:
                    break
        return Verification(checks=tuple(checks))

    def time(self, contestants: dict[str, Contestant], task: Task, plan: TimingPlan) -> Samples:
        """See ``Workbench.time``."""
        self._must_be_alone()
        if task.own_host:
            return self._own.time(contestants, task, plan)
        programs = self._programs(self._config.deadlines.block_s)
        with (
            self._health.guarded(),
            self._folder("time") as folder,
            open_sensors(self._runner, self._device.uuid, folder, self._probe_s) as sensors,
        ):
            timing = Timing(programs, self._config, self._cache.folder, self._neighbours, sensors)
            samples = timing.run(contestants, task, plan, folder)
        return samples.model_copy(update={"sandbox": self._runner.sandbox})

    def profile(self, build: Build, task: Task, *, full: bool) -> Profile:
        """See ``Workbench.profile``."""
        self._must_be_alone()
        tool = ncu.Ncu(self._runner, self._tools.need("ncu"), self._config.deadlines.profile_s)
        request = json.dumps({"cmd": "launch", "launches": _PROFILE_LAUNCHES})
        programs = self._programs(self._config.deadlines.profile_s)
        binary = self._cache.folder / build.binary
        kernels = tuple(json.loads((binary.parent / "kernels.json").read_text(encoding="utf-8")))
        with self._health.guarded(), self._folder("ncu") as folder:
            harnessed = () if task.own_host else (*programs.problem(task), request)
            application = (str(binary), *harnessed)
            launch = tool.profile(application, kernels, folder, full=full)
            version = tool.version(folder, self._probe_s)
            return self._as_profile(build, launch, version, full=full)

    def sanitize(self, candidate: Candidate, task: Task) -> tuple[Check, ...]:
        """See ``Sanitizing.sanitize``. The control is the kernel that ships for the task."""
        if task.own_host:
            return self._own.sanitize()
        if self._tools.sanitizer is None:
            return tuple(not_run(tool, CURES["sanitizer"]) for tool in sanitizer.TOOLS)
        self._must_be_alone()
        programs = self._programs(self._config.deadlines.verify_s)
        problem = programs.problem(small_task(task, _SANITIZED))

        def application(kernel: Candidate) -> tuple[str, ...]:
            binary = self._cache.folder / self.build(kernel, task).binary
            return sanitizer.launch_once(binary, problem)

        def control() -> tuple[str, ...]:
            shipped = task.model_copy(update={"kernel": _BUILTIN})
            return application(self.start_kernel(shipped))

        with self._health.guarded(), self._folder("sanitize") as folder:
            return self._sanitizer.checks(application(candidate), control, folder)

    def read(self, relative: str) -> bytes:
        """See ``Workbench.read``. Raises UsageError for a path outside of the cache."""
        path = (self._cache.folder / relative).resolve()
        if not path.is_relative_to(self._cache.folder.resolve()):
            raise UsageError(f"{relative!r} is not in the build cache")
        return path.read_bytes()

    @abstractmethod
    def own_maker(self) -> Maker:
        """How programs with a host part of their own are made."""

    @cached_property
    def _own(self) -> OwnHost:
        return OwnHost(
            self._runner,
            self._config,
            self.own_maker(),
            cache=self._cache.folder,
            work=self._work,
            device=True,
            guarded=self._health.guarded,
        )

    @property
    def _probe_s(self) -> float:
        return self._config.deadlines.probe_s

    @cached_property
    def _device(self) -> Device:
        with self._folder("device") as folder:
            row = self._smi_row(folder)
            info = self._info(folder)
            if not row and not info:
                raise EnvironmentMissing("no NVIDIA device answers")
            uuid = str(info.get("uuid", ""))
            return gpu.make_device(info, self._smi_row(folder, uuid) if uuid else row)

    @cached_property
    def _neighbours(self) -> Neighbours | None:
        smi = self._tools.nvidia_smi
        if smi is None:
            return None
        self._work.mkdir(parents=True, exist_ok=True)
        uuid = self._device.uuid
        return Neighbours(self._runner, smi, uuid, cwd=self._work, deadline_s=self._probe_s)

    def _smi_row(self, folder: Path, uuid: str = "") -> dict[str, str]:
        if self._tools.nvidia_smi is None:
            return {}
        rows = gpu.query_smi(self._runner, self._tools.nvidia_smi, folder, self._probe_s)
        return gpu.chosen_row(rows, uuid)

    def _info(self, folder: Path) -> dict[str, object]:
        """What our own program sees of the device; nothing when it cannot be built."""
        if self._tools.nvcc is None:
            return {}
        tiny = Task(
            dsl=self.dsl, operator="matmul", dtype="f16", shape=_TINY, kernel="", model="none"
        )
        programs = self._programs(self._probe_s)
        with programs.trusted(tiny, folder) as judge:
            return judge.ask({"cmd": "info"}, self._probe_s)

    def _library_error(
        self, case: benches.Case, task: Task, seeds: tuple[int, ...], judge: Conversation
    ) -> benches.LibraryError | None:
        """The library's own error on the first normal inputs; asked for once a task and seed."""
        if case.rung != "verify" or case.seed != seeds[0]:
            return None
        key = (task.shape_key, case.seed)
        if key not in self._library_errors:
            seconds = self._config.deadlines.verify_s
            self._library_errors[key] = benches.library_error(case, judge, seconds)
        error = self._library_errors[key]
        factor = self._config.measure.library_error_factor
        return None if error is None else benches.LibraryError(error, factor)

    @cached_property
    def _sanitizer(self) -> sanitizer.ComputeSanitizer:
        """One for all candidates: it remembers what the controls came to."""
        program, seconds = self._tools.need("sanitizer"), self._config.deadlines.profile_s
        return sanitizer.ComputeSanitizer(self._runner, program, seconds)

    def _programs(self, answer_s: float) -> benches.Programs:
        judge = self._builder.harness().judge
        return benches.Programs(self._runner, judge, self._tools.cublas, answer_s)

    def _must_be_alone(self) -> None:
        """Nothing of ours is on the device now; whoever is there is somebody else.

        Raises:
            Contended: Somebody is.
        """
        if self._neighbours is None:
            return
        foreign = self._neighbours.foreign(contexts=0)
        if foreign and self._config.contention.kill == "own-user":
            end_own_users(self._neighbours.occupants(), self._lease_holder())
            foreign = self._neighbours.foreign(contexts=0)
        foreign = foreign or self._hidden_user(self._neighbours)
        if foreign:
            raise Contended(foreign)

    def _hidden_user(self, neighbours: Neighbours) -> str:
        """Somebody whom the driver does not name, known by the memory that is in use."""
        used = neighbours.memory()
        if used is None:
            return ""
        quiet = _MEMORY_IDLE if self._quiet_mb is None else self._quiet_mb + _MEMORY_STEP
        if used > quiet:
            return f"{used} MiB of device memory are in use though nothing of ours runs"
        self._quiet_mb = used if self._quiet_mb is None else min(used, self._quiet_mb)
        return ""

    def _lease_holder(self) -> int | None:
        """Process that says it holds this device; whoever that is, it stays."""
        chosen = self._config.contention.lease_dir
        lease = DeviceLease(self._device.uuid, Path(chosen) if chosen else lease_folder())
        pid = lease.holder().get("pid", "")
        return int(pid) if pid.isdigit() else None

    def _probe_device(self) -> None:
        """A tiny launch of our own. Raises EnvironmentMissing when it does not come back."""
        tiny = Task(
            dsl=self.dsl, operator="matmul", dtype="f16", shape=_TINY, kernel="", model="none"
        )
        programs = self._programs(self._probe_s)
        with self._folder("probe") as folder, programs.trusted(tiny, folder) as judge:
            judge.ask({"cmd": "idle", "launches": 1}, self._probe_s)

    def _uses_atomics(self, build: Build) -> bool:
        return b"atomic" in self.read(f"{build.key}/{TARGET_SOURCE}")

    def _as_profile(self, build: Build, launch: ncu.Launch, version: str, *, full: bool) -> Profile:
        counters = {metric.name: metric.value for metric in launch.metrics}
        try:
            found = classify(counters, build.remarks)
        except ValueError as exc:
            raise EnvironmentMissing(f"the profiler gave too little: {exc}") from exc
        key = sha256(f"profile {build.binary_sha256} {full}")
        stored: dict[str, Path | bytes] = {"profile.ncu-rep": launch.report}
        if launch.csv:
            stored["profile.csv"] = launch.csv
        self._cache.put(key, stored, {"kernel": launch.kernel})
        return Profile(
            binary=build.binary_sha256,
            tool=f"ncu {version}".strip(),
            full=full,
            bottleneck=found.bottleneck,
            confidence=found.confidence,
            evidence=found.evidence,
            metrics=launch.metrics,
            remarks=build.remarks,
            duration=_seconds(counters.get("gpu__time_duration.sum")),
            files={Path(n).suffix.removeprefix("."): f"{key}/{n}" for n in stored},
        )

    @contextlib.contextmanager
    def _folder(self, purpose: str) -> Iterator[Path]:
        """A private folder that goes away, whatever happens."""
        self._work.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=self._work))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _seconds(nanoseconds: float | None) -> float | None:
    return None if nanoseconds is None else nanoseconds * 1e-9
