"""Findings about what DSL ``c`` needs from this machine."""

from __future__ import annotations

import ctypes
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from croq_fsm.domain.device import Finding
from croq_fsm.errors import EnvironmentMissing
from croq_fsm.toolchain.c_compile import CCompile
from croq_fsm.toolchain.c_sources import KERNELS
from croq_fsm.toolchain.process import Command, Runner

_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_VERSION: Final = 1
_PARANOID: Final = Path("/proc/sys/kernel/perf_event_paranoid")
_USER_ONLY: Final = 2
_SECCOMP: Final = Path("/proc/sys/kernel/seccomp/actions_avail")


def findings(runner: Runner, compile_: CCompile, probe_s: float) -> list[Finding]:
    """One line per tool; never raises."""
    return [
        _compiler(compile_),
        _tool(runner, compile_, probe_s, "objcopy", "kernels with several exported functions"),
        _tool(runner, compile_, probe_s, "git", "commits of KEEPs"),
        _sanitizers(compile_),
        _blas(),
        _counters(),
        _seccomp(),
        _landlock(),
    ]


def blas_name() -> str:
    """Name and version of the BLAS that NumPy was built with, or ""."""
    try:
        told = np.show_config(mode="dicts")
        blas = told["Build Dependencies"]["blas"]
        return f"{blas['name']} {blas.get('version', '')}".strip()
    except (KeyError, TypeError, AttributeError):
        return ""


def _compiler(compile_: CCompile) -> Finding:
    try:
        found = compile_.compiler
    except EnvironmentMissing as exc:
        return Finding(
            name="C compiler",
            ok=False,
            forbids="everything in DSL c",
            cure=str(exc),
        )
    return Finding(name="C compiler", ok=True, found=f"{found.version} ({found.path})")


def _tool(runner: Runner, compile_: CCompile, probe_s: float, name: str, forbids: str) -> Finding:
    """An optional program, by running it."""
    try:
        with compile_.folder() as cwd:
            done = runner.run(Command((name, "--version"), cwd, probe_s, name))
        told, ok = done.stdout.split("\n", 1)[0].strip(), done.ok
    except EnvironmentMissing as exc:
        told, ok = str(exc), False
    if ok:
        return Finding(name=name, ok=True, found=told, required=False)
    cure = f"install {'binutils' if name == 'objcopy' else name}"
    return Finding(name=name, ok=False, found=told, forbids=forbids, cure=cure, required=False)


def _sanitizers(compile_: CCompile) -> Finding:
    try:
        compile_.need_sanitizers()
    except EnvironmentMissing as exc:
        return Finding(
            name="sanitizers",
            ok=False,
            found=str(exc)[:200],
            forbids="looking for bad accesses and undefined behaviour before a KEEP",
            cure="install the compiler's libasan and libubsan",
            required=False,
        )
    return Finding(name="sanitizers", ok=True, found="ASan and UBSan", required=False)


def _blas() -> Finding:
    name = blas_name()
    if name and name not in ("none", "lapack_lite"):
        return Finding(name="BLAS", ok=True, found=f"{name} through NumPy {np.__version__}")
    return Finding(
        name="BLAS",
        ok=False,
        found=f"NumPy {np.__version__} without an optimised BLAS",
        forbids="a fast library reference for matmul",
        cure="install a NumPy wheel that carries OpenBLAS",
        required=False,
    )


def _counters() -> Finding:
    """Whether hardware counters may be read; the CPU must have some, too."""
    perf = shutil.which("perf") or "not needed"
    try:
        level = int(_PARANOID.read_text(encoding="ascii"))
    except (OSError, ValueError):
        level = _USER_ONLY + 1
    if level <= _USER_ONLY:
        return Finding(
            name="counters",
            ok=True,
            found=f"perf_event_paranoid {level}, perf {perf}",
            required=False,
        )
    return Finding(
        name="counters",
        ok=False,
        found=f"perf_event_paranoid {level}",
        forbids="cycles, instructions and cache misses in profiles",
        cure="let the administrator set kernel.perf_event_paranoid to 2 or lower",
        required=False,
    )


def _seccomp() -> Finding:
    known = platform.machine() in ("x86_64", "aarch64") and _SECCOMP.exists()
    return Finding(
        name="seccomp",
        ok=known,
        found="filters" if known else platform.machine(),
        forbids="" if known else "taking system calls away from kernels under test",
        cure="" if known else "a kernel with CONFIG_SECCOMP_FILTER on x86_64 or aarch64",
        required=False,
    )


def _landlock() -> Finding:
    """ABI version of Landlock, by asking the kernel."""
    syscall: Callable[..., int] = ctypes.CDLL(None, use_errno=True).syscall
    version = int(syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION))
    if version > 0:
        return Finding(name="Landlock", ok=True, found=f"ABI {version}", required=False)
    return Finding(
        name="Landlock",
        ok=False,
        forbids="keeping compilers away from other files",
        cure="a kernel from 5.13 on with Landlock switched on",
        required=False,
    )


def shipped_kernels(operator: str) -> list[str]:
    """Names of the kernels that ship for an operator, without suffix."""
    return sorted(path.stem for path in (KERNELS / operator).glob("*.c"))
