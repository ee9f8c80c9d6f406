"""Parts shared by the tests of the rules for DSL ``croqtile``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from croqtile_support import shipped, task
from ideator_contract import make_context

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.device import Device
from croq_fsm.domain.profile import Metric, Profile
from croq_fsm.domain.states import Bottleneck
from croq_fsm.ideators.contract import Base, Context
from croq_fsm.ideators.rules.croqtile_config import (
    Gemm,
    Layout,
    Order,
    Shape,
    register_pair,
)
from croq_fsm.ideators.rules.croqtile_limits import Machine, is_feasible, settled
from croq_fsm.toolchain.croqtile_lint import lint

H200 = Device(
    key="sm90_NVIDIA_H200",
    name="NVIDIA H200",
    uuid="GPU-test",
    limits={
        "sms": 132,
        "smem_per_block": 232_448,
        "threads_per_block": 1_024,
        "registers_per_sm": 65_536,
        "l2_bytes": 52_428_800,
    },
)
MACHINE = Machine.of(H200.limits)

TENSOR = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
WAVES = "launch__waves_per_multiprocessor"

#: Counters as a profile of the plain kernel gives them on the main shape.
COUNTERS = {
    "gpu__time_duration.sum": 392_000.0,
    TENSOR: 81.0,
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 24.0,
    "dram__bytes_read.sum": 3.5e8,
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": 55.0,
    CONFLICTS: 3.67e6,
    WAVES: 7.76,
    "sm__inst_executed.avg.per_cycle_active": 0.67,
    "launch__registers_per_thread": 154.0,
}

MAIN = (4096, 8192, 4096)
SHAPES = [
    MAIN,
    (8192, 8192, 8192),
    (16384, 512, 16384),
    (512, 16384, 16384),
    (2048, 2048, 16384),
    (1024, 1024, 1024),
    (1000, 1160, 520),
]


def profile(counters: dict[str, float] | None = None, **changes: Any) -> Profile:
    """A profile with these counters."""
    values = COUNTERS if counters is None else counters
    known = Profile(
        binary="0" * 64,
        tool="ncu",
        full=False,
        bottleneck=Bottleneck.COMPUTE,
        confidence="high",
        evidence=("made by hand",),
        metrics=tuple(Metric(name=name, value=value) for name, value in values.items()),
    )
    return known.model_copy(update=changes)


def context(
    shape: tuple[int, ...] = MAIN,
    source: str | None = None,
    generated: str = "",
    flags: tuple[str, ...] = (),
    dtype: str = "f16",
    **changes: Any,
) -> Context:
    """A context of a matmul session whose base is ``source`` (the shipped plain kernel)."""
    asked = task(dtype, shape)
    text = shipped(f"{dtype}_plain") if source is None else source
    base = Base(
        iteration=1,
        name="iter001_start",
        candidate=Candidate(source=text, flags=flags),
        seconds=1e-3,
        structure={},
        generated=generated,
    )
    made = make_context(
        task=asked,
        device=H200,
        base=base,
        profile=profile(),
        dialect={"dialect": "head", "flags": "--stmatrix --no-map-hoist"},
        lint=lambda candidate: lint(candidate, asked),
    )
    return replace(made, **changes)


def members(seed: int, shape: Shape | None = None) -> Iterator[Gemm]:
    """Feasible members of the family, drawn at random without end."""
    rng = random.Random(seed)
    sizes = shape or Shape(*MAIN)
    while True:
        config = settled(_draw(rng), sizes)
        if is_feasible(config, sizes, MACHINE):
            yield config


def _draw(rng: random.Random) -> Gemm:
    consumers = rng.choice([1, 2, 2, 3, 4])
    orders: list[Order] = ["m", "n", "gm", "gn"]
    layouts: list[Layout] = ["rows", "panels"]
    order, layout = rng.choice(orders), rng.choice(layouts)
    return Gemm(
        tile_m=64 * consumers * rng.choice([1, 1, 2]),
        tile_n=rng.choice([64, 96, 120, 128, 136, 160, 192, 200, 224, 256]),
        tile_k=rng.choice([64, 64, 64, 128]),
        stages=rng.randint(2, 8),
        consumers=consumers,
        ctas=rng.choice([0, MACHINE.sms]),
        registers=rng.choice([None, register_pair(consumers)]),
        order=order,
        group=rng.choice([2, 8, 16]) if order in ("gm", "gn") else 0,
        elected=rng.random() < 0.7,
        release=rng.choice(["thread", "warp", "group"]),
        uniform=rng.random() < 0.6,
        staging=rng.choice(["tile", "tile", "stage"]),
        layout=layout,
        turns=rng.choice([1, 1, 2, 3]) if layout == "panels" else 1,
        guard=rng.choice(["event", "barrier"]),
        keep=rng.choice(["none", "lhs", "rhs"]),
        unroll=rng.choice([1, 1, 2, 4]),
        element=rng.choice(["f16", "bf16"]),
    )


#: Kernels that are known to compile: one of each construct, and those that rank first.
COMPILED: dict[str, Gemm] = {
    "plain_256": Gemm(elected=False),
    "plain_200": Gemm(tile_n=200, stages=4),
    "registers": Gemm(registers=(40, 232)),
    "persistent_256": Gemm(ctas=132, registers=(40, 232)),
    "persistent_224": Gemm(tile_n=224, ctas=132, registers=(40, 232)),
    "persistent_200": Gemm(tile_n=200, stages=4, ctas=132, registers=(40, 232)),
    "uniform_event_200": Gemm(
        tile_n=200,
        stages=4,
        ctas=132,
        registers=(40, 232),
        uniform=True,
        guard="event",
        release="warp",
    ),
    "panels_224": Gemm(
        tile_n=224, ctas=132, registers=(40, 232), uniform=True, layout="panels", guard="event"
    ),
    "turns_256": Gemm(
        stages=4,
        ctas=132,
        registers=(40, 232),
        uniform=True,
        layout="panels",
        turns=2,
        guard="event",
        order="gm",
        group=8,
    ),
    "stage_panels": Gemm(
        stages=4, registers=(40, 232), uniform=True, layout="panels", staging="stage"
    ),
    "stage_rows": Gemm(stages=4, registers=(40, 232), staging="stage", order="n"),
    "one_consumer": Gemm(tile_m=64, tile_n=128, stages=8, consumers=1, layout="panels"),
    "one_consumer_two_sums": Gemm(tile_n=72, stages=8, consumers=1),
    "three_consumers": Gemm(
        tile_m=192,
        tile_n=152,
        consumers=3,
        ctas=132,
        registers=(32, 160),
        uniform=True,
        guard="event",
    ),
    "four_consumers": Gemm(
        tile_m=256,
        tile_n=128,
        consumers=4,
        ctas=132,
        registers=(32, 112),
        uniform=True,
        layout="panels",
        guard="event",
    ),
    "two_sums": Gemm(
        tile_m=256,
        tile_n=128,
        stages=4,
        ctas=132,
        registers=(40, 232),
        uniform=True,
        layout="panels",
        turns=2,
        guard="event",
    ),
    "wide_sums": Gemm(
        tile_m=256,
        tile_n=200,
        stages=2,
        ctas=132,
        registers=(40, 232),
        uniform=True,
        guard="event",
    ),
    "bf16_deep_step": Gemm(
        tile_n=200,
        tile_k=128,
        stages=2,
        ctas=132,
        registers=(40, 232),
        uniform=True,
        guard="event",
        keep="lhs",
        unroll=2,
        order="gn",
        group=8,
        element="bf16",
    ),
    "bf16_panels": Gemm(
        tile_n=192,
        stages=4,
        ctas=132,
        registers=(40, 232),
        elected=False,
        release="group",
        layout="panels",
        element="bf16",
    ),
}
