"""Wrong kernels for 8-bit, block-scaled and sparse operators, made from their start kernels.

Each makes one mistake that is likely in such kernels and hard to see: bits read as another type,
scales that are left out or belong to the next block, metadata that is ignored or handed to the
wrong threads, sums in a smaller type than promised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Replace

#: Metadata that keeps the first two of each four.
_FIRST_TWO: Final = "0x44444444u"
_SCALED: Final = (
    "mma.row.row.scale acc, lhs_s[slot].subspan(64, TILE_K).at(wg - 1, 0), rhs_s[slot],\n"
    "              row_scales, block_scale;"
)
_UNSCALED: Final = (
    "op = mma.row.row.async acc, lhs_s[slot].subspan(64, TILE_K).at(wg - 1, 0), rhs_s[slot];\n"
    "          wait op;"
)
_ROW_SCALE: Final = "* 64 + __iv_k + scale_lhs)"
_BLOCK_SCALE: Final = "(K_BLOCKS * blockIdx.y) + __iv_k)"


@dataclass(frozen=True)
class WrongKernel:
    """A kernel that must be refused by ``verify``.

    Attributes:
        dsl: Its language.
        operator: Operator that it claims to be.
        dtype: Dtype that it claims to have.
        candidate: What to build.
        says: A part of the explanation.
    """

    dsl: str
    operator: str
    dtype: str
    candidate: Candidate
    says: str = "wrong"


def wrong_kernels(start: Callable[[str, str, str], Candidate]) -> dict[str, WrongKernel]:
    """All of them by name.

    Args:
        start: Start kernel of a DSL, an operator and a dtype.
    """
    found = {
        "f16_small_sums": WrongKernel(
            "croqtile",
            "matmul",
            "f16",
            _source(start("croqtile", "matmul", "f16"), "mma.fill.f32", "mma.fill.f16"),
            "relative error",
        ),
        "e4m3_read_as_e5m2": WrongKernel(
            "croqtile",
            "matmul",
            "e4m3f16",
            _patched(start("croqtile", "matmul", "e4m3f16"), ("_F32E4M3E4M3_", "_F32E5M2E4M3_")),
        ),
    }
    found |= _blockscale(start("croqtile", "blockscale_gemm", "e4m3f16"))
    for dtype in ("f16", "e4m3f16"):
        found |= _sparse(start("croqtile", "gemm_sp", dtype), dtype)
    return found | _cuda(start)


def _blockscale(plain: Candidate) -> dict[str, WrongKernel]:
    candidates = {
        "scales_ignored": _source(plain, _SCALED, _UNSCALED),
        "row_scales_shifted": _patched(plain, (_ROW_SCALE, _shifted(_ROW_SCALE))),
        "block_scales_shifted": _patched(plain, (_BLOCK_SCALE, _shifted(_BLOCK_SCALE))),
    }
    return {
        f"blockscale_{name}": WrongKernel("croqtile", "blockscale_gemm", "e4m3f16", candidate)
        for name, candidate in candidates.items()
    }


def _sparse(plain: Candidate, dtype: str) -> dict[str, WrongKernel]:
    ignored = tuple(
        (f"auto {name} = wgmma", f"auto {name} = {_FIRST_TWO} + 0u * wgmma")
        for name in ("low", "high")
    )
    later = "        auto high = wgmma_make"
    exchanged = f"        low = __shfl_xor_sync(0xffffffffu, low, 1);\n{later}"
    candidates = {
        "metadata_ignored": _patched(plain, *ignored),
        "metadata_lanes_exchanged": _patched(plain, (later, exchanged)),
    }
    return {
        f"sparse_{dtype}_{name}": WrongKernel("croqtile", "gemm_sp", dtype, candidate)
        for name, candidate in candidates.items()
    }


def _cuda(start: Callable[[str, str, str], Candidate]) -> dict[str, WrongKernel]:
    edits = {
        ("blockscale_gemm", "e4m3f16", "scales_ignored"): ("* (e < 2 ? above : below)", ""),
        ("blockscale_gemm", "e4m3f16", "row_scales_shifted"): (
            "static_cast<size_t>(first) * steps + step, steps",
            "static_cast<size_t>(first) * steps + (step + 1) % steps, steps",
        ),
        ("gemm_sp", "f16", "metadata_ignored"): ("bits = meta[at / 8];", "bits = 0x44;"),
        ("gemm_sp", "f16", "metadata_halves_exchanged"): (
            "bits = meta[at / 8];",
            "bits = meta[at / 8] >> 4 | (meta[at / 8] & 15) << 4;",
        ),
    }
    return {
        f"cuda_{operator}_{name}": WrongKernel(
            "cuda", operator, dtype, _source(start("cuda", operator, dtype), search, replace)
        )
        for (operator, dtype, name), (search, replace) in edits.items()
    }


def _shifted(text: str) -> str:
    return text.replace("__iv_k", "(__iv_k + 1) % K_BLOCKS")


def _source(base: Candidate, search: str, replace: str) -> Candidate:
    if base.source.count(search) != 1:
        raise LookupError(f"the start kernel has no single {search!r}")
    return base.model_copy(update={"source": base.source.replace(search, replace)})


def _patched(base: Candidate, *edits: tuple[str, str]) -> Candidate:
    patches = tuple(Replace(search=search, replace=replace) for search, replace in edits)
    return base.model_copy(update={"patches": patches})
