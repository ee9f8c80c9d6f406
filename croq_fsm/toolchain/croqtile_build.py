"""Building: ``.co`` → ``.cu`` → object → program, each step a child with a deadline.

The object of the candidate is checked before it is linked with our bench program. Results go
to the build cache; its key covers everything that the result depends on.
"""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from croq_fsm.config import Config
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.source import sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompileFailed
from croq_fsm.toolchain import croqtile_generated as generated
from croq_fsm.toolchain import croqtile_log as log
from croq_fsm.toolchain import croqtile_object as objects
from croq_fsm.toolchain.build_cache import BuildCache
from croq_fsm.toolchain.croqtile_flags import Flags, split_flags
from croq_fsm.toolchain.croqtile_probe import Probe
from croq_fsm.toolchain.croqtile_tools import Tools
from croq_fsm.toolchain.process import Command, Limits, Runner

#: Raised whenever the steps below change in a way that changes their result.
_RECIPE: Final = "1"
_HARNESS: Final = Path(__file__).resolve().parent.parent / "measure" / "cuda"
_GENCODE: Final = "-gencode=arch=compute_90a,code=sm_90a"
_BASE: Final = (_GENCODE, "-std=c++17", "-O3")
_CANDIDATE: Final = (
    "-D__CHOREO_TARGET_CUTE__",
    "-D__USE_CUDA_TYPE__",
    "-DCUTLASS_ENABLE_TENSOR_CORE_MMA=1",
    "--expt-relaxed-constexpr",
    "-diag-suppress=177,20054",
    "-Xptxas=-v",
)
#: Options that make a file without a program of its own, where the compiler knows them.
_CHOREO_ALWAYS: Final = ("--suppress-main", "--disable-cuda-runtime-env-check")
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


class Builder:
    """Builds candidates and the harness.

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

    @cached_property
    def options(self) -> frozenset[str]:
        """Options that the Choreo compiler knows."""
        return self._probe.options()

    @cached_property
    def compilers(self) -> dict[str, str]:
        """Name → version of what takes part in a build."""
        choreo = self._tools.need("choreo")
        versions = {
            "choreo": f"{self._tools.choreo_version} sha256:{sha256(choreo.read_bytes())[:16]}",
            "nvcc": self._probe.nvcc_version(),
            "cutlass": self._probe.cutlass_version(),
        }
        return {name: version.strip() for name, version in versions.items()}

    @cached_property
    def harness_hash(self) -> str:
        """Identity of our host programs: the content of their sources."""
        return _tree_hash(_HARNESS, content=True)

    def key(self, candidate: Candidate, task: Task) -> str:
        """Content address of a build."""
        identity = {
            "recipe": _RECIPE,
            "candidate": candidate.model_dump(mode="json"),
            "glue": generated.glue(task),
            "arch": self._config.croqtile.arch,
            "compilers": self.compilers,
            "headers": self._headers,
            "harness": self.harness_hash,
        }
        return sha256(json.dumps(identity, sort_keys=True))

    def build(self, candidate: Candidate, task: Task) -> Build:
        """See ``Workbench.build``."""
        key = self.key(candidate, task)
        stored = self._cache.meta(key)
        if stored is not None:
            build = Build.model_validate(stored["build"])
            return build.model_copy(update={"cached": True, "seconds": 0.0})
        flags = split_flags(candidate.flags, self.options)
        harness = self.harness()
        with _workshop(self._work) as folder:
            job = _Job(self, folder, flags, harness)
            build, files = job.run(key, candidate, task)
            self._cache.put(key, files, {"build": build.model_dump(mode="json")})
        return build

    def harness(self) -> Harness:
        """Our programs; built when the cache does not hold them.

        Raises:
            EnvironmentMissing: They cannot be built: the toolkit is absent or broken.
        """
        identity = [_RECIPE, self.harness_hash, self.compilers["nvcc"], *_BASE]
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
        )
        completed = self._runner.run(command)
        if not completed.ok:
            raise log.compile_error(label, completed)
        self.spent += completed.seconds
        return completed.output

    #: Wall seconds of all compiler runs so far.
    spent: float = 0.0

    @cached_property
    def _headers(self) -> dict[str, str]:
        """Identity of the headers: content of the small ones, names and sizes of the many."""
        return {
            "choreo": _tree_hash(self._tools.need("choreo_headers"), content=True),
            "cute": _tree_hash(self._tools.need("cute_headers"), content=False),
        }

    def _build_harness(self, key: str) -> Path:
        nvcc = str(self._tools.need("nvcc"))
        with _workshop(self._work) as folder:
            bench, judge = str(folder / "bench.o"), str(folder / "judge")
            steps = (
                bench_command(nvcc, bench),
                (nvcc, *_BASE, str(_HARNESS / "judge.cu"), "-o", judge, "-ldl"),
            )
            for argv in steps:
                self.compile("nvcc", argv, folder, untrusted=False)
            files: dict[str, Path | bytes] = {"bench.o": Path(bench), "judge": Path(judge)}
            return self._cache.put(key, files, {"harness": self.harness_hash})

    def includes(self) -> tuple[str, ...]:
        """Include folders of a candidate; nothing else is on its path."""
        return tuple(f"-I{self._tools.need(name)}" for name in ("choreo_headers", "cute_headers"))

    def tool(self, name: str) -> str:
        """Path of a tool as text. Raises EnvironmentMissing."""
        return str(self._tools.need(name))


class _Job:
    """The steps of one candidate's build, in its own folder."""

    def __init__(self, builder: Builder, folder: Path, flags: Flags, harness: Harness) -> None:
        self._builder = builder
        self._folder = folder
        self._flags = flags
        self._harness = harness
        self._log: list[str] = []
        self._commands: list[str] = []
        self._before = builder.spent

    def run(
        self, key: str, candidate: Candidate, task: Task
    ) -> tuple[Build, dict[str, Path | bytes]]:
        """All steps; the build and the files that belong in the cache."""
        prepared = self._generate(candidate, task)
        report = self._compile(prepared)
        self._check_object()
        self._link()
        cubin = (self._folder / "keep" / "kernel.cubin").read_bytes()
        binary = self._folder / "bench"
        build = Build(
            key=key,
            binary=f"{key}/bench",
            binary_sha256=sha256(binary.read_bytes()),
            device_code=objects.device_code(cubin, generated.host_identity(prepared.text)),
            generated=f"{key}/kernel.cu",
            log=f"{key}/build.log",
            commands=tuple(self._commands),
            compilers=self._builder.compilers,
            harness=self._builder.harness_hash,
            remarks=report.remarks,
            resources=report.resources,
            seconds=self._builder.spent - self._before,
        )
        files: dict[str, Path | bytes] = {
            "bench": binary,
            "kernel.cu": prepared.text.encode(),
            "kernel.cubin": cubin,
            "kernels.json": json.dumps(prepared.kernels).encode(),
            "build.log": "\n".join(self._log).encode()[:_GIT_SAFE_LOG],
        }
        return build, files

    def _generate(self, candidate: Candidate, task: Task) -> generated.Generated:
        (self._folder / "kernel.co").write_text(candidate.source, encoding="utf-8")
        always = (o for o in _CHOREO_ALWAYS if o in self._builder.options)
        arch = f"-arch={self._builder._config.croqtile.arch}"  # noqa: SLF001 - same module
        argv = (
            "-es",
            "-t",
            "cute",
            arch,
            *always,
            *self._flags.choreo,
            "kernel.co",
            "-o",
            "raw.cu",
        )
        output = self._step("choreo", (self._builder.tool("choreo"), *argv))
        raw = self._folder / "raw.cu"
        if not raw.is_file():
            raise CompileFailed("choreo wrote no target source", log=output)
        text = raw.read_text(encoding="utf-8", errors="replace")
        prepared = generated.prepare(text, candidate.patches, task)
        self._log += [f"harness: {note}" for note in prepared.notes]
        self._log += [f"harness: applied {len(candidate.patches)} patch(es)"]
        (self._folder / "kernel.cu").write_text(prepared.text, encoding="utf-8")
        self._dynamic = log.read_dynamic_smem(output)
        return prepared

    _dynamic: int | None = None

    def _compile(self, prepared: generated.Generated) -> log.PtxasReport:
        (self._folder / "keep").mkdir()
        extended = (generated.EXTENDED_SHAPES,) if prepared.extended else ()
        argv = (
            *("-c", *_BASE, *_CANDIDATE, *extended, *self._flags.nvcc, *self._builder.includes()),
            *("--keep", "--keep-dir", "keep", "kernel.cu", "-o", "kernel.o"),
        )
        output = self._step("nvcc", (self._builder.tool("nvcc"), *argv))
        fatal = log.fatal_remark(output)
        if fatal:
            raise CompileFailed(f"ptxas: {fatal}", log=output)
        report = log.read_ptxas(output)
        if self._dynamic is not None:
            report.resources["smem_dynamic"] = self._dynamic
        return report

    def _check_object(self) -> None:
        output = self._step("nm", (self._builder.tool("nm"), "-P", "kernel.o"), keep=False)
        problems = objects.symbol_problems(objects.read_symbols(output))
        if problems:
            raise CompileFailed(
                f"the object may not be linked: {problems[0]}", log="\n".join(problems)
            )

    def _link(self) -> None:
        nvcc = self._builder.tool("nvcc")
        shutil.copy(self._harness.bench, self._folder / "bench.o")
        self._commands.append(shlex.join(bench_command(nvcc, "bench.o")))
        self._step("link", (nvcc, _GENCODE, "bench.o", "kernel.o", "-o", "bench"))

    def _step(self, label: str, argv: tuple[str, ...], *, keep: bool = True) -> str:
        output = self._builder.compile(label, argv, self._folder, untrusted=True)
        if keep:
            line = shlex.join(argv)
            self._commands.append(line)
            self._log += [f"$ {line}", output]
        return output


def bench_command(nvcc: str, target: str) -> tuple[str, ...]:
    """Command that compiles our bench program's own part."""
    return (nvcc, "-c", *_BASE, str(_HARNESS / "bench.cu"), "-o", target)


class _workshop:  # noqa: N801 - used like a function
    """A private folder that goes away, whatever happens."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="build-", dir=parent))

    def __enter__(self) -> Path:
        return self._folder

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _tree_hash(folder: Path, *, content: bool) -> str:
    """Identity of the files below a folder: names with contents, or names with sizes."""
    parts: list[Any] = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        fact = sha256(path.read_bytes()) if content else path.stat().st_size
        parts.append([str(path.relative_to(folder)), fact])
    return sha256(json.dumps(parts))
