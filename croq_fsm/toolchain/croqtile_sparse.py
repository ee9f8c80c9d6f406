"""Static checks of 2:4 sparse kernels: what WGMMA and the tuning protocol demand of them.

The compiler at hand waits for sparse multiplications where control flow branches, and otherwise
only after the loop: a stage that is given back right after one is still being read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from croq_fsm.domain.task import Task
from croq_fsm.toolchain.croqtile_text import KernelText

OPERATOR: Final = "gemm_sp"
#: Oldest CUDA toolkit whose copy engine interface sparse kernels are built with.
LEAST_CUDA: Final = (12, 9)

_WARP_M: Final = 64
#: k of one sparse WGMMA, before compression.
_WARP_K: Final = {"f16": 32, "bf16": 32, "f8_e4m3": 64}
#: Columns of L that one 32-bit word of metadata describes in the protocol's kernels.
_META_WORD: Final = 32
_SPARSE_MMA: Final = re.compile(r"\bmma\.(?:row|col)\.(?:row|col)\.sp\b[^;]*;")
_TRIGGER: Final = re.compile(r"\btrigger\s[^;]*;")
_BRANCH: Final = re.compile(r"\bif\s*\(|\bmma\.store\b|\bapply\b")


def problems(kernel: KernelText, task: Task) -> Iterator[str]:
    """Problems of a kernel for a sparse operator; nothing for any other operator."""
    if task.operator != OPERATOR:
        return
    yield from _constants(kernel, task.precision.inputs[0].element)
    yield from _early_release(kernel.text)


def cuda_problem(version: str) -> str:
    """Why this CUDA toolkit cannot build sparse kernels with TMA; "" when it can."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not numbers or numbers >= LEAST_CUDA:
        return ""
    least = ".".join(map(str, LEAST_CUDA))
    return f"sparse kernels with TMA need CUDA {least} or later; this is {version}"


def _constants(kernel: KernelText, element: str) -> Iterator[str]:
    """The protocol's fixed macros; one that the source does not define is not checked."""

    def value(name: str) -> int | None:
        return kernel.value(f"SPMM_{name}") if f"SPMM_{name}" in kernel.macros else None

    warp_m, warp_k, tile = value("WARP_M"), value("WARP_K"), value("TILE_K")
    packed, meta = value("PACKED_TILE_K"), value("META_TILE_COLS")
    wanted = _WARP_K[element]
    if warp_m not in (None, _WARP_M):
        yield f"SPMM_WARP_M is {warp_m}; a WGMMA has {_WARP_M} rows"
    if warp_k not in (None, wanted):
        yield f"SPMM_WARP_K is {warp_k}; a sparse WGMMA of {element} has k = {wanted}"
    if tile is not None and packed is not None and tile != 2 * packed:
        yield f"SPMM_TILE_K is {tile}; it must be twice SPMM_PACKED_TILE_K ({packed})"
    if tile is not None and meta is not None and meta != tile // _META_WORD:
        yield f"SPMM_META_TILE_COLS is {meta}; it must be SPMM_TILE_K / 32 ({tile // _META_WORD})"


def _early_release(text: str) -> Iterator[str]:
    for mma in _SPARSE_MMA.finditer(text):
        trigger = _TRIGGER.search(text, mma.end())
        if trigger and not _BRANCH.search(text, mma.end(), trigger.start()):
            yield (
                f"H2: `{trigger[0].strip()}` gives a stage back while a sparse multiplication may "
                "still read it: the compiler waits for it only where control flow branches; put "
                "the trigger into an `if`"
            )
            return
