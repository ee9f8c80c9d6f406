"""Programs of DSL ``c`` with a host part of their own: one call of the compiler."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Final

from croq_fsm.config import Config
from croq_fsm.domain import own_host
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.source import normalise, sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompileFailed
from croq_fsm.sandbox import files
from croq_fsm.toolchain import c_rules
from croq_fsm.toolchain.build_cache import BuildCache
from croq_fsm.toolchain.c_compile import CCompile

#: What no kernel has a need of: it would reach the host part's clock, check or memory.
_FORBIDDEN: Final = re.compile(
    r"\b(asm|__asm__|__asm|syscall|clock|clock_gettime|gettimeofday|time|getenv|setenv|system|"
    r"dlsym|dlopen|mmap|mprotect|fork|signal|sigaction|longjmp|atexit|fopen|open|read|write)\s*\(|"
    r"\b(constructor|destructor|ifunc|alias|section)\b"
)
#: A variable that outlives a call, in which an answer could be remembered.
_REMEMBERS: Final = re.compile(r"[{;][^(){};]*\b(static|_Thread_local|__thread)\b(?!\s+const\b)")
_LITERAL: Final = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")


class CMaker:
    """Implements ``own_host.Maker``.

    Args:
        compile_: The compiler.
        config: Base flags, threads.
        cache: Where results are kept.
        machine: Identity of the CPU.
    """

    dsl = "c"

    def __init__(self, compile_: CCompile, config: Config, cache: BuildCache, machine: str) -> None:
        self._compile = compile_
        self._config = config
        self._cache = cache
        self._machine = machine

    def flag_problems(self, candidate: Candidate) -> list[str]:
        """See ``Maker.flag_problems``."""
        return c_rules.flag_problems(candidate.flags, self._config.c.threads)

    def build(self, candidate: Candidate, task: Task) -> Build:
        """See ``Maker.build``."""
        kernel = own_host.split(candidate.source, "c", task.operator).kernel
        _check(_LITERAL.sub('""', kernel))
        argv = self._command(candidate)
        key = self._key(candidate, argv)
        known = self._cache.meta(key)
        if known is not None:
            return Build(**known["build"]).model_copy(update={"cached": True, "seconds": 0.0})
        return self._fresh(candidate, argv, key)

    def _command(self, candidate: Candidate) -> tuple[str, ...]:
        openmp = ("-fopenmp",) if self._config.c.threads > 1 else ()
        base = (self._compile.compiler.path, *self._config.c.flags, *candidate.flags, *openmp)
        return (*base, "kernel.c", "-o", "program", "-lm")

    def _key(self, candidate: Candidate, argv: tuple[str, ...]) -> str:
        parts = {
            "recipe": "own host 1",
            "candidate": candidate.model_dump(mode="json"),
            "command": argv,
            "compiler": self._compile.compiler.version,
            "machine": self._machine,
        }
        return sha256(json.dumps(parts, sort_keys=True))

    def _fresh(self, candidate: Candidate, argv: tuple[str, ...], key: str) -> Build:
        with self._compile.folder() as cwd:
            (cwd / "kernel.c").write_text(candidate.source, encoding="utf-8")
            done = self._compile.program(argv, cwd, "program")
            program = files.read_bytes(cwd, "program", error=CompileFailed)
            compiler = self._compile.compiler
            build = Build(
                key=key,
                binary=f"{key}/program",
                binary_sha256=sha256(program),
                device_code=sha256(f"{normalise(candidate.source)}\0{shlex.join(argv)}"),
                log=f"{key}/build.txt",
                commands=(shlex.join(argv),),
                compilers={compiler.kind: compiler.version},
                sandbox=self._compile.sandbox,
                seconds=done.seconds,
            )
            kept: dict[str, Path | bytes] = {"program": cwd / "program"}
            kept["kernel.c"] = candidate.source.encode()
            kept["build.txt"] = f"$ {shlex.join(argv)}\n{done.output}".encode()
            self._cache.put(key, kept, {"build": build.model_dump(mode="json")})
        return build


def _check(kernel: str) -> None:
    """Raises CompileFailed for what would fool a host part in the same process."""
    if found := _FORBIDDEN.search(kernel):
        word = found[1] or found[2]
        raise CompileFailed(f"`{word}` is forbidden in a kernel: it reaches the host part")
    if found := _REMEMBERS.search(kernel):
        raise CompileFailed(f"`{found[1]}` is forbidden in a kernel: it keeps state between calls")
