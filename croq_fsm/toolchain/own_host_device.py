"""Programs of an NVIDIA device with a host part of their own: Choreo with its main, and CUDA."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.source import normalise, sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompileFailed
from croq_fsm.sandbox import files
from croq_fsm.toolchain import croqtile_build, cuda_rules
from croq_fsm.toolchain import croqtile_log as log
from croq_fsm.toolchain import croqtile_object as objects
from croq_fsm.toolchain.build_cache import BuildCache
from croq_fsm.toolchain.croqtile_flags import flag_problem, split_flags
from croq_fsm.toolchain.device_build import BASE, GENCODE, TARGET_SOURCE, DeviceBuilder

_RECIPE: Final = "own host 1"
_LARGEST_LOG: Final = 1 << 18
_KEEP: Final = ("--keep", "--keep-dir", "keep")
_CUDA: Final = ("--expt-relaxed-constexpr", "--extended-lambda", "-Xptxas=-v")
#: How Choreo names the device part of its functions.
_CHOREO_KERNEL: Final = "__choreo_device_"
#: Libraries that a host part may want, by the names that it leaves undefined.
_LIBRARIES: Final = {
    "-lcuda": re.compile(r"cu[A-Z]\w*"),
    "-lcublas": re.compile(r"cublas(?!Lt)\w*"),
    "-lcublasLt": re.compile(r"cublasLt\w*"),
}


@dataclass(frozen=True)
class Text:
    """A target source.

    Attributes:
        text: All of it.
        options: nvcc's options for it.
        log: What made it said.
        commands: How it was made.
    """

    text: str
    options: tuple[str, ...]
    log: str = ""
    commands: tuple[str, ...] = ()


class DeviceMaker(ABC):
    """Implements ``own_host.Maker``; a DSL says how a target source comes about.

    Args:
        builder: Starts the compilers.
        cache: Where results are kept.
        work: Folder for temporary files.
    """

    dsl: ClassVar[str]

    def __init__(self, builder: DeviceBuilder, cache: BuildCache, work: Path) -> None:
        self._builder = builder
        self._cache = cache
        self._work = work

    @abstractmethod
    def flag_problems(self, candidate: Candidate) -> list[str]:
        """See ``Maker.flag_problems``."""

    @abstractmethod
    def translate(self, candidate: Candidate, folder: Path) -> Text:
        """Make the target source in a folder."""

    def build(self, candidate: Candidate, task: Task) -> Build:
        """See ``Maker.build``."""
        key = self._key(candidate)
        known = self._cache.meta(key)
        if known is not None:
            build = Build.model_validate(known["build"])
            return build.model_copy(update={"cached": True, "seconds": 0.0})
        with self._folder() as folder:
            return self._fresh(candidate, task, key, folder)

    def _key(self, candidate: Candidate) -> str:
        parts = {
            "recipe": _RECIPE,
            "dsl": self.dsl,
            "candidate": candidate.model_dump(mode="json"),
            "options": [*BASE, *_CUDA],
            "compilers": self._builder.compilers,
        }
        return sha256(json.dumps(parts, sort_keys=True))

    def _fresh(self, candidate: Candidate, task: Task, key: str, folder: Path) -> Build:
        before = self._builder.spent
        made = self.translate(candidate, folder)
        files.write_bytes(folder, TARGET_SOURCE, made.text.encode())
        (folder / "keep").mkdir()
        nvcc = self._builder.tool("nvcc")
        compiling = (nvcc, "-c", *BASE, *made.options, *_KEEP, TARGET_SOURCE, "-o", "kernel.o")
        said = self._step("nvcc", compiling, folder)
        symbols = objects.read_symbols(
            self._step("nm", (self._builder.tool("nm"), "-P", "kernel.o"), folder)
        )
        if not symbols.kernels:
            raise CompileFailed("the program holds no device kernel")
        linking = (nvcc, GENCODE, "kernel.o", "-o", "program", *_libraries(symbols))
        linked = self._step("link", linking, folder)
        report = log.read_ptxas(said)
        commands = (*made.commands, shlex.join(compiling), shlex.join(linking))
        cubin = files.read_bytes(folder, "keep/kernel.cubin", error=CompileFailed)
        build = Build(
            key=key,
            binary=f"{key}/program",
            binary_sha256=sha256(files.read_bytes(folder, "program", error=CompileFailed)),
            device_code=objects.device_code(cubin, normalise(made.text)),
            generated=f"{key}/{TARGET_SOURCE}" if made.commands else "",
            log=f"{key}/build.log",
            commands=commands,
            compilers=self._builder.compilers,
            sandbox=self._builder.sandbox,
            remarks=report.remarks,
            resources=report.resources,
            seconds=self._builder.spent - before,
        )
        text = "\n".join([*(f"$ {c}" for c in commands), made.log, said, linked])
        names = _own_kernels(symbols.kernels, task.operator)
        kept: dict[str, Path | bytes] = {
            "program": folder / "program",
            TARGET_SOURCE: made.text.encode(),
            "kernels.json": json.dumps(names).encode(),
            "build.log": text.encode()[:_LARGEST_LOG],
        }
        self._cache.put(key, kept, {"build": build.model_dump(mode="json")})
        return build

    def _step(self, label: str, argv: tuple[str, ...], folder: Path) -> str:
        return self._builder.compile(label, argv, folder, untrusted=True)

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        self._work.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="build-", dir=self._work))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class CudaMaker(DeviceMaker):
    """A ``.cu`` file with a main."""

    dsl = "cuda"

    def flag_problems(self, candidate: Candidate) -> list[str]:
        """See ``Maker.flag_problems``."""
        return list(filter(None, map(cuda_rules.flag_problem, candidate.flags)))

    def translate(self, candidate: Candidate, folder: Path) -> Text:
        """See ``DeviceMaker.translate``: there is nothing to translate."""
        del folder
        flags = (flag.removeprefix("nvcc:") for flag in candidate.flags)
        return Text(candidate.source, (*_CUDA, *flags))


class ChoreoMaker(DeviceMaker):
    """A ``.co`` file whose main Choreo passes on."""

    dsl = "croqtile"

    def __init__(self, builder: croqtile_build.Builder, cache: BuildCache, work: Path) -> None:
        super().__init__(builder, cache, work)
        self._choreo = builder

    def flag_problems(self, candidate: Candidate) -> list[str]:
        """See ``Maker.flag_problems``."""
        if not candidate.flags:
            return []
        known = self._choreo.options
        return list(filter(None, (flag_problem(flag, known) for flag in candidate.flags)))

    def translate(self, candidate: Candidate, folder: Path) -> Text:
        """See ``DeviceMaker.translate``."""
        flags = split_flags(candidate.flags, self._choreo.options)
        (folder / "kernel.co").write_text(candidate.source, encoding="utf-8")
        argv = self._choreo.with_main(flags)
        said = self._step("choreo", argv, folder)
        text = files.read_text(folder, "raw.cu", error=CompileFailed)
        return Text(text, self._choreo.device_options(flags), said, (shlex.join(argv),))


def _libraries(symbols: objects.Symbols) -> Iterator[str]:
    for flag, names in _LIBRARIES.items():
        if any(names.fullmatch(name) for name in symbols.undefined):
            yield flag


def _own_kernels(kernels: tuple[str, ...], operator: str) -> tuple[str, ...]:
    """Those that are tuned: named after the operator, else Choreo's, else all."""
    for part in (operator, _CHOREO_KERNEL):
        found = tuple(name for name in kernels if part in name)
        if found:
            return found
    return kernels
