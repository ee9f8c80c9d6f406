"""A profiler's report of the model, in the shape of ``ncu --csv --page raw``."""

from __future__ import annotations

import csv
import io
import math
from typing import Final

from croq_fsm.profiling import ncu_metrics as names
from croq_fsm.toolchain.simulated import model
from croq_fsm.toolchain.simulated.features import Features
from croq_fsm.toolchain.simulated.model import Truth

VERSION: Final = "SIMULATED"
_FIRST: Final = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
)


def raw_csv(kernel: str, f: Features, t: Truth, seed_factor: float = 1.0) -> str:
    """Two heading rows (names, units) and one launch.

    Args:
        kernel: Name of the kernel.
        f: What it is.
        t: What the model knows of it.
        seed_factor: Scatter of the counters, about 1.
    """
    grid = f.ctas or t.tiles
    table = _counters(f, t, grid, seed_factor)
    first = ("0", "1", "SIMULATED", "SIMULATED", kernel, "1", "7")
    place = (f"({f.threads}, 1, 1)", f"({grid}, 1, 1)", "0", "9.0")
    stream = io.StringIO()
    writer = csv.writer(stream, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerow([*_FIRST, *table])
    writer.writerow([""] * len(_FIRST) + [unit for _, unit in table.values()])
    writer.writerow([*first, *place, *(f"{value:.6g}" for value, _ in table.values())])
    return "==PROF== SIMULATED: a model's counters, no measurement\n" + stream.getvalue()


def _counters(f: Features, t: Truth, grid: int, scatter: float) -> dict[str, tuple[float, str]]:
    """Counter → value and unit."""
    dram = 100 * t.dram / (t.seconds * model.BANDWIDTH)
    tensor = min(99.0, 100 * t.tensor * scatter)
    hit = 100 * max(0.05, 1 - t.dram / max(t.dram, t.l2 * t.cycles * 64 * model.SMS))
    spilled = model.spills(f) * f.threads * grid / 4
    waves = grid / (model.SMS * t.blocks_per_sm)
    table = {
        names.DURATION: (t.seconds * 1e9 * scatter, "ns"),
        names.TENSOR: (tensor, "%"),
        names.GMMA: (tensor, "%"),
        names.SM: (max(tensor, 20.0), "%"),
        names.DRAM: (min(95.0, dram), "%"),
        "dram__bytes_read.sum": (t.dram, "byte"),
        names.L2: (100 * t.l2 * 0.85, "%"),
        names.L2_HIT: (hit, "%"),
        names.STORE_CONFLICTS: (t.conflicts, ""),
        names.OCCUPANCY: (100 * f.threads * t.blocks_per_sm / 2048, "%"),
        names.ISSUE: (10.0 if f.uniform else 17.0, "%"),
        "sm__cycles_elapsed.avg": (t.cycles * scatter, "cycle"),
        "sm__cycles_elapsed.avg.per_second": (t.clock, "hz"),
        names.LOCAL_LOADS: (spilled, "inst"),
        names.LOCAL_STORES: (spilled, "inst"),
        names.REGISTERS: (model.registers(f), "register/thread"),
        "launch__grid_size": (grid, ""),
        "launch__block_size": (f.threads, ""),
        "launch__shared_mem_per_block_dynamic": (f.shared_bytes, "byte/block"),
        "launch__sm_count": (model.SMS, "SM"),
        names.WAVES: (waves, ""),
    }
    limits = (
        model.SHARED_LIMIT // max(1, f.shared_bytes),
        model.REGISTERS // (f.threads * model.registers(f)),
    )
    for what, value in zip(("shared_mem", "registers"), limits, strict=True):
        table[f"launch__occupancy_limit_{what}"] = (max(1, value), "block")
    return table | _stalls(f, t)


def _stalls(f: Features, t: Truth) -> dict[str, tuple[float, str]]:
    idle = max(0.0, 1 - t.tensor)
    stalls = {
        "gmma": 8 * t.tensor,
        "long_scoreboard": 6 * idle + 10 / f.stages,
        "barrier": 20 * t.epilogue * (1 if f.ctas else 0.5),
        "short_scoreboard": math.log2(model.ways(f)) * 4 * t.epilogue,
        "wait": 0.5,
        "math_pipe_throttle": 0.1,
    }
    return {
        f"{names.STALL_PREFIX}{stall}{names.STALL_SUFFIX}": (value, "")
        for stall, value in stalls.items()
    }
