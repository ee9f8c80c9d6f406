"""What a ``.cu`` candidate may bring: flags, headers, calls; and what it must export.

Each finding is certain. What the text does not show is left to the compiler, to the object's
symbols, which are held against a list before anything is linked, and to verification.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.source import strip_comments
from croq_fsm.domain.task import Task
from croq_fsm.toolchain import croqtile_flags

PATCHES_REFUSED: Final = "a CUDA kernel has no generated source to patch; edit the source itself"

_NVCC: Final = "nvcc:"
_SPLICE: Final = re.compile(r"\\[ \t]*\r?\n")
_INCLUDE: Final = re.compile(r"^[ \t]*(?:#|%:|\?\?=)[ \t]*include\b[ \t]*([^\n]*)", re.MULTILINE)
#: Headers of the toolkit for device code, and of the language.
_HEADERS: Final = re.compile(
    r"<(?:cuda(?:_\w+)?\.h|cuda/\w+|mma\.h|sm_\w+\.h(?:pp)?|vector_types\.h"
    r"|device_launch_parameters\.h|cooperative_groups(?:/\w+)?\.h"
    r"|(?:stdint|stddef|math|float|limits|assert|string)\.h"
    r"|c(?:stdint|stddef|math|float|limits|assert|string)"
    r"|algorithm|array|initializer_list|limits|numeric|tuple|type_traits|utility)>"
)
_FORBIDDEN: Final = {
    r"\bcudaMallocManaged\b|__managed__": "managed memory can hang the device",
    r"\b(?:cudaStream(?!_t\b)|cudaEvent|cudaGraph|cuStream|cuEvent|cuGraph)\w+": (
        "streams and events are the harness's"
    ),
    r"\b(?:cublas|cudnn|cusparse|cufft|curand|nvrtc|nvJitLink)\w*|\b(?:cutlass|cub|thrust)::": (
        "library calls are not tuning"
    ),
    r"\bstd::(?:thread|async|jthread)\b|\bpthread_\w+|\bv?fork\s*\(|\bcudaLaunchHostFunc\b": (
        "a kernel needs no host thread"
    ),
    r"\b(?:dlopen|dlsym|system|popen|exec[lv]\w*|posix_spawnp?|getenv|s?rand|f?open|mmap)\s*\(": (
        "a kernel needs nothing of the system"
    ),
    r"\bsyscall\b|\bsysenter\b|\bint\s+\$?0x80\b": "a kernel needs nothing of the system",
    r"\b(?:con|de)structor\b": "nothing may run before or after the harness asks for it",
    r"\.incbin|\.include|#\s*embed\b": "files cannot be embedded",
    r"\b(?:cudaSetDevice|cudaDeviceReset|cudaDeviceSetLimit|cudaProfiler\w+|cudaIpc\w+)\b": (
        "the device's state is the harness's"
    ),
    r"\bcudaDeviceSynchronize\b": "a launcher queues work and does not wait for it",
    r"\bcroq_candidate\b|\bnamespace\s+croq\b": "this name is the harness's",
    r"#\s*pragma\s+(?!unroll\b|once\b|nv_diag\w*|GCC\s+unroll\b)\w+": "only unroll is allowed",
}


def entry_of(task: Task) -> str:
    """Name of the function that a candidate must export."""
    return f"launch_{task.operator}"


def flag_problem(flag: str) -> str:
    """Why a candidate may not bring this flag; "" when it may."""
    if not flag.startswith(_NVCC):
        return f"flag {flag!r} must begin with 'nvcc:'"
    return croqtile_flags.flag_problem(flag, frozenset())


def lint(candidate: Candidate, task: Task) -> list[str]:
    """Problems of a candidate, each a sentence; empty means that none can be seen.

    Args:
        candidate: Source, flags and patches.
        task: Operator and shape.
    """
    text = strip_comments(_SPLICE.sub("", candidate.source))
    return [
        *_entry(text, task),
        *_includes(text),
        *_forbidden(text),
        *filter(None, map(flag_problem, candidate.flags)),
        *([PATCHES_REFUSED] if candidate.patches else []),
    ]


def _entry(text: str, task: Task) -> Iterator[str]:
    name = entry_of(task)
    if not re.search(rf"\b{name}\s*\([^;{{}}]*\)\s*(?:noexcept\s*)?{{", text):
        yield f'the source defines no function `extern "C" int {name}(…, cudaStream_t)`'
    elif not re.search(r"extern\s+\"C\"", text):
        yield f'`{name}` must be `extern "C"`'
    if "__global__" not in text:
        yield "the source has no device kernel (`__global__`)"


def _includes(text: str) -> Iterator[str]:
    for match in _INCLUDE.finditer(text):
        header = match[1].strip()
        if not _HEADERS.fullmatch(header):
            yield f"`#include {header}` is forbidden: only headers for device code are allowed"


def _forbidden(text: str) -> Iterator[str]:
    if "##" in text:
        yield "`##` is forbidden: it makes words that no rule can see"
    for pattern, why in _FORBIDDEN.items():
        found = re.search(pattern, text)
        if found:
            yield f"`{found[0].strip()}` is forbidden: {why}"
