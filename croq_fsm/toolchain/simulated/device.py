"""The modelled device and its library, both marked as what they are."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from croq_fsm.domain.device import Device, Finding
from croq_fsm.domain.task import Task
from croq_fsm.errors import EnvironmentMissing
from croq_fsm.toolchain.simulated import model
from croq_fsm.toolchain.simulated.features import Features

KEY: Final = "sm90_SIMULATED"

#: Choreo options that the modelled compiler knows, and what it tells of itself.
OPTIONS: Final = frozenset(
    {"--apprx-div", "--mem-reuse", "--no-vectorize", "--stmatrix", "--vectorize", "-fopt-dma"}
)
COMPILERS: Final = {"choreo": "SIMULATED", "nvcc": "SIMULATED", "cutlass": "SIMULATED"}

_FULL: Final = Features(
    stages=4,
    ctas=model.SMS,
    registers=(40, 232),
    order="gm",
    group=8,
    arrivals="warp",
    uniform=True,
    descriptors="stepped32",
    deep=True,
    epilogue="panels",
    staging=32768,
    passes=2,
    event_guard=True,
)
_SMALL: Final = Features(
    tile_m=64,
    tile_n=128,
    stages=8,
    consumers=1,
    arrivals="warp",
    uniform=True,
    descriptors="stepped32",
    deep=True,
    epilogue="panels",
    staging=16384,
)


def device(seed: int) -> Device:
    """Identity and limits of the model; the seed is part of the identity."""
    return Device(
        key=KEY,
        name="SM90, SIMULATED",
        uuid=f"SIMULATED-{seed}",
        peak_flops=model.SMS * 4096 * 1.98e9,
        peak_bandwidth=model.BANDWIDTH,
        limits={
            "sms": model.SMS,
            "smem_per_block": model.SHARED_LIMIT,
            "registers_per_thread": 255,
            "registers_per_sm": model.REGISTERS,
            "threads_per_block": 1024,
            "l2_bytes": model.L2_BYTES,
        },
        facts={"simulated": "a model; no number of it is a measurement", "seed": str(seed)},
        simulated=True,
    )


def findings() -> list[Finding]:
    """What ``doctor`` says of a simulation: nothing is needed, and nothing real is there."""
    told = "model of an SM90; compilers, device and profiler are SIMULATED"
    return [Finding(name="simulation", ok=True, found=told)]


def library_seconds(task: Task) -> float:
    """True time of the library reference: the best of a few kernels that a vendor would write.

    Raises:
        EnvironmentMissing: The operator is none that the model knows.
    """
    if task.operator != "matmul":
        raise EnvironmentMissing(f"the model has no library for {task.operator}")
    m, n, k = task.shape
    element = 1 if task.dtype.startswith("e4m3") else 2
    return _library((m, n, k), element)


@lru_cache(maxsize=256)
def _library(shape: tuple[int, int, int], element: int) -> float:
    members: tuple[Features, ...] = (
        _FULL,
        replace(_FULL, tile_m=256, tile_n=128),
        replace(_FULL, tile_n=128, stages=6, ctas=0, passes=1),
        _SMALL,
        replace(_SMALL, tile_m=128, tile_n=64, consumers=2),
    )
    if element == 1:
        members = tuple(replace(f, element=1, tile_k=128) for f in members)
    return min(model.truth(f, shape).seconds for f in members)
