"""Building for an NVIDIA device: what all its DSLs share, each step a child with a deadline.

The object of the candidate is checked before it is linked with our bench program. Results go
to the build cache; its key covers everything that the result depends on.
"""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from croq_fsm.config import Config
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.source import sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompileFailed
from croq_fsm.sandbox import files
from croq_fsm.toolchain import croqtile_log as log
from croq_fsm.toolchain import croqtile_object as objects
from croq_fsm.toolchain.build_cache import BuildCache
from croq_fsm.toolchain.croqtile_probe import Probe
from croq_fsm.toolchain.croqtile_tools import Tools
from croq_fsm.toolchain.process import Command, Limits, Role, Runner

#: File in a build's folder: the text that nvcc compiled.
TARGET_SOURCE: Final = "kernel.cu"
#: Raised whenever the steps below change in a way that changes their result.
RECIPE: Final = "1"
GENCODE: Final = "-gencode=arch=compute_90a,code=sm_90a"
BASE: Final = (GENCODE, "-std=c++17", "-O3")
_HARNESS: Final = Path(__file__).resolve().parent.parent / "measure" / "cuda"
_LARGEST_FILE: Final = 1 << 30
_GIT_SAFE_LOG: Final = 1 << 18


@dataclass(frozen=True)
class Harness:
    """Our two programs, built once.

    Attributes:
        key: Cache key.
        bench: Object file that candidates are linked with.
        judge: Trusted program.
    """

    key: str
    bench: Path
    judge: Path


@dataclass(frozen=True)
class Prepared:
    """Target source, ready for nvcc.

    Attributes:
        text: The whole text; written to ``TARGET_SOURCE``.
        options: nvcc's options beside those of every build.
        identity: Text of the host part, for the identity of what runs.
        kernels: Names of its device kernels; empty lets the object tell.
        smem_dynamic: Dynamic shared memory in bytes, where it is known.
        extra: Objects of ours to link beside the candidate's.
        entry: Function that the object must define, and may.
    """

    text: str
    options: tuple[str, ...]
    identity: str
    kernels: tuple[str, ...] = ()
    smem_dynamic: int | None = None
    extra: tuple[str, ...] = ()
    entry: str = objects.ENTRY


class DeviceBuilder(ABC):
    """Builds candidates and the harness; a DSL derives from it.

    Args:
        runner: Starts the compilers.
        config: Deadlines.
        tools: Where the compilers are.
        probe: Facts about them.
        cache: Build cache.
        work: Folder for temporary files.
    """

    def __init__(
        self,
        runner: Runner,
        config: Config,
        *,
        tools: Tools,
        probe: Probe,
        cache: BuildCache,
        work: Path,
    ) -> None:
        self._runner = runner
        self._config = config
        self._tools = tools
        self._probe = probe
        self._cache = cache
        self._work = work

    @property
    @abstractmethod
    def compilers(self) -> dict[str, str]:
        """Name → version of what takes part in a build."""

    @abstractmethod
    def key(self, candidate: Candidate, task: Task) -> str:
        """Content address of a build."""

    @abstractmethod
    def check_flags(self, candidate: Candidate) -> None:
        """Raises CompileFailed for a flag that a candidate may not bring."""

    @abstractmethod
    def job(self, folder: Path, candidate: Candidate, harness: Harness) -> Job:
        """The steps of one build in a folder of its own."""

    @cached_property
    def harness_hash(self) -> str:
        """Identity of our host programs: the content of their sources."""
        return tree_hash(_HARNESS, content=True)

    def build(self, candidate: Candidate, task: Task) -> Build:
        """See ``Workbench.build``."""
        key = self.key(candidate, task)
        stored = self._cache.meta(key)
        if stored is not None:
            build = Build.model_validate(stored["build"])
            return build.model_copy(update={"cached": True, "seconds": 0.0})
        self.check_flags(candidate)
        harness = self.harness()
        with _workshop(self._work) as folder:
            build, kept = self.job(folder, candidate, harness).run(key, candidate, task)
            self._cache.put(key, kept, {"build": build.model_dump(mode="json")})
        return build

    def harness(self) -> Harness:
        """Our programs; built when the cache does not hold them.

        Raises:
            EnvironmentMissing: They cannot be built: the toolkit is absent or broken.
        """
        identity = [RECIPE, self.harness_hash, self.compilers["nvcc"], *BASE]
        key = sha256("\n".join(identity))
        folder = self._cache.get(key)
        if folder is None:
            folder = self._build_harness(key)
        return Harness(key, folder / "bench.o", folder / "judge")

    def compile(self, label: str, argv: tuple[str, ...], cwd: Path, *, untrusted: bool) -> str:
        """Run one compiler; its output. Raises the error that its failure means."""
        command = Command(
            argv=argv,
            cwd=cwd,
            deadline_s=self._config.deadlines.compile_s,
            label=label,
            limits=Limits(file_bytes=_LARGEST_FILE),
            untrusted=untrusted,
            role=Role.COMPILE,
        )
        completed = self._runner.run(command)
        if not completed.ok:
            raise log.compile_error(label, completed)
        self.spent += completed.seconds
        return completed.output

    #: Wall seconds of all compiler runs so far.
    spent: float = 0.0

    def _build_harness(self, key: str) -> Path:
        nvcc = str(self._tools.need("nvcc"))
        with _workshop(self._work) as folder:
            bench, judge = str(folder / "bench.o"), str(folder / "judge")
            steps = (
                bench_command(nvcc, bench),
                (nvcc, *BASE, str(_HARNESS / "judge.cu"), "-o", judge, "-ldl"),
            )
            for argv in steps:
                self.compile("nvcc", argv, folder, untrusted=False)
            own: dict[str, Path | bytes] = {"bench.o": Path(bench), "judge": Path(judge)}
            return self._cache.put(key, own, {"harness": self.harness_hash})

    @property
    def sandbox(self) -> str:
        """Level of the sandbox that compilers run in."""
        return self._runner.sandbox

    def tool(self, name: str) -> str:
        """Path of a tool as text. Raises EnvironmentMissing."""
        return str(self._tools.need(name))


class Job(ABC):
    """The steps of one candidate's build, in its own folder.

    Args:
        builder: Starts the compilers.
        folder: Where all files of this build are.
        harness: Our programs.
    """

    def __init__(self, builder: DeviceBuilder, folder: Path, harness: Harness) -> None:
        self._builder = builder
        self._folder = folder
        self._harness = harness
        self._log: list[str] = []
        self._commands: list[str] = []
        self._before = builder.spent

    def run(
        self, key: str, candidate: Candidate, task: Task
    ) -> tuple[Build, dict[str, Path | bytes]]:
        """All steps; the build and the files that belong in the cache."""
        prepared = self.prepare(candidate, task)
        files.write_bytes(self._folder, TARGET_SOURCE, prepared.text.encode())
        report = self._compile(prepared)
        symbols = self._check_object(prepared)
        self._link(prepared)
        cubin = files.read_bytes(self._folder, "keep/kernel.cubin", error=CompileFailed)
        binary = self._folder / "bench"
        build = Build(
            key=key,
            binary=f"{key}/bench",
            binary_sha256=sha256(files.read_bytes(self._folder, "bench", error=CompileFailed)),
            device_code=objects.device_code(cubin, prepared.identity),
            generated=self.generated(key),
            log=f"{key}/build.log",
            commands=tuple(self._commands),
            compilers=self._builder.compilers,
            harness=self._builder.harness_hash,
            sandbox=self._builder.sandbox,
            remarks=report.remarks,
            resources=report.resources,
            seconds=self._builder.spent - self._before,
        )
        kept: dict[str, Path | bytes] = {
            "bench": binary,
            TARGET_SOURCE: prepared.text.encode(),
            "kernel.cubin": cubin,
            "kernels.json": json.dumps(prepared.kernels or symbols.kernels).encode(),
            "build.log": "\n".join(self._log).encode()[:_GIT_SAFE_LOG],
        }
        return build, kept

    @abstractmethod
    def prepare(self, candidate: Candidate, task: Task) -> Prepared:
        """Make the target source. Raises CandidateError or EnvironmentMissing."""

    @abstractmethod
    def generated(self, key: str) -> str:
        """Path of the generated source in the cache; "" when the source is the target's own."""

    def step(self, label: str, argv: tuple[str, ...], *, keep: bool = True) -> str:
        """Run a compiler on the candidate; its output goes to the log when ``keep`` is set."""
        output = self._builder.compile(label, argv, self._folder, untrusted=True)
        if keep:
            line = shlex.join(argv)
            self._commands.append(line)
            self._log += [f"$ {line}", output]
        return output

    def _compile(self, prepared: Prepared) -> log.PtxasReport:
        (self._folder / "keep").mkdir()
        argv = (
            *("-c", *BASE, *prepared.options),
            *("--keep", "--keep-dir", "keep", TARGET_SOURCE, "-o", "kernel.o"),
        )
        output = self.step("nvcc", (self._builder.tool("nvcc"), *argv))
        fatal = log.fatal_remark(output)
        if fatal:
            raise CompileFailed(f"ptxas: {fatal}", log=output)
        report = log.read_ptxas(output)
        if prepared.smem_dynamic is not None:
            report.resources["smem_dynamic"] = prepared.smem_dynamic
        return report

    def _check_object(self, prepared: Prepared) -> objects.Symbols:
        output = self.step("nm", (self._builder.tool("nm"), "-P", "kernel.o"), keep=False)
        symbols = objects.read_symbols(output)
        problems = objects.symbol_problems(symbols, prepared.entry)
        if problems:
            raise CompileFailed(
                f"the object may not be linked: {problems[0]}", log="\n".join(problems)
            )
        return symbols

    def _link(self, prepared: Prepared) -> None:
        nvcc = self._builder.tool("nvcc")
        files.copy_plain(self._harness.bench, self._folder / "bench.o")
        self._commands.append(shlex.join(bench_command(nvcc, "bench.o")))
        parts = ("bench.o", *prepared.extra, "kernel.o")
        self.step("link", (nvcc, GENCODE, *parts, "-o", "bench"))


def bench_command(nvcc: str, target: str) -> tuple[str, ...]:
    """Command that compiles our bench program's own part."""
    return (nvcc, "-c", *BASE, str(_HARNESS / "bench.cu"), "-o", target)


class _workshop:  # noqa: N801 - used like a function
    """A private folder that goes away, whatever happens."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="build-", dir=parent))

    def __enter__(self) -> Path:
        return self._folder

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def tree_hash(folder: Path, *, content: bool) -> str:
    """Identity of the files below a folder: names with contents, or names with sizes."""
    parts: list[Any] = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        fact = sha256(path.read_bytes()) if content else path.stat().st_size
        parts.append([str(path.relative_to(folder)), fact])
    return sha256(json.dumps(parts))
