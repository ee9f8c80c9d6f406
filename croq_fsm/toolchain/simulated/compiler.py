"""The modelled compilers: what they refuse, in the words of the real ones, and what they report.

Choreo's messages have the form ``file:line.column: error: text`` with a closing count; ptxas
lists registers, spills and remarks. The logs go through the readers of the real toolchain.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Final

from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.source import normalised_hash, sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompileFailed
from croq_fsm.toolchain import croqtile_generated as generated
from croq_fsm.toolchain import croqtile_log as log
from croq_fsm.toolchain.croqtile_flags import split_flags
from croq_fsm.toolchain.process import Completed, Ending
from croq_fsm.toolchain.simulated import model
from croq_fsm.toolchain.simulated.device import COMPILERS, OPTIONS
from croq_fsm.toolchain.simulated.faults import Faults
from croq_fsm.toolchain.simulated.features import Features, features

BANNER: Final = "SIMULATED: made by a model of the compilers, never compiled"
SOURCE: Final = "kernel.cu"
_SHARED_MARGIN: Final = 1_024
_WGMMA_M, _WGMMA_STEP, _WGMMA_MAX = 64, 8, 256
_BOX_MAX, _COPY_STEP = 256, 16
#: Seconds: Choreo, nvcc at least, and nvcc per column of an unusual width.
_CHOREO_S, _NVCC_S, _WIDTH_S = 0.05, 11.0, 0.03
_PLAIN_WIDTHS: Final = frozenset({64, 96, 128, 192, 256})
_ENTRY: Final = re.compile(r"__co__\s+void\s+(\w+)\s*\(")


@dataclass(frozen=True)
class Compiled:
    """Result of a modelled build.

    Attributes:
        build: As the engine keeps it.
        files: Name → content, for the cache.
        features: What the kernel is.
    """

    build: Build
    files: dict[str, bytes]
    features: Features


def compile_candidate(
    key: str, candidate: Candidate, task: Task, faults: Faults, deadline_s: float
) -> Compiled:
    """Build a candidate; simulated time passes.

    Raises:
        CompileFailed, CompilerCrashed, CompileTimeout: As for a real compiler.
    """
    flags = split_flags(candidate.flags, OPTIONS)
    identity = normalised_hash(candidate.source, candidate.flags)
    _injected(identity, candidate.source, faults, deadline_s)
    f = features(candidate)
    _choreo(candidate, task, f, faults)
    if f is None:  # refused above
        raise CompileFailed("choreo: the kernel cannot be read")
    text = generated.prepare(_target(task, f, identity), candidate.patches, task).text
    faults.clock.advance(_seconds(f))
    output = _ptxas(task, f)
    fatal = log.fatal_remark(output)
    if fatal:
        raise CompileFailed(f"ptxas: {fatal}", log=output)
    report = log.read_ptxas(output)
    report.resources["smem_dynamic"] = f.shared_bytes
    code = sha256(json.dumps([identity, [p.model_dump() for p in candidate.patches]]))
    binary = f"{BANNER}\n{json.dumps(asdict(f), sort_keys=True)}\n{code}\n".encode()
    build = Build(
        key=key,
        binary=f"{key}/bench",
        binary_sha256=sha256(binary),
        device_code=code,
        generated=f"{key}/{SOURCE}",
        log=f"{key}/build.log",
        commands=(f"echo '{BANNER}' && exit 1",),
        compilers=dict(COMPILERS),
        harness="SIMULATED",
        remarks=report.remarks,
        resources=report.resources,
        seconds=_seconds(f),
    )
    lines = [BANNER, f"$ choreo -es -t cute {' '.join(flags.choreo)}", _shared_note(f), output]
    files = {
        "bench": binary,
        SOURCE: text.encode(),
        "build.log": "\n".join(lines).encode(),
    }
    return Compiled(build, files, f)


def _injected(identity: str, source: str, faults: Faults, deadline_s: float) -> None:
    """Failures that come from nowhere."""
    if faults.hits("compiler_hang", identity, source):
        faults.clock.advance(deadline_s)
        raise log.compile_error("nvcc", Completed(Ending.DEADLINE, None, "", "", deadline_s))
    if faults.hits("compiler_abort", identity, source):
        faults.clock.advance(_CHOREO_S)
        told = "choreo: shapeinfer.hpp:69: Assertion `sym' failed.\nAborted (core dumped)\n"
        raise log.compile_error("choreo", Completed(Ending.EXITED, 134, "", told, _CHOREO_S))
    if faults.hits("compile_fail", identity, source):
        raise _refusal(source, ["syntax error, unexpected <"], faults)


def _choreo(candidate: Candidate, task: Task, f: Features | None, faults: Faults) -> None:
    """Static limits, each in the words of the compiler."""
    source = candidate.source
    entry = _ENTRY.search(source)
    problems: list[str] = []
    if source.count("{") != source.count("}"):
        problems.append("syntax error, unexpected end of file")
    if entry is None or entry[1] != task.operator:
        problems.append(f"no function named '{task.operator}' to export")
    elif f is None:
        problems.append("the operands of mma are no tiles in shared memory")
    else:
        problems += _limits(candidate, f)
    if problems:
        raise _refusal(source, problems, faults)
    faults.clock.advance(_CHOREO_S)


def _limits(candidate: Candidate, f: Features) -> list[str]:
    found = []
    room = model.SHARED_LIMIT - _SHARED_MARGIN
    if f.shared_bytes > room and "choreo:--mem-reuse" not in candidate.flags:
        found.append("shared memory OUT OF BOUND!")
    if f.tile_n % _WGMMA_STEP or not 0 < f.tile_n <= _WGMMA_MAX:
        found.append(f"unsupported MMA shape: 64x{f.tile_n}x16")
    if f.tile_m % _WGMMA_M:
        found.append(f"unsupported MMA operand of {f.tile_m} rows")
    if max(f.tile_m, f.tile_n) > _BOX_MAX or f.tile_k * f.element % _COPY_STEP:
        found.append("the box of a TMA copy is out of its limits")
    if f.threads > 1024:  # noqa: PLR2004 - of a block
        found.append(f"{f.threads} threads are more than a block can have")
    return found


def _refusal(source: str, problems: list[str], faults: Faults) -> Exception:
    """What Choreo prints, as the error that a failed run means."""
    faults.clock.advance(_CHOREO_S)
    line = 1 + source[: source.find("__co__")].count("\n") if "__co__" in source else 1
    told = [f"kernel.co:{line + i}.1: error: {text}" for i, text in enumerate(problems)]
    told.append(f"Totally {len(problems)} errors have been detected.")
    run = Completed(Ending.EXITED, 1, "", "\n".join(told) + "\n", _CHOREO_S)
    return log.compile_error("choreo", run)


def _seconds(f: Features) -> float:
    unusual = 0.0 if f.tile_n in _PLAIN_WIDTHS else _WIDTH_S * f.tile_n
    return _CHOREO_S + _NVCC_S + unusual


def _ptxas(task: Task, f: Features) -> str:
    """What ``nvcc -Xptxas=-v`` prints."""
    name = f"__choreo_device_{task.operator}"
    stack = model.spills(f)
    lines = [
        f"ptxas info    : Compiling entry function '{name}' for 'sm_90a'",
        f"ptxas info    : Function properties for {name}",
        f"    {stack} bytes stack frame, {stack} bytes spill stores, {stack} bytes spill loads",
        f"ptxas info    : Used {model.registers(f)} registers, used {f.consumers + 1} barriers",
    ]
    one_sum = _WGMMA_M * f.tile_n * f.accumulate // (4 * 128)
    entry = min(255, model.REGISTERS // f.threads // 8 * 8)
    if one_sum + 26 > (f.cap or entry):
        lines.append(
            "ptxas error   : (C7602) Insufficient registers for wgmma.mma_async instructions in "
            f"function '{name}'"
        )
    elif f.ctas == 0:
        lines.append(
            "ptxas info    : (C7519) Potential Performance Loss: 'warpgroup.arrive' was injected "
            f"in around line 1 by compiler to allow use of registers in GMMA in function '{name}'"
        )
    return "\n".join(lines) + "\n"


def _shared_note(f: Features) -> str:
    return f"MaxDynamicSharedMemorySize is set to `{f.shared_bytes}` bytes"


def _target(task: Task, f: Features, identity: str) -> str:
    """A target source with the places that patches know, and nothing that could run."""
    maps = "\n".join(
        f"  encode(__choreo_tma_{i}_elem_strides,\n"
        f"         interleave_none,\n         CU_TENSOR_MAP_L2_PROMOTION_L2_128B);"
        for i in range(2)
    )
    numbers = ", ".join(f"{name} {value}" for name, value in asdict(f).items())
    return (
        f"// {BANNER}\n// {numbers}\n// {identity}\n"
        f"__global__ void __choreo_device_{task.operator}() {{\n"
        "  auto __choreo_vg4id_x = threadIdx.x / 128;\n}\n"
        f"void {task.operator}() {{\n{maps}\n}}\n"
    )
