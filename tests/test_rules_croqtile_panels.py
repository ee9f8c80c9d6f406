"""The swizzled output path: the helper's own text, run lane by lane on the host."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rules_croqtile_support import COMPILED

from croq_fsm.domain.source import macros
from croq_fsm.ideators.rules.croqtile_config import Gemm
from croq_fsm.ideators.rules.croqtile_render import render

_EMULATION = """
#include <cstdio>
#include <cstring>
#include <cstdint>
struct Index { unsigned x; };
static Index threadIdx;
typedef unsigned short f16;
static unsigned char memory[1 << 18];
struct Row { unsigned at; unsigned regs[4]; };
static Row rows[128][64];
static int calls;
static unsigned __cvta_generic_to_shared(f16 *tile) { return (unsigned)(uintptr_t)tile; }
static unsigned packed(float low, float high) { return (unsigned)low | (unsigned)high << 16; }
static void stmatrix(unsigned at, unsigned a, unsigned b, unsigned c, unsigned d) {
  rows[threadIdx.x][calls++] = Row{at, {a, b, c, d}};
}
%(macros)s
%(helper)s
int main() {
  const int height = %(height)d, line = %(line)d, first = %(first)d, base = %(base)d;
  for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x) {
    static float sums[128];
    for (int i = 0; i < TILE_N / 2; ++i) {
      int row = threadIdx.x / 32 * 16 + threadIdx.x %% 32 / 4 + i %% 4 / 2 * 8;
      sums[i] = row * 256 + i / 4 * 8 + threadIdx.x %% 4 * 2 + i %% 2;
    }
    calls = 0;
    store_panels(sums, (f16 *)(uintptr_t)base, height, line, first);
  }
  // What the instruction does: lane 8 * i + r names the place of line r of matrix i, whose
  // pairs of elements come from lanes 4 * r to 4 * r + 3.
  for (int warp = 0; warp < 4; ++warp)
    for (int call = 0; call < calls; ++call)
      for (int lane = 0; lane < 32; ++lane)
        for (int pair = 0; pair < 4; ++pair) {
          unsigned from = rows[warp * 32 + lane %% 8 * 4 + pair][call].regs[lane / 8];
          memcpy(memory + rows[warp * 32 + lane][call].at + pair * 4, &from, 4);
        }
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < STORE_N; ++column) {
      unsigned at = base + column / PANEL * height * PANEL_BYTES + (line + row) * PANEL_BYTES +
                    column %% PANEL * 2;
      // The copy engine's swizzle: 16-byte pieces, permuted by the address bits from 128 up.
      at ^= (at >> 7 & (PANEL_BYTES / 16 - 1)) << 4;
      f16 found;
      memcpy(&found, memory + at, 2);
      if (found != row * 256 + first + column) return 1;
    }
  return 0;
}
"""


@pytest.mark.parametrize(
    ("name", "line", "first"),
    [("turns_256", 64, 128), ("panels_224", 64, 0), ("one_consumer", 0, 0), ("two_sums", 192, 64)],
)
def test_panels_lie_as_the_copy_engine_expects(
    tmp_path: Path, name: str, line: int, first: int
) -> None:
    """The helper's own text, run lane by lane, puts each sum where a swizzled copy looks for it."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    config = COMPILED[name]
    source = tmp_path / "panels.cpp"
    source.write_text(emulation(config, line, first), encoding="utf-8")
    program = tmp_path / "panels"
    argv = [compiler, "-O1", "-w", "-std=c++17", str(source), "-o", str(program)]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    assert subprocess.run([str(program)], check=False, timeout=20).returncode == 0


def emulation(config: Gemm, line: int, first: int) -> str:
    """A host program around the helper of a rendering."""
    text = render(config)
    helper = text[text.index("__device__ __forceinline__ void store_panels") :].split("\n}\n")[0]
    helper = helper.replace("__device__ __forceinline__ ", "") + "\n}\n"
    inputs = re.compile(r"asm volatile\(.*?:\s*:\s*(.*?): \"memory\"\);", re.DOTALL)
    call = inputs.sub(r"stmatrix(\1);", helper)
    call = call.replace('"r"', "")
    assert "stmatrix((at" in call
    defined = "\n".join(f"#define {key} {value}" for key, value in macros(text).items())
    return _EMULATION % {
        "macros": defined,
        "helper": call,
        "height": config.tile_m,
        "line": line,
        "first": first,
        "base": 128 * 5,
    }
