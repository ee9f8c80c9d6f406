"""Kernels that are wrong on purpose, made from the plain start kernel.

They show on the machine at hand that the checks bite: each must fail, and in its own way. The
racy ones compute right-looking sums on inputs that are all positive, as weak checks use them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Replace

_RELEASE: Final = "          trigger empty.at(k);\n"
_WAIT: Final = "          wait op;\n"
_DRAIN: Final = "warpgroup_wait<0>();"
_STORE: Final = "    store_fragment_d_stmatrix_f32_f16<"
_START: Final = "    cute::prefetch_tma_descriptor(&__choreo_tma_0_tensor_map);"
_LAUNCH: Final = "  __choreo_device_matmul<<<"
_GRID: Final = "dim3 __matmul_gdims0(((M + 127) / 128)"
_SHARED: Final = "__matmul_bdims0, 212992 + (128 - 1)>>>"


@dataclass(frozen=True)
class Twin:
    """A wrong kernel.

    Attributes:
        candidate: What to build.
        fails: How it must fail: ``wrong`` (a check of ``verify``), ``CandidateCrashed``,
            ``CandidateHung``, ``CandidateRefused``, or ``timed`` (passes ``verify``, refused
            by ``time``).
        says: A part of the explanation.
        looks_right: Whether a 5 % check on inputs uniform in [0, 2) lets it pass.
    """

    candidate: Candidate
    fails: str
    says: str
    looks_right: bool = False


def twins(plain: Candidate) -> dict[str, Twin]:
    """All wrong kernels by name. ``plain`` is the start kernel ``matmul_f16_plain``."""
    early = plain.source.replace(_WAIT + _RELEASE, _RELEASE + _WAIT)
    return {
        "racy_early": Twin(Candidate(source=early), "wrong", "a race", looks_right=True),
        "racy_wait1": Twin(_undrained(plain, 1), "wrong", "a race", looks_right=True),
        "racy_wait2": Twin(_undrained(plain, 2), "wrong", "a race", looks_right=True),
        "ghost": Twin(
            _patch(plain, _LAUNCH, f"  if (M == 0) {_LAUNCH.strip()}"), "wrong", "written"
        ),
        "half": Twin(_patch(plain, _GRID, _GRID.replace("/ 128", "/ 256")), "wrong", "written"),
        "zeros": Twin(
            _patch(plain, _STORE, f"    for (float &x : acc) x = 0;\n{_STORE}"), "wrong", "wrong"
        ),
        "mutating": Twin(
            _by_one_thread(plain, "lhs[0] = f16(3.0f);"), "wrong", "changed its inputs"
        ),
        "trespassing": Twin(_by_one_thread(plain, "output[-1] = f16(3.0f);"), "wrong", "outside"),
        "illegal": Twin(
            _by_one_thread(plain, "*reinterpret_cast<volatile int *>(8) = 1;"),
            "CandidateCrashed",
            "cudaErrorIllegalAddress",
        ),
        "aborting": Twin(
            _patch(plain, _LAUNCH, f"  std::abort();\n{_LAUNCH}"), "CandidateCrashed", "SIGABRT"
        ),
        "hanging": Twin(
            _by_one_thread(plain, 'for (;;) asm volatile("nanosleep.u32 1000;");'),
            "CandidateHung",
            "no answer",
        ),
        "unlaunchable": Twin(
            _patch(plain, _SHARED, "__matmul_bdims0, 300000>>>"), "CandidateRefused", "launch"
        ),
        "lazy": Twin(
            _patch(
                plain, _LAUNCH, f"  static int calls = 0;\n  if (++calls > 12) return;\n{_LAUNCH}"
            ),
            "timed",
            "a timed launch computed a wrong result",
        ),
    }


def _patch(base: Candidate, search: str, replace: str) -> Candidate:
    return base.model_copy(update={"patches": (Replace(search=search, replace=replace),)})


def _by_one_thread(base: Candidate, statement: str) -> Candidate:
    """A statement that one thread of one block executes at the start of the kernel."""
    guarded = f"    if (blockIdx.x == 0 && blockIdx.y == 0) {statement}\n{_START}"
    return _patch(base, _START, guarded)


def _undrained(base: Candidate, depth: int) -> Candidate:
    """Stages are given back while ``depth`` groups of WGMMAs still run."""
    patches = (
        Replace(search=_DRAIN, replace=f"warpgroup_wait<{depth}>();"),
        Replace(search=_STORE, replace=f"    {_DRAIN}\n{_STORE}"),
    )
    return base.model_copy(update={"patches": patches})
