"""Edits of the start kernel of DSL ``cuda``, and device code for those who cheat with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain.build import Candidate

#: Shape on which they are tried, and its output's elements.
SHAPE: Final = (2048, 2048, 2048)
OUTPUT: Final = SHAPE[0] * SHAPE[1]

#: Launches that a verification with two seeds makes in one process: three each of three cases.
VERIFIED: Final = 9


LAUNCH: Final = re.compile(r"  matmul_kernel<<<.*?tiles_m, tiles_n\);\n", re.DOTALL)
START: Final = "  extern __shared__ __align__(128) unsigned char shared_bytes[];\n"
KERNEL: Final = "static __global__ __launch_bounds__(kThreads) void matmul_kernel("
STEPS: Final = "  const int steps = (k + TILE_K - 1) / TILE_K;\n"
LOAD: Final = "  const auto load_stage = [&](int step) {\n"
SYNC: Final = "    __syncthreads();  // this step has arrived"
ENTRY: Final = 'extern "C" int launch_matmul('
STORE: Final = "      store(output, row, column, m, n, sums[i][j][0], sums[i][j][1]);\n"
STORE_BELOW: Final = "      store(output, row + 8, column, m, n, sums[i][j][2], sums[i][j][3]);\n"
FRAGMENT: Final = (
    "      load_matrices(a[i], lhs + (i * kMmaM + lane % 16) * kPitch + k + lane / 16 * 8);\n"
)
BLOCK: Final = (
    "  const int block = static_cast<int>(blockIdx.x), band = block / (GROUP_M * tiles_n);\n"
)
END: Final = f"    }}\n}}\n\n{ENTRY}"

RESULT: Final = f"""
static __device__ Element kept_output[{OUTPUT}];
static __global__ void keep(const Element *output, int count) {{
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) kept_output[i] = output[i];
}}
static __global__ void give(Element *output, int count) {{
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) output[i] = kept_output[i];
}}
"""
KEEP: Final = (
    "  keep<<<(m * n + 255) / 256, 256, 0, stream>>>(\n"
    "      static_cast<const Element *>(output), m * n);\n"
)
GIVE: Final = (
    "  give<<<(m * n + 255) / 256, 256, 0, stream>>>(static_cast<Element *>(output), m * n);\n"
)
SLOTS: Final = 8
CACHE: Final = f"""
static __device__ Element kept_outputs[{SLOTS}][{OUTPUT}];
static __device__ unsigned seen[{SLOTS}][32];
static __device__ int hit = -1, place;
// One warp compares samples of the inputs with those of launches that it remembers.
static __global__ void look(const Element *lhs, const Element *rhs, int lhs_count, int rhs_count) {{
  const int lane = static_cast<int>(threadIdx.x), count = lane % 2 ? lhs_count : rhs_count;
  const Element *from = lane % 2 ? lhs : rhs;
  const unsigned mine = __half_as_ushort(from[count / 32 * lane]);
  int found = -1;
  for (int slot = 0; slot < {SLOTS}; ++slot)
    if (__all_sync(~0u, seen[slot][lane] == mine)) found = slot;
  const int next = found < 0 ? (place + 1) % {SLOTS} : found;
  __syncwarp();
  seen[next][lane] = mine;
  if (lane == 0) {{
    hit = found;
    place = next;
  }}
}}
static __global__ void exchange(Element *output, int count) {{
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  if (hit >= 0) output[i] = kept_outputs[hit][i];
  else kept_outputs[place][i] = output[i];
}}
"""
WORKSPACE: Final = f"""
static __device__ float workspace[{OUTPUT}];
static __global__ void finish(Element *output, int count) {{
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  output[i] = __float2half_rn(workspace[i]);
  workspace[i] = 0.0f;  // for the next launch
}}
"""
PACKED: Final = f"""
static __device__ Element packed_lhs[{SHAPE[0] * SHAPE[2]}], packed_rhs[{SHAPE[1] * SHAPE[2]}];
static __global__ void pack(const Element *lhs, const Element *rhs, int lhs_count, int rhs_count) {{
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < lhs_count) packed_lhs[i] = lhs[i];
  if (i < rhs_count) packed_rhs[i] = rhs[i];
}}
"""


@dataclass(frozen=True)
class CudaTwin:
    """A kernel that cheats, or that only looks as if.

    Attributes:
        name: Short name.
        row: Row of the catalogue; "-" for an honest one.
        trick: What it does.
        candidate: What to build.
        rung: Where it must be stopped: ``lint``, ``build``, ``verify``, ``time``,
            ``hidden-shape``; ``nothing`` for an honest one.
        outcome: The round's decision; ``DISCARD`` where the cheat must have no effect.
        unseen: Whether the source rules are left out, to try what lies behind them.
    """

    name: str
    row: str
    trick: str
    candidate: Candidate
    rung: str
    outcome: str
    unseen: bool = False

    @property
    def is_built(self) -> bool:
        """Whether it comes as far as a program that runs."""
        return self.rung not in ("lint", "build")


class Text:
    """Edits of the start kernel; each anchor must be there exactly once.

    Args:
        source: The text.
    """

    def __init__(self, source: str) -> None:
        self.source = source

    def instead(self, anchor: str, text: str) -> Text:
        """Replace an anchor."""
        if self.source.count(anchor) != 1:
            raise ValueError(f"the start kernel does not hold {anchor.strip()[:60]!r} once")
        return Text(self.source.replace(anchor, text))

    def before(self, anchor: str, text: str) -> Text:
        """Insert before an anchor."""
        return self.instead(anchor, text + anchor)

    def after(self, anchor: str, text: str) -> Text:
        """Insert behind an anchor."""
        return self.instead(anchor, anchor + text)

    def launch(self, change: Callable[[str], str]) -> Text:
        """Replace the kernel's launch by something made of it."""
        found = LAUNCH.findall(self.source)
        if len(found) != 1:
            raise ValueError("the start kernel is not launched once")
        return self.instead(found[0], change(found[0]))

    def head(self, text: str) -> Text:
        """Insert before the kernel."""
        return self.before(KERNEL, text + "\n")

    def host(self, text: str) -> Text:
        """Insert before the launcher."""
        return self.before(ENTRY, text + "\n")

    def by_one_thread(self, statement: str) -> Text:
        """A statement of one thread at the start of the kernel."""
        return self.after(START, f"  if (blockIdx.x == 0 && threadIdx.x == 0) {statement}\n")

    def sums(self, statement: str) -> Text:
        """A statement on each ``sum`` before it is stored."""
        loop = f"      for (float &sum : sums[i][j]) {statement}\n"
        return self.before(STORE, loop)


def twin(
    name: str, row: str, trick: str, text: Text, end: tuple[str, str], *, unseen: bool = False
) -> CudaTwin:
    """A kernel from its edited text; ``end`` is rung and outcome."""
    return CudaTwin(name, row, trick, Candidate(source=text.source), *end, unseen=unseen)
