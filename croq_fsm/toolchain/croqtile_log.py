"""Reading compiler output: registers, spills, shared memory, remarks, and whose fault it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from croq_fsm.errors import (
    CandidateError,
    CompileFailed,
    CompilerCrashed,
    CompileTimeout,
    EnvironmentMissing,
)
from croq_fsm.toolchain.process import Completed, Ending

_PROPERTIES: Final = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_USED: Final = re.compile(r"Used (\d+) registers(?:, used (\d+) barriers)?(?:, (\d+) bytes smem)?")
_REMARK: Final = re.compile(r"^ptxas (?:info|warning)\s*: \((C\d{4})\) (.*)$", re.MULTILINE)
_FATAL_REMARK: Final = re.compile(r"\bC7602\b|insufficient register", re.IGNORECASE)
_IN_FUNCTION: Final = re.compile(r" in (?:function|around line|the function) .*$")
_DYNAMIC_SMEM: Final = re.compile(r"MaxDynamicSharedMemorySize is set to `(\d+)` bytes")
#: Texts that speak of the installation, whatever the candidate holds.
_ENVIRONMENT: Final = (
    re.compile(
        r"fatal error: (?:choreo|choreo_\w+|cute/\S+|cutlass/\S+|cuda\w*)\.(?:h|hpp): No such"
    ),
    re.compile(r"undefined reference to [`'](?:__)?cu(?:da|Tensor|Get|Init)\w*'"),
    re.compile(r"cannot find -lcud\w+"),
    re.compile(r"nvcc fatal\s*: +(?:Unsupported gpu architecture|Cannot find compiler)"),
    re.compile(r"No space left on device"),
)
_SIGABRT_STATUS: Final = 134
_FIRST_SIGNAL_STATUS: Final = 129
_MAX_MESSAGE: Final = 300


@dataclass(frozen=True)
class PtxasReport:
    """What ptxas says about the kernels of one object.

    Attributes:
        resources: ``registers``, ``spill_bytes``, ``stack_bytes``, ``smem_static``,
            ``barriers``: the largest over all kernels.
        remarks: ``C7519 x3: text`` for each kind of remark, without positions.
    """

    resources: dict[str, int]
    remarks: tuple[str, ...]


def read_ptxas(log: str) -> PtxasReport:
    """Read the output of ``nvcc -Xptxas -v``. What is not said is absent, never 0."""
    resources: dict[str, int] = {}
    for match in _PROPERTIES.finditer(log):
        _raise_to(resources, "stack_bytes", int(match[1]))
        _raise_to(resources, "spill_bytes", int(match[2]) + int(match[3]))
    for match in _USED.finditer(log):
        _raise_to(resources, "registers", int(match[1]))
        _raise_to(resources, "barriers", int(match[2] or 0))
        _raise_to(resources, "smem_static", int(match[3] or 0))
    return PtxasReport(resources=resources, remarks=_remarks(log))


def read_dynamic_smem(choreo_log: str) -> int | None:
    """Dynamic shared memory of the kernel in bytes, where the Choreo compiler states it."""
    sizes = [int(size) for size in _DYNAMIC_SMEM.findall(choreo_log)]
    return max(sizes, default=None)


def compile_error(tool: str, completed: Completed) -> CandidateError | EnvironmentMissing:
    """The error that a failed compiler run means.

    Args:
        tool: ``choreo``, ``nvcc`` or ``link``.
        completed: The run; not ok.
    """
    log = completed.output
    if completed.ending is Ending.DEADLINE:
        return CompileTimeout(f"{tool} did not end within {completed.seconds:.0f} s", log=log)
    if any(pattern.search(log) for pattern in _ENVIRONMENT):
        return EnvironmentMissing(f"{tool}: {_first_error(log)}; the installation is incomplete")
    code = completed.returncode
    if completed.ending is Ending.SIGNALLED or code == _SIGABRT_STATUS:
        return CompilerCrashed(f"{tool} itself crashed (status {code})", log=log)
    if code is not None and code >= _FIRST_SIGNAL_STATUS:
        return CompilerCrashed(f"{tool} itself crashed (status {code})", log=log)
    return CompileFailed(f"{tool}: {_first_error(log)}", log=log)


def fatal_remark(log: str) -> str:
    """A ptxas remark that makes the kernel unusable though nvcc may go on; "" if none."""
    return next((line.strip() for line in log.splitlines() if _FATAL_REMARK.search(line)), "")


def _raise_to(resources: dict[str, int], name: str, value: int) -> None:
    resources[name] = max(resources.get(name, 0), value)


def _remarks(log: str) -> tuple[str, ...]:
    counts: dict[tuple[str, str], int] = {}
    for match in _REMARK.finditer(log):
        key = (match[1], _IN_FUNCTION.sub("", match[2]).strip())
        counts[key] = counts.get(key, 0) + 1
    return tuple(f"{code} x{count}: {text}" for (code, text), count in sorted(counts.items()))


def _first_error(log: str) -> str:
    """The first line that speaks of an error, without its path."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if re.search(r"\berror\b|fatal|undefined|assert", line, re.IGNORECASE)
    ]
    chosen = (telling or lines[-1:] or ["no output"])[0]
    return re.sub(r"^(?:/[^\s:(]+/)", "", chosen)[:_MAX_MESSAGE]
