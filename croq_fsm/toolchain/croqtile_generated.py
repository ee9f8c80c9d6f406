"""Generated ``.cu`` text: what the harness changes in it, and what it appends.

Two changes are made to every candidate, before and after its own patches, and are recorded in
the build log. They are repairs of the host harness, never gains of a kernel:

- the wrapper's ``cudaDeviceSynchronize`` goes: it would charge host work to the kernel;
- when one barrier waits for several copies, all bytes are announced before the first copy
  starts. The compiler announces them one by one, so that a barrier could complete early.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain.ideas import Replace, apply_replacements
from croq_fsm.domain.operators import SUPPORTED, Tensor
from croq_fsm.domain.source import normalise
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompileFailed, EditError, UsageError

_SYNC: Final = re.compile(
    r"^[ \t]*(?:choreo::abend_true\(\s*)?cudaDeviceSynchronize\(\)\)?;[ \t]*\n", re.MULTILINE
)
_ANNOUNCE: Final = re.compile(
    r"^(?P<indent>[ \t]*)(?P<bar>[\w.]+\[[^\n;]*?\])\.arrive_and_expect_tx\((?P<bytes>\d+)\);\n"
    r"(?P<rest>(?:[ \t]*choreo::tma_load[^\n]*;\n|[ \t]*(?P=bar)\.expect_transaction\(\d+\);\n"
    # A whole warpgroup that produces elects its thread for each copy anew.
    r"|[ \t]*\}\n|[ \t]*if \(+threadIdx\.x == \d+\)+ \{\n)+)",
    re.MULTILINE,
)
_EXPECT: Final = re.compile(r"^[ \t]*[^\n]*\.expect_transaction\((\d+)\);\n", re.MULTILINE)
_WGMMA: Final = re.compile(r"\bMMA_64x(\d+)x\d+_")
_KERNEL: Final = re.compile(r"__global__\s+(?:__launch_bounds__\([^)]*\)\s*)?void\s+(\w+)\s*\(")
_HOST_CHECK: Final = re.compile(r"^\s*choreo::runtime_check\(.*\);\s*$", re.MULTILINE)

#: WGMMA widths that CUTLASS declares without its extended set.
_PLAIN_WIDTHS: Final = frozenset({8, 16, 32, 64, 96, 128, 192, 256})
EXTENDED_SHAPES: Final = "-DCUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"

_GLUE: Final = """
extern "C" int croq_candidate(const void *const *inputs, void *output, const long long *sizes) {{
  {sizes}
  {operator}({arguments});
  return 0;
}}
"""
_VIEW: Final = (
    "choreo::make_spanview<choreo::{element}, {rank}>("
    "static_cast<choreo::{element} *>({pointer}), {{{extents}}})"
)


@dataclass(frozen=True)
class Generated:
    """A generated source, ready to be compiled.

    Attributes:
        text: The whole text with the harness's glue.
        notes: What the harness changed, for the build log.
        kernels: Names of the device kernels in it.
        extended: Whether it uses WGMMA widths outside CUTLASS's plain set.
    """

    text: str
    notes: tuple[str, ...]
    kernels: tuple[str, ...]
    extended: bool


def prepare(text: str, patches: tuple[Replace, ...], task: Task) -> Generated:
    """Repair, patch, repair again (a patch may bring a fault back), append the glue.

    Raises:
        CompileFailed: A patch does not match the repaired text exactly once.
        UsageError: The operator has no glue.
    """
    text, first = repair(text)
    try:
        text = apply_replacements(patches, text)
    except EditError as exc:
        raise CompileFailed(f"a patch of the generated source does not apply: {exc}") from exc
    text, second = repair(text)
    return Generated(
        text=text + glue(task),
        notes=(*first, *second),
        kernels=tuple(dict.fromkeys(_KERNEL.findall(text))),
        extended=any(int(n) not in _PLAIN_WIDTHS for n in _WGMMA.findall(text)),
    )


def repair(text: str) -> tuple[str, tuple[str, ...]]:
    """Make the harness's two changes; applying it twice changes nothing more."""
    notes = []
    text, synced = _SYNC.subn("", text)
    if synced:
        notes.append(f"removed {synced} cudaDeviceSynchronize of the host wrapper")
    joined = 0

    def announce_together(match: re.Match[str]) -> str:
        nonlocal joined
        more = [int(m[1]) for m in _EXPECT.finditer(match["rest"])]
        if not more:
            return match[0]
        joined += 1
        total = int(match["bytes"]) + sum(more)
        head = f"{match['indent']}{match['bar']}.arrive_and_expect_tx({total});\n"
        return head + _EXPECT.sub("", match["rest"])

    text = _ANNOUNCE.sub(announce_together, text)
    if joined:
        notes.append(f"announced the bytes of joined copies at once, {joined} time(s)")
    return text, tuple(notes)


def glue(task: Task) -> str:
    """C entry point over the candidate's function, in the operator's argument order."""
    if (task.operator, task.dtype) not in SUPPORTED["croqtile"]:
        raise UsageError(f"DSL croqtile has no harness for {task.operator} {task.dtype}")
    sizes = (
        f"const auto {name} = static_cast<size_t>(sizes[{i}]);"
        for i, name in enumerate(task.op.dims)
    )
    inputs = (
        _view(tensor, f"const_cast<void *>(inputs[{i}])")
        for i, tensor in enumerate(task.precision.inputs)
    )
    arguments = (*inputs, _view(task.precision.output, "output"))
    return _GLUE.format(
        sizes="\n  ".join(sizes), operator=task.operator, arguments=",\n    ".join(arguments)
    )


def _view(tensor: Tensor, pointer: str) -> str:
    return _VIEW.format(
        element=tensor.element,
        rank=len(tensor.dims),
        pointer=pointer,
        extents=", ".join(map(_extent, tensor.dims)),
    )


def _extent(dim: str) -> str:
    """``k/128`` is a size divided and rounded up."""
    name, slash, divisor = dim.partition("/")
    return f"({name} + {int(divisor) - 1}) / {divisor}" if slash else name


def host_identity(text: str) -> str:
    """The text without comments, positions and blank lines.

    With the machine code it must be equal for two candidates to be the same. Host text counts,
    for it sets up tensor maps and the launch.
    """
    return normalise(_HOST_CHECK.sub("", text))
