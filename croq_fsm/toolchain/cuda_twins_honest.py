"""Honest kernels of DSL ``cuda`` that look as if they cheated: none of them may be refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from croq_fsm.toolchain.cuda_twins_text import (
    BLOCK,
    END,
    ENTRY,
    LOAD,
    PACKED,
    STEPS,
    STORE,
    STORE_BELOW,
    WORKSPACE,
    CudaTwin,
    Text,
    twin,
)

_PASSES: Final = ("nothing", "")


def honest(base: Text) -> Iterator[CudaTwin]:
    """What a good kernel may do."""
    yield twin("plain", "-", "the start kernel", base, _PASSES)
    yield _split_k(base)
    yield _persistent(base)
    yield _static_buffers(base)


def _split_k(base: Text) -> CudaTwin:
    return twin(
        "split_k_atomics",
        "-",
        "splits each sum over two blocks that add to a workspace with atomics",
        base.head(WORKSPACE)
        .instead(STEPS, "")
        .instead(
            LOAD,
            "  const int all = (k + TILE_K - 1) / TILE_K, z = static_cast<int>(blockIdx.z);\n"
            "  const int first = z * all / 2, steps = (z + 1) * all / 2 - first;\n" + LOAD,
        )
        .instead("lhs, row0, m, step * TILE_K, k);", "lhs, row0, m, (first + step) * TILE_K, k);")
        .instead(
            "rhs, column0, n, step * TILE_K, k);", "rhs, column0, n, (first + step) * TILE_K, k);"
        )
        .instead(STORE, _added("row", 0))
        .instead(STORE_BELOW, _added("row + 8", 2))
        .launch(
            lambda launch: (
                launch.replace(
                    "tiles_m * tiles_n, kThreads",
                    "dim3(tiles_m * tiles_n, 1, 2), kThreads",
                )
                + "  finish<<<(m * n + 255) / 256, 256, 0, stream>>>(\n"
                "      static_cast<Element *>(output), m * n);\n"
            )
        ),
        _PASSES,
    )


def _persistent(base: Text) -> CudaTwin:
    return twin(
        "persistent",
        "-",
        "has one block for each multiprocessor, which walks over tiles",
        base.instead(
            BLOCK,
            "  for (int block = static_cast<int>(blockIdx.x); block < tiles_m * tiles_n;\n"
            "       block += static_cast<int>(gridDim.x)) {\n"
            "  const int band = block / (GROUP_M * tiles_n);\n",
        )
        .instead(
            END,
            f"    }}\n  await_copies<0>();\n  __syncthreads();\n  }}\n}}\n\n{ENTRY}",
        )
        .launch(
            lambda launch: launch.replace(
                "tiles_m * tiles_n, kThreads", "min(132, tiles_m * tiles_n), kThreads"
            )
        ),
        _PASSES,
    )


def _static_buffers(base: Text) -> CudaTwin:
    return twin(
        "static_buffers",
        "-",
        "packs its operands into static buffers in each launch",
        base.head(PACKED).launch(
            lambda launch: (
                "  const int most = max(m, n) * k;\n"
                "  pack<<<(most + 255) / 256, 256, 0, stream>>>(\n"
                "      static_cast<const Element *>(lhs), static_cast<const Element *>(rhs), m * k,"
                " n * k);\n"
                "  void *packed[2];\n"
                "  cudaGetSymbolAddress(&packed[0], packed_lhs);\n"
                "  cudaGetSymbolAddress(&packed[1], packed_rhs);\n"
                + launch.replace("(lhs)", "(packed[0])").replace("(rhs)", "(packed[1])")
            )
        ),
        _PASSES,
    )


def _added(row: str, first: int) -> str:
    """Two sums of a row, added to the workspace."""
    added = (
        f"        if (column + {offset} < n)\n"
        f"          atomicAdd(workspace + static_cast<size_t>({row}) * n + column + {offset}, "
        f"sums[i][j][{first + offset}]);\n"
        for offset in (0, 1)
    )
    return "".join([f"      if ({row} < m) {{\n", *added, "      }\n"])
