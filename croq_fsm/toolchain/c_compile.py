"""Compiling C kernels: candidate to an object, rules on the object, link with our harness."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from croq_fsm.config import Config
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.source import sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import (
    CompileFailed,
    CompilerCrashed,
    CompileTimeout,
    EnvironmentMissing,
)
from croq_fsm.sandbox import files
from croq_fsm.toolchain import c_remarks, c_rules, c_sources
from croq_fsm.toolchain.build_cache import BuildCache
from croq_fsm.toolchain.elf import ElfObject
from croq_fsm.toolchain.process import Command, Completed, Ending, Limits, Role, Runner

_NAMES: Final = ("cc", "gcc", "clang")
_MEMORY: Final = 6 << 30
_CRASH: Final = re.compile(
    r"internal compiler error|signal terminated program|PLEASE submit a bug report|"
    r"clang frontend command failed due to signal",
    re.IGNORECASE,
)
_HARNESS_FLAGS: Final = ("-std=gnu11", "-O2")
#: Bytes of an expanded source and of an object.
_LARGEST: Final = 256 << 20
_LOG_CAP: Final = 1 << 18
_SANITIZED: Final = (
    *("-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"),
    "-fno-sanitize-recover=all",
)
#: So that no kernel can put a function of its own, such as a clock, into the table of imports.
_READ_ONLY: Final = ("-Wl,-z,relro,-z,now",)
#: So that the speed of a kernel does not depend on the size of the harness that lies before it:
#: a loop's place in its cache line alone was seen to make a third of its time.
_ALIGNED: Final = "-falign-functions=64"


@dataclass(frozen=True)
class Compiler:
    """The C compiler.

    Attributes:
        path: Absolute path.
        kind: ``gcc`` or ``clang``.
        version: First line of ``--version``.
    """

    path: str
    kind: str
    version: str


class CCompile:
    """Builds kernels and our own small programs with one compiler.

    Args:
        runner: Starts children.
        config: Whole configuration.
        cache: Where results are kept.
        scratch: Folder for temporary folders.
        machine: Identity of the CPU, because ``-march=native`` means another thing elsewhere.
    """

    def __init__(
        self, runner: Runner, config: Config, cache: BuildCache, scratch: Path, machine: str
    ) -> None:
        self._runner = runner
        self._config = config
        self._cache = cache
        self._scratch = scratch
        self._machine = machine

    @cached_property
    def compiler(self) -> Compiler:
        """The compiler of the configuration, or the first of cc, gcc, clang.

        Raises:
            EnvironmentMissing: There is none, or it does not work.
        """
        wanted = self._config.c.compiler
        paths = [shutil.which(name) for name in ((wanted,) if wanted else _NAMES)]
        path = next((found for found in paths if found), None)
        if path is None:
            raise EnvironmentMissing(
                f"no C compiler: {wanted or ', '.join(_NAMES)} not found; install one, or name it "
                "in c.compiler"
            )
        with self.folder() as cwd:
            told = self._probe((path, "--version"), cwd)
            macros = self._probe((path, "-dM", "-E", "-x", "c", "/dev/null"), cwd)
        kind = "clang" if "__clang__" in macros else "gcc"
        return Compiler(path, kind, told.split("\n", 1)[0].strip())

    def known_flags(self, flags: tuple[str, ...]) -> list[str]:
        """Those that the compiler accepts without complaint, in order; by halving, few runs."""
        if not flags:
            return []
        with self.folder() as cwd:
            command = (self.compiler.path, "-Werror", *flags, "-c", "-x", "c", "/dev/null")
            deadline = self._config.deadlines.probe_s
            done = self._runner.run(Command((*command, "-o", "x.o"), cwd, deadline, "cc"))
        if done.ok or len(flags) == 1:
            return list(flags) if done.ok else []
        half = len(flags) // 2
        return self.known_flags(flags[:half]) + self.known_flags(flags[half:])

    def build(self, candidate: Candidate, task: Task) -> Build:
        """See ``Workbench.build``."""
        self._check_before(candidate, task)
        key = self._key(candidate, task)
        known = self._cache.meta(key)
        if known is not None:
            return Build(**known["build"]).model_copy(update={"cached": True, "seconds": 0.0})
        harness = self._own_program(
            c_sources.BENCH,
            (*_HARNESS_FLAGS, c_sources.operator_macro(task.operator), "-c"),
            f"bench-{task.operator}.o",
        )
        with self.folder() as cwd:
            return self._build_fresh(candidate, task, key, harness, cwd)

    def helper(self) -> Path:
        """Shared object by which the judge makes contents and cold data, as the harness does."""
        return self._own_program(
            c_sources.HELPER, (*_HARNESS_FLAGS, "-fPIC", "-shared"), "libhelper.so"
        )

    def need_sanitizers(self) -> None:
        """Raises EnvironmentMissing when the compiler cannot link with its sanitizers."""
        with self.folder() as cwd:
            probe = cwd / "probe.c"
            probe.write_text("int main(void) { return 0; }\n", encoding="utf-8")
            self._probe((self.compiler.path, *_SANITIZED, probe.name, "-o", "probe"), cwd)

    def sanitized(self, candidate: Candidate, task: Task, cwd: Path) -> None:
        """Make ``sanitize`` in a folder: a candidate that has been built before, with sanitizers.

        Raises:
            EnvironmentMissing: The compiler has none.
            CandidateError: This candidate cannot be built with them.
        """
        flags = (*_HARNESS_FLAGS, *_SANITIZED, c_sources.operator_macro(task.operator), "-c")
        program = self._own_program(c_sources.SANITIZE, flags, f"sanitize-{task.operator}.o")
        self.need_sanitizers()
        (cwd / "kernel.c").write_text(candidate.source, encoding="utf-8")
        argv = (*self._common_command(candidate, task), *_SANITIZED)
        self._compile((*argv, "-c", "kernel.c", "-o", "kernel.o"), cwd, cwd / "kernel.o")
        openmp = ("-fopenmp",) if self._config.c.threads > 1 else ()
        parts = ("kernel.o", str(program), *_SANITIZED, *openmp, "-o", "sanitize", "-lm")
        self._link((self.compiler.path, *parts), program, cwd)

    def program(self, argv: tuple[str, ...], cwd: Path, name: str) -> Completed:
        """Compile a whole program of a candidate's; raises like ``build``."""
        return self._compile(argv, cwd, cwd / name)

    @property
    def sandbox(self) -> str:
        """Level of the sandbox that candidates are compiled in."""
        return self._runner.sandbox

    def peaks_program(self, threads: int) -> Path:
        """Program that measures the peaks of this machine."""
        openmp = ("-fopenmp",) if threads > 1 else ("-Wno-unknown-pragmas",)
        return self._own_program(c_sources.PEAKS, ("-O3", "-march=native", *openmp), "peaks")

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A fresh folder that is removed afterwards."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._scratch, ignore_cleanup_errors=True) as name:
            yield Path(name)

    def _check_before(self, candidate: Candidate, task: Task) -> None:
        problems = self.problems(candidate, task)
        if problems:
            raise CompileFailed(problems[0], log="\n".join(problems))

    def problems(self, candidate: Candidate, task: Task) -> list[str]:
        """What is wrong with a candidate before any compile."""
        threads = self._config.c.threads
        problems = c_rules.flag_problems(candidate.flags, threads)
        problems += c_rules.source_problems(candidate.source, task.operator, threads)
        if candidate.patches:
            problems.append("patches of generated code: C has none; edit the source itself")
        return problems

    def _key(self, candidate: Candidate, task: Task) -> str:
        """Everything that a build depends on."""
        parts = {
            "source": candidate.source,
            "flags": candidate.flags,
            "base": self._config.c.flags,
            "compiler": [self.compiler.path, self.compiler.version],
            "harness": c_sources.harness_hash(),
            "operator": task.operator,
            "dtype": task.dtype,
            "threads": self._config.c.threads,
            "machine": self._machine,
        }
        return sha256(json.dumps(parts, sort_keys=True))

    def _build_fresh(
        self, candidate: Candidate, task: Task, key: str, harness: Path, cwd: Path
    ) -> Build:
        source, object_, binary = (cwd / name for name in ("kernel.c", "kernel.o", "bench"))
        source.write_text(candidate.source, encoding="utf-8")
        self._check_expanded(candidate, task, cwd)
        compiling = self._kernel_command(candidate, task)
        completed = self._compile(compiling, cwd, object_)
        found = self._checked_object(object_, task.operator)
        commands = [compiling, *self._localise(found, task.operator, cwd)]
        linking = self._link_command(harness)
        self._link(linking, harness, cwd)
        commands.append(linking)
        notes = cwd / c_remarks.FILE
        noted = files.read_text(cwd, notes.name) if files.is_plain(cwd, notes.name) else ""
        loops = c_remarks.read(completed.stderr + noted)
        log = "".join(f"$ {shlex.join(command)}\n" for command in commands) + completed.output
        build = Build(
            key=key,
            binary=f"{key}/bench",
            binary_sha256=sha256(files.read_bytes(cwd, binary.name, error=CompileFailed)),
            device_code=found.identity(),
            log=f"{key}/build.txt",
            commands=tuple(shlex.join(command) for command in commands),
            compilers={self.compiler.kind: self.compiler.version},
            harness=c_sources.harness_hash(),
            sandbox=self._runner.sandbox,
            remarks=loops.remarks,
            resources={
                "loops_vectorized": loops.vectorized,
                "loops_missed": loops.missed,
                "code_bytes": found.code_bytes,
                "static_bytes": found.static_bytes,
            },
            seconds=completed.seconds,
        )
        kept: dict[str, Path | bytes] = {"bench": binary, "kernel.o": object_}
        kept |= {"kernel.c": candidate.source.encode(), "build.txt": log.encode()}
        self._cache.put(key, kept, {"build": build.model_dump(mode="json")})
        return build

    def _check_expanded(self, candidate: Candidate, task: Task, cwd: Path) -> None:
        """Preprocess and look again, before the assembler sees anything."""
        expanded = cwd / "kernel.i"
        argv = (*self._common_command(candidate, task), "-E", "kernel.c", "-o", expanded.name)
        self._compile(argv, cwd, expanded)
        text = files.read_text(cwd, expanded.name, most=_LARGEST, error=CompileFailed)
        problems = c_rules.expanded_problems(text, "kernel.c")
        if problems:
            raise CompileFailed(problems[0], log="\n".join(problems))

    def _kernel_command(self, candidate: Candidate, task: Task) -> tuple[str, ...]:
        common = self._common_command(candidate, task)
        remarks = c_remarks.flags(self.compiler.kind)
        return (*common, *remarks, "-c", "kernel.c", "-o", "kernel.o")

    def _common_command(self, candidate: Candidate, task: Task) -> tuple[str, ...]:
        return (
            self.compiler.path,
            *self._config.c.flags,
            _ALIGNED,
            *candidate.flags,
            "-fdiagnostics-color=never"
            if self.compiler.kind == "gcc"
            else "-fno-color-diagnostics",
            c_sources.operator_macro(task.operator),
            "-include",
            str(c_sources.KERNEL_HEADER),
        )

    def _link_command(self, harness: Path) -> tuple[str, ...]:
        openmp = ("-fopenmp",) if self._config.c.threads > 1 else ()
        parts = ("kernel.o", str(harness), *_READ_ONLY, *openmp, "-o", "bench", "-lm")
        return (self.compiler.path, *parts)

    def _compile(self, argv: tuple[str, ...], cwd: Path, product: Path) -> Completed:
        """Make something of the candidate; every way to fail has its own error."""
        deadline = self._config.deadlines.compile_s
        limits = Limits(cpu_s=int(deadline) + 1, memory_bytes=_MEMORY, file_bytes=_LARGEST)
        command = Command(
            argv,
            cwd,
            deadline,
            "cc",
            output_cap=_LOG_CAP,
            limits=limits,
            untrusted=True,
            role=Role.COMPILE,
        )
        completed = self._runner.run(command)
        if completed.ok and files.is_plain(cwd, product.name):
            return completed
        _explain_failure(completed, deadline)
        raise CompileFailed(_first_error(completed), log=completed.output)

    def _checked_object(self, path: Path, operator: str) -> ElfObject:
        found = ElfObject(
            files.read_bytes(path.parent, path.name, most=_LARGEST, error=CompileFailed)
        )
        problems = c_rules.object_problems(found, operator, self._config.c.threads)
        if problems:
            raise CompileFailed(problems[0], log="\n".join(problems))
        return found

    def _localise(self, found: ElfObject, operator: str, cwd: Path) -> list[tuple[str, ...]]:
        """Hide every exported name but the kernel, so that none can take our harness's place."""
        extra = sorted(found.exported - {operator})
        if not extra:
            return []
        objcopy = shutil.which("objcopy")
        if objcopy is None:
            raise CompileFailed(f"declare `{extra[0]}` static: only `{operator}` may be exported")
        command = (objcopy, f"--keep-global-symbol={operator}", "kernel.o")
        done = self._confined(command, cwd, "objcopy")
        if not done.ok:
            raise EnvironmentMissing(f"objcopy failed: {done.output.strip()[:300]}")
        return [command]

    def _link(self, argv: tuple[str, ...], harness: Path, cwd: Path) -> None:
        done = self._confined(argv, cwd, "ld", reads=(harness,))
        if not done.ok:
            raise CompileFailed(_first_error(done), log=done.output)

    def _confined(
        self, argv: tuple[str, ...], cwd: Path, label: str, reads: tuple[Path, ...] = ()
    ) -> Completed:
        """Run a tool that reads the candidate's object, which may be made to fool it."""
        deadline = self._config.deadlines.compile_s
        return self._runner.run(
            Command(argv, cwd, deadline, label, untrusted=True, role=Role.COMPILE, reads=reads)
        )

    def _own_program(self, source: Path, flags: tuple[str, ...], name: str) -> Path:
        """Compile one of our sources, or take it from the cache. Its failure is no candidate's."""
        parts = [c_sources.harness_hash(), sha256(source.read_bytes()), *flags, name]
        parts += [self.compiler.path, self.compiler.version, self._machine]
        key = sha256("\0".join(parts))
        entry = self._cache.get(key)
        if entry is None:
            with self.folder() as cwd:
                argv = (self.compiler.path, *flags, str(source), "-o", name)
                done = self._runner.run(Command(argv, cwd, self._config.deadlines.compile_s, "cc"))
                if not done.ok:
                    raise EnvironmentMissing(
                        f"{self.compiler.path} cannot compile {source.name}: {_first_error(done)}"
                    )
                entry = self._cache.put(key, {name: cwd / name}, {"source": source.name})
        return entry / name

    def _probe(self, argv: tuple[str, ...], cwd: Path) -> str:
        done = self._runner.run(Command(argv, cwd, self._config.deadlines.probe_s, "cc"))
        if not done.ok:
            raise EnvironmentMissing(f"{argv[0]} does not work: {done.output.strip()[:300]}")
        return done.stdout


def _explain_failure(completed: Completed, deadline: float) -> None:
    """Raise for a compiler that did not end, or that broke down."""
    log = completed.output
    if completed.ending is Ending.DEADLINE or "SIGXCPU" in log or "CPU time limit" in log:
        raise CompileTimeout(f"the compiler did not end within {deadline:g} s", log=log)
    if completed.ending is Ending.FLOODED:
        raise CompileFailed("the compiler flooded its output", log=log)
    if completed.ending is Ending.SIGNALLED or _CRASH.search(log):
        raise CompilerCrashed(f"the compiler crashed: {_first_error(completed)}", log=log)


def _first_error(completed: Completed) -> str:
    """The line that says what is wrong."""
    lines = [line.strip() for line in completed.output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "undefined reference" in line]
    if errors:
        return errors[0][:300]
    return (lines[-1] if lines else f"exit status {completed.returncode}")[:300]
