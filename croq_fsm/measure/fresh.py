"""Contents of timed launches, and the proofs of their outputs.

The harness makes a new content for each launch, from the parent's seed and a number that it
draws just before; after the launch it draws a vector and multiplies the output by it. That
product, folded to at most 4096 numbers, is the launch's *proof*. Here the same product is made
from the content alone. A product of matrices needs no reference for that (Freivalds): A(Bx)
costs as much as reading A and B. Other operators compute their output in double precision.

Bound of one number of a proof. The vector has independent weights with mean 0 and variance 1,
uniform and so sub-Gaussian: a sum of errors ``e`` weighted by them lies beyond ``7 ‖e‖`` with a
probability below 10⁻¹⁰. For ``‖e‖`` stands the norm that an honest row does not reach:

* matmul: ``r ‖a_i‖ ‖B‖ / √k``, with ``r`` the operator's relative bound;
* others: the norm of the element-wise bounds of ``cases.tolerance``.

A single lost term of a sum exceeds it, and so does a single element that was not computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from croq_fsm.domain.operators import Operator, Shape
from croq_fsm.measure import cases
from croq_fsm.measure.cases import Float32, Float64

#: Longest proof, as in ``c/fresh.h``.
PROOF_MOST: Final = 4096

_MASK: Final = (1 << 64) - 1
_DEVIATIONS: Final = 7.0
_DTYPE: Final = "f32"


def mix(x: int) -> int:
    """The finaliser of splitmix64, as the harness computes it."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


def content(seed: int, launch: int, drawn: int) -> int:
    """Content of a launch of a block, from the parent's seed and what the harness drew."""
    return mix(mix((seed + launch) & _MASK) ^ drawn)


def proof_length(rows: int) -> int:
    """Numbers in the proof of an output with so many rows."""
    return min(rows, PROOF_MOST)


class Helper:
    """The harness's own code, in a shared object.

    Args:
        library: Path of the object made from ``c/helper.c``.
    """

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        pointer, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64
        self._evict = _function(loaded.croq_evict, pointer, size)
        self._fill = _function(loaded.croq_fill, pointer, size, word, ctypes.c_uint)
        self._weights = _function(loaded.croq_weights, pointer, size, word)
        self._project = _function(loaded.croq_project, pointer, size, size, pointer, pointer)
        self._fold = _function(loaded.croq_fold, pointer, size, word, pointer)

    def evict(self, array: Float32) -> None:
        """Put an array out of the caches."""
        self._evict(array.ctypes.data, array.nbytes)

    def fill(self, inputs: Iterable[Float32], number: int) -> None:
        """Write the content of that number into an operator's inputs."""
        for which, array in enumerate(inputs):
            self._fill(array.ctypes.data, array.size, number, which)

    def weights(self, cols: int, vector: int) -> Float64:
        """The vector by which an output is multiplied."""
        x = np.empty(cols)
        self._weights(x.ctypes.data, cols, vector)
        return x

    def project(self, matrix: Float32, x: Float64) -> Float64:
        """Product of a matrix and a vector, in double precision."""
        column = np.empty(matrix.shape[0])
        self._project(matrix.ctypes.data, *matrix.shape, x.ctypes.data, column.ctypes.data)
        return column

    def fold(self, column: Float64, vector: int) -> Float64:
        """The proof that a projected output comes to."""
        whole = np.ascontiguousarray(column)
        proof = np.empty(proof_length(whole.size))
        self._fold(whole.ctypes.data, whole.size, vector, proof.ctypes.data)
        return proof


def _function(found: ctypes._NamedFuncPointer, *arguments: type) -> ctypes._NamedFuncPointer:
    found.argtypes, found.restype = list(arguments), None
    return found


def blank_inputs(operator: Operator, shape: Shape) -> list[Float32]:
    """Room for an operator's inputs."""
    sizes = operator.sizes(shape)
    tensors = operator.precision(_DTYPE).inputs
    return [np.empty(tensor.shape(sizes), dtype=np.float32) for tensor in tensors]


@dataclass(frozen=True)
class Expected:
    """What a right proof is.

    Attributes:
        proof: Its numbers.
        bound: How far each may be off.
    """

    proof: Float64
    bound: Float64

    def problem(self, found: Float64) -> str:
        """What is wrong with a proof; empty when nothing."""
        # Written this way round, so that a NaN is outside every bound.
        bad: NDArray[np.bool_] = ~(np.abs(found - self.proof) <= self.bound)
        if not bad.any():
            return ""
        first = int(np.argmax(bad))
        return (
            f"{int(bad.sum())} of {bad.size} random projections of its output are wrong; number "
            f"{first} is {found[first]:.8g}, must be {self.proof[first]:.8g}"
        )


def expected(
    helper: Helper, operator: Operator, shape: Shape, inputs: list[Float32], vector: int
) -> Expected:
    """The right proof of a launch on these inputs."""
    if operator.name == "matmul":
        a, b = inputs
        right = helper.project(a, helper.project(b, helper.weights(b.shape[1], vector)))
        scale = operator.error_bound(shape, _DTYPE) / np.sqrt(a.shape[1])
        bound = scale * _norm(b.reshape(1, -1)) * _norm(a)
    else:
        output = cases.reference(operator, inputs)
        # No product by BLAS: its threads would still spin when the next block begins.
        right = (output * helper.weights(output.shape[1], vector)).sum(axis=1)
        allowed = cases.tolerance(operator, shape, inputs, output, slice(None))
        bound = np.sqrt(np.einsum("ij,ij->i", allowed, allowed))
    folded = np.bincount(np.arange(bound.size) % proof_length(bound.size), weights=bound**2)
    return Expected(helper.fold(right, vector), _DEVIATIONS * np.sqrt(folded))


def _norm(matrix: Float32) -> Float64:
    """Norms of the rows."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64)))
