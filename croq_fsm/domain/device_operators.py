"""Operators of tensor cores, in the layouts of the kernels that people have for them.

All of them compute output[m, n] = L[m, k] . R[n, k]^T. What L and R are:

- ``matmul``: lhs and rhs themselves.
- ``blockscale_gemm``: e4m3 operands with f32 scales. One scale for 128 neighbours of a row of
  lhs (``scale_lhs[m, k/128]``), and one for each 128x128 block of rhs
  (``scale_rhs[n/128, k/128]``).
- ``gemm_sp``: L is 2:4 sparse: two of each four neighbours in a row are kept, in their order, in
  ``lhs_packed[m, k/2]``; ``lhs_meta[m, k/8]`` has four bits for each group of four, the position
  of the first kept element in the low two, groups of even number in the low half of a byte. Its
  work is counted as that of the dense product (2mnk), as is usual, so its TFLOPS may exceed the
  dense peak.

Error bounds come from how tensor cores add. f16 sums are rounded once per instruction. Sums of
8-bit products keep about 13 bits behind the leading one, whatever their type is called: an
honest kernel on an 8-bit matmul of length 4096 is off by half a per cent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from croq_fsm.domain.dtypes import Types
from croq_fsm.domain.operator_model import Operator, Precision, Tensor, Tolerance

#: Elements that share a scale.
SCALE_BLOCK: Final = 128
#: Standard deviation of the inputs that are made; 8-bit numbers have a small range.
_SIGMA: Final = {"e4m3": 0.25, "f16": 1.0, "bf16": 1.0}
#: Mean square of the scales that are made: uniform in [1/4, 7/4).
_SCALE_SQUARE: Final = 1.0 + 1.5**2 / 12
_E4M3_SUMS: Final = 2.0**-13
#: k of one tensor-core instruction.
_INSTRUCTION_K: Final = {"e4m3": 32, "f16": 16, "bf16": 16}
_ELEMENT: Final = {"e4m3": "f8_e4m3"}


def _tolerance(types: Types) -> Tolerance:
    """The protocol's table, by what is multiplied and how sums are kept."""
    if types.input == "e4m3":
        return Tolerance(absolute=0.5, relative=0.01)
    if types.accumulate == "f16":
        return Tolerance(absolute=16.0, relative=0.05)
    return Tolerance(absolute=1.0, relative=0.01)


def _precision(
    types: Types,
    tensors: Iterable[Tensor],
    library: str,
    multiples: dict[str, int],
    *,
    scale_square: float = 1.0,
    density: float = 1.0,
    span: int = 0,
) -> Precision:
    output = Tensor("output", ("m", "n"), types.output, is_output=True)
    half_sums = types.accumulate == "f16"
    return Precision(
        tensors=(*tensors, output),
        accumulate=types.accumulate,
        multiples=multiples,
        roundoff=_E4M3_SUMS if types.input == "e4m3" and not half_sums else 0.0,
        depth=_INSTRUCTION_K[types.input] if half_sums else 1,
        span=0 if half_sums else span,
        density=density,
        magnitude=_SIGMA[types.input] ** 2 * scale_square,
        tolerance=_tolerance(types),
        library=library,
    )


def _operand(name: str, types: Types, *dims: str) -> Tensor:
    return Tensor(name, dims, _ELEMENT.get(types.input, types.input))


def _matmul(types: Types) -> Precision:
    """Dense operands; rhs is [n, k], as the reference kernels have it."""
    small = types.input == "e4m3"
    library = "cublaslt" if small else "cublas"
    if small and types.accumulate == "f16":
        library = "cublaslt_f32acc"  # the library has no f16 sums of 8-bit products
    return _precision(
        types,
        (_operand("lhs", types, "m", "k"), _operand("rhs", types, "n", "k")),
        library,
        {"n": 16, "k": 16} if small else {},
    )


def _blockscale(types: Types) -> Precision:
    return _precision(
        types,
        (
            _operand("lhs", types, "m", "k"),
            Tensor("scale_lhs", ("m", f"k/{SCALE_BLOCK}"), "f32"),
            _operand("rhs", types, "n", "k"),
            Tensor("scale_rhs", (f"n/{SCALE_BLOCK}", f"k/{SCALE_BLOCK}"), "f32"),
        ),
        "cublaslt_block128",
        {"m": SCALE_BLOCK, "n": SCALE_BLOCK, "k": SCALE_BLOCK},
        scale_square=_SCALE_SQUARE,
        span=SCALE_BLOCK,
    )


def _sparse(types: Types) -> Precision:
    """Rows of whole WGMMAs (two of 64), steps of two WGMMAs along k."""
    small = types.input == "e4m3"
    return _precision(
        types,
        (
            _operand("lhs_packed", types, "m", "k/2"),
            Tensor("lhs_meta", ("m", "k/8"), "u8"),
            _operand("rhs", types, "n", "k"),
        ),
        "cublaslt_dense" if small else "cublas_dense",
        {"m": 128, "n": 16, "k": 128} if small else {"m": 128, "n": 8, "k": 64},
        density=0.5,
    )


def _by_word(types: Iterable[Types]) -> dict[str, Types]:
    return {each.word: each for each in types}


_DENSE: Final = _by_word(
    (
        Types("f16", "f16"),
        Types("f16", "f32"),
        Types("f16", "f16", "f16"),
        Types("bf16", "bf16"),
        Types("bf16", "f32"),
        Types("e4m3", "f16"),
        Types("e4m3", "bf16"),
        Types("e4m3", "f32"),
        Types("e4m3", "f16", "f16"),
    )
)
_SCALED: Final = _by_word(
    (
        Types("e4m3", "f16"),
        Types("e4m3", "bf16"),
        Types("e4m3", "f32"),
        Types("e4m3", "f16", "f16"),
    )
)
_COMPRESSED: Final = _by_word((Types("f16", "f16"), Types("f16", "f32"), Types("e4m3", "f16")))

#: Dtype word → meaning.
MATMUL: Final = {word: _matmul(types) for word, types in _DENSE.items()}


def gemm_flops(sizes: dict[str, int]) -> int:
    """Multiplications and additions of a dense product; also of the dense equivalent."""
    return 2 * sizes["m"] * sizes["n"] * sizes["k"]


BLOCKSCALE_GEMM: Final = Operator(
    name="blockscale_gemm",
    dims=("m", "n", "k"),
    precisions={word: _blockscale(types) for word, types in _SCALED.items()},
    flops=gemm_flops,
    judged_by_time=False,
    reduction="k",
)
GEMM_SP: Final = Operator(
    name="gemm_sp",
    dims=("m", "n", "k"),
    precisions={word: _sparse(types) for word, types in _COMPRESSED.items()},
    flops=gemm_flops,
    judged_by_time=False,
    reduction="k",
)
