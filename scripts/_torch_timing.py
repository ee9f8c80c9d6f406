"""Times PyTorch's f16 matmul with PyTorch's own events, as a second opinion on our harness.

Usage: ``python3 _torch_timing.py MxNxK[:train] …``; needs nothing of croq_fsm. Prints one JSON
line: the library that was loaded, and the medians of the blocks of each shape in nanoseconds.

The same conditions as in the harness, with other means: right operand stored as [N, K] (TN),
normal inputs, outputs overwritten and 256 MB written before each launch, the host's part hidden
behind a device sleep, a pause between blocks. With ``train`` so many launches, each on operands
of its own that were not touched since the flush, stand between two events.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch

_BLOCKS, _LAUNCHES, _PAUSE_S, _WARM_S = 6, 30, 0.1, 0.1
_FLUSH_BYTES, _SETS = 256 << 20, 3
_SLEEP_S, _LEAD_S, _CLOCK_HZ = 75e-6, 12e-6, 1.7e9


def library() -> str:
    """Path of the BLAS library in this process."""
    lines = Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines()
    found = {line.split()[-1] for line in lines if "libcublas.so" in line}
    return min(found, default="")


def measure(shape: str, train: int) -> list[float]:
    """Medians of the blocks, nanoseconds a launch."""
    m, n, k = map(int, shape.split("x"))
    torch.manual_seed(1)
    new = {"device": "cuda", "dtype": torch.float16}
    count = train if train > 1 else _SETS
    lhs = [torch.randn(m, k, **new) for _ in range(count)]
    rhs = [torch.randn(n, k, **new) for _ in range(count)]
    out = [torch.empty(m, n, **new) for _ in range(count)]
    flush = torch.empty(_FLUSH_BYTES // 4, device="cuda", dtype=torch.int32)
    cycles = int((_SLEEP_S + (_LEAD_S * train if train > 1 else 0.0)) * _CLOCK_HZ)
    until = time.perf_counter() + _WARM_S
    while time.perf_counter() < until:
        torch.mm(lhs[0], rhs[0].t(), out=out[0])
        torch.cuda.synchronize()
    medians = []
    for _ in range(_BLOCKS):
        events = []
        for i in range(_LAUNCHES):
            used = range(train) if train > 1 else [i % _SETS]
            for _ in range(3):  # what was queued too late is queued again
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                for j in used:
                    out[j].fill_(float("nan"))
                flush.fill_(i)
                torch.cuda._sleep(cycles)  # noqa: SLF001 - there is no public one
                start.record()
                for j in used:
                    torch.mm(lhs[j], rhs[j].t(), out=out[j])
                stop.record()
                if not start.query():
                    break
            events.append((start, stop))
        torch.cuda.synchronize()
        times = [start.elapsed_time(stop) * 1e6 / train for start, stop in events[1:]]
        medians.append(statistics.median(times))
        time.sleep(_PAUSE_S)
    return medians


def main() -> int:
    """Measure all shapes."""
    found = {}
    for argument in sys.argv[1:]:
        shape, _, train = argument.partition(":")
        found[shape] = measure(shape, int(train or 1))
    told = {"cublas": library(), "torch": torch.__version__, "ns": found}
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
