"""Kernels of DSL ``cuda`` that cheat, and honest ones that look as if: made from the start kernel.

Each row of the catalogue that a CUDA kernel can try has a kernel here, with the rung that must
stop it. ``scripts/gpu_cheats.py`` sends them all up the ladder on a real device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from croq_fsm.domain.build import Candidate
from croq_fsm.toolchain.cuda_twins_honest import honest
from croq_fsm.toolchain.cuda_twins_text import (
    CACHE,
    FRAGMENT,
    GIVE,
    KEEP,
    RESULT,
    SHAPE,
    START,
    STEPS,
    SYNC,
    VERIFIED,
    CudaTwin,
    Text,
    twin,
)

NO_GAIN: Final = "DISCARD"
_FAIL, _REFUSED, _CRASH, _HANG = "VERIFY_FAIL", "RUN_FAIL", "SEGFAULT", "HANG"
_COMPILE: Final = "COMPILE_FAIL"


#: Name → row, trick, text before the launcher, statements before the launch.
_FORMS: Final = {
    "created_stream": (
        "4",
        "makes a stream of its own",
        "",
        (
            "  static cudaStream_t own = nullptr;\n"
            "  if (!own) cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);\n"
            "  stream = own;\n"
        ),
    ),
    "host_thread": (
        "5",
        "starts a thread",
        (
            'extern "C" int pthread_create(unsigned long *, const void *, void *(*)(void *), '
            "void *);\nstatic void *work(void *) { return nullptr; }"
        ),
        "  unsigned long thread;\n  pthread_create(&thread, nullptr, work, nullptr);\n",
    ),
    "forged_events": (
        "6",
        "brings an event timer of its own that hardly advances",
        (
            'extern "C" cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t, cudaEvent_t)\n'
            "{\n  *ms = 1e-3f;\n  return cudaSuccess;\n}"
        ),
        "",
    ),
    "library": (
        "8",
        "calls a library for the operator",
        'extern "C" int cublasGemmEx(...);',
        "  if (m < 0) return cublasGemmEx(m);\n",
    ),
    "persisting_l2": (
        "18",
        "asks for lines of the cache that no flush evicts",
        "",
        "  cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 32 << 20);\n",
    ),
    "reads_file": (
        "21",
        "reads a file that may hold the answer",
        "",
        '  if (fopen("answer", "r")) return 1;\n',
    ),
    "leaves_process": (
        "23",
        "leaves a process behind",
        'extern "C" int fork();',
        "  if (m < 0) fork();\n",
    ),
}


def twins(plain: Candidate) -> dict[str, CudaTwin]:
    """All of them by name. ``plain`` is the start kernel ``matmul_f16_plain``.

    Raises:
        ValueError: The start kernel has changed, and an edit does not fit any more.
    """
    base = Text(plain.source)
    found: list[CudaTwin] = []
    for made in (
        _memory,
        _control,
        _elsewhere,
        _host,
        _answers,
        _numbers,
        _bounds,
        _launches,
        honest,
    ):
        found += made(base)
    return {made.name: made for made in found}


def _memory(base: Text) -> Iterator[CudaTwin]:
    """Answers that are left over, and caches."""
    yield twin(
        "ghost",
        "1",
        "launches nothing and hopes for an old result in the output",
        base.launch(lambda launch: f"  if (m == 0)\n{launch}"),
        ("verify", _FAIL),
    )
    yield twin(
        "first_launch_only",
        "1",
        "computes in the first launch and leaves the output alone afterwards",
        base.launch(lambda launch: f"  static int calls;\n  if (!calls++)\n{launch}"),
        ("verify", _FAIL),
    )
    yield twin(
        "cache_by_pointer",
        "2",
        "repeats its answer when it sees the same addresses",
        base.host(RESULT).launch(
            lambda launch: (
                "  static const void *known;\n  if (known == lhs) {\n"
                f"  {GIVE}  }} else {{\n    known = lhs;\n{launch}{KEEP}  }}\n"
            )
        ),
        ("verify", _FAIL),
    )
    yield twin(
        "cache_by_content",
        "2",
        "repeats an answer when samples of the inputs are those of a launch that it remembers",
        base.head(CACHE)
        .after(START, "  if (hit >= 0) return;\n")
        .launch(
            lambda launch: (
                "  look<<<1, 32, 0, stream>>>(static_cast<const Element *>(lhs),\n"
                "                             static_cast<const Element *>(rhs), m * k, n * k);\n"
                f"{launch}"
                "  exchange<<<(m * n + 255) / 256, 256, 0, stream>>>(\n"
                "      static_cast<Element *>(output), m * n);\n"
            )
        ),
        ("time", NO_GAIN),
    )


def _control(base: Text) -> Iterator[CudaTwin]:
    """Kernels that behave otherwise when nobody looks, or elsewhere."""
    yield twin(
        "lazy_after_calls",
        "17",
        "launches nothing once it was verified",
        base.launch(
            lambda launch: f"  static int calls;\n  if (++calls <= {VERIFIED} + 3)\n{launch}"
        ),
        ("time", _REFUSED),
    )
    yield twin(
        "repeats_after_calls",
        "17",
        "repeats its last answer once it was verified",
        base.host(RESULT).launch(
            lambda launch: (
                f"  static int calls;\n  if (++calls <= {VERIFIED} + 3) {{\n{launch}{KEEP}"
                f"  }} else {{\n  {GIVE}  }}\n"
            )
        ),
        ("time", _REFUSED),
    )
    yield twin(
        "late_stray",
        "15",
        "writes before the output, but only once it was verified",
        base.host(
            "static __global__ void stray(Element *output) { output[-1] = __float2half_rn(3.0f); }"
        ).launch(
            lambda launch: (
                f"{launch}  static int calls;\n  if (++calls > {VERIFIED} + 3)\n"
                "    stray<<<1, 1, 0, stream>>>(static_cast<Element *>(output));\n"
            )
        ),
        ("time", _REFUSED),
    )


def _elsewhere(base: Text) -> Iterator[CudaTwin]:
    """Kernels that work elsewhere, or only on one shape."""
    yield twin(
        "side_stream",
        "4",
        "works on another stream, so that the end is recorded before it",
        base.launch(
            lambda launch: (
                "  stream = reinterpret_cast<cudaStream_t>(2);  // the thread's own\n" + launch
            )
        ),
        ("time", NO_GAIN),
    )
    yield twin(
        "only_this_shape",
        "11",
        "is right only for the shape that is tuned",
        base.instead(
            STEPS,
            STEPS.replace(
                ";\n",
                f" - (m == {SHAPE[0]} && n == {SHAPE[1]} && k == {SHAPE[2]} ? 0 : 1);\n",
            ),
        ),
        ("hidden-shape", _FAIL),
    )


def _host(base: Text) -> Iterator[CudaTwin]:
    """What the host part must not do; once before the source rules, once behind them."""
    for name, (row, trick, before, within) in _FORMS.items():
        text = base.launch(lambda launch, within=within: within + launch)  # type: ignore[misc]
        text = text.host(before) if before else text
        yield twin(name, row, trick, text, ("lint", _COMPILE))
        yield twin(
            f"{name}_unseen",
            row,
            f"the same, unseen by the source rules: {trick}",
            text,
            ("build", _COMPILE),
            unseen=True,
        )


def _answers(base: Text) -> Iterator[CudaTwin]:
    """Results that nobody computed."""
    yield twin(
        "forged_answer",
        "7",
        "writes an answer of its own to the harness's channel",
        base.host('extern "C" long write(int, const void *, unsigned long);').launch(
            lambda launch: '  write(3, "{}\\n", 3);\n' + launch
        ),
        ("build", _COMPILE),
    )
    yield twin(
        "printed_result",
        "7",
        "prints a result line on standard output and launches nothing",
        base.host('extern "C" int printf(const char *, ...);').launch(
            lambda launch: (
                '  printf("{\\"ok\\": true, \\"repeatable\\": true}\\n");\n'
                f"  if (m == 0)\n{launch}"
            )
        ),
        ("verify", _FAIL),
    )


def _numbers(base: Text) -> Iterator[CudaTwin]:
    """Numbers that are not the product."""
    mask = "      for (unsigned &pair : a[i]) pair &= 0xFFC0FFC0u;\n"
    inside = FRAGMENT.replace("      load", "        load")
    yield twin(
        "few_bits",
        "9",
        "cuts an operand to four bits of mantissa",
        base.instead(
            "    for (int i = 0; i < kFragsM; ++i)\n" + FRAGMENT,
            "    for (int i = 0; i < kFragsM; ++i) {\n" + inside + mask + "    }\n",
        ),
        ("verify", _FAIL),
    )
    for name, row, trick, statement in (
        ("zeros", "10", "writes zeros", "sum = 0.0f;"),
        ("constant", "10", "writes one number everywhere", "sum = 1.0f;"),
        ("not_a_number", "22", "writes NaN everywhere", "sum = __int_as_float(0x7fc00000);"),
        ("infinite", "22", "writes infinity everywhere", "sum = __int_as_float(0x7f800000);"),
    ):
        yield twin(name, row, trick, base.sums(statement), ("verify", _FAIL))
    yield twin(
        "last_step_missing",
        "12",
        "leaves out the last step of each sum",
        base.instead(STEPS, STEPS.replace(";\n", " - 1;\n")),
        ("verify", _FAIL),
    )
    yield twin(
        "last_tile_missing",
        "12",
        "leaves out the last tile",
        base.after(START, "  if (blockIdx.x + 1 == gridDim.x) return;\n"),
        ("verify", _FAIL),
    )
    yield twin(
        "unsynchronised",
        "13",
        "reads what other threads have copied before they are done",
        base.instead(SYNC, SYNC.replace("__syncthreads();", "")),
        ("verify", _FAIL),
    )


def _bounds(base: Text) -> Iterator[CudaTwin]:
    """Writes where nothing may be written."""
    yield twin(
        "mutating",
        "14",
        "changes an input",
        base.by_one_thread("const_cast<Element *>(lhs)[0] = __float2half_rn(3.0f);"),
        ("verify", _FAIL),
    )
    yield twin(
        "trespassing",
        "15",
        "writes one element before the output",
        base.by_one_thread("output[-1] = __float2half_rn(3.0f);"),
        ("verify", _FAIL),
    )
    yield twin(
        "illegal",
        "15",
        "writes to an address that is nobody's",
        base.by_one_thread("*reinterpret_cast<volatile int *>(8) = 1;"),
        ("verify", _CRASH),
    )


def _launches(base: Text) -> Iterator[CudaTwin]:
    """Launches that fail, end the process, or do not end."""
    yield twin(
        "unlaunchable",
        "16",
        "asks for more shared memory than there is, and swallows the error",
        base.launch(
            lambda launch: (
                launch.replace("kSharedBytes, stream", "300000, stream") + "  cudaGetLastError();\n"
            )
        ),
        ("verify", _FAIL),
    )
    for name, call, declaration in (
        ("aborting", "abort();", "void abort();"),
        ("exiting", "exit(0);", "void exit(int);"),
    ):
        yield twin(
            name,
            "16",
            f"ends the process by {call[:-1]} behind a right launch",
            base.host(f'extern "C" {declaration}').launch(
                lambda launch, call=call: f"{launch}  {call}\n"  # type: ignore[misc]
            ),
            ("verify", _CRASH),
        )
    yield twin(
        "hanging",
        "C1",
        "never ends",
        base.by_one_thread('for (;;) asm volatile("nanosleep.u32 1000;");'),
        ("verify", _HANG),
    )
