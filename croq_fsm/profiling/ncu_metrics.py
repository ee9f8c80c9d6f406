"""Which counters are asked for, and how their text is read. Values are kept in base units."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import Final

from croq_fsm.domain.profile import Metric

TENSOR: Final = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed"
GMMA: Final = "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active"
SM: Final = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM: Final = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
L2: Final = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
L2_HIT: Final = "lts__t_sector_hit_rate.pct"
DURATION: Final = "gpu__time_duration.sum"
WAVES: Final = "launch__waves_per_multiprocessor"
OCCUPANCY: Final = "sm__warps_active.avg.pct_of_peak_sustained_active"
ISSUE: Final = "smsp__issue_active.avg.pct_of_peak_sustained_active"
STORE_CONFLICTS: Final = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
LOAD_CONFLICTS: Final = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum"
LOCAL_LOADS: Final = "smsp__sass_inst_executed_op_local_ld.sum"
LOCAL_STORES: Final = "smsp__sass_inst_executed_op_local_st.sum"
REGISTERS: Final = "launch__registers_per_thread"
OCCUPANCY_LIMITS: Final = tuple(
    f"launch__occupancy_limit_{what}"
    for what in ("barriers", "blocks", "registers", "shared_mem", "warps")
)
STALL_PREFIX: Final = "smsp__average_warps_issue_stalled_"
STALL_SUFFIX: Final = "_per_issue_active.ratio"
_STALLS: Final = (
    "barrier",
    "gmma",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "no_instruction",
    "short_scoreboard",
    "sleeping",
    "wait",
)

#: A few seconds' worth: what classification and the ideators use.
SMALL_SET: Final = (
    DURATION,
    TENSOR,
    GMMA,
    SM,
    DRAM,
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    L2,
    L2_HIT,
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    STORE_CONFLICTS,
    LOAD_CONFLICTS,
    OCCUPANCY,
    ISSUE,
    "smsp__inst_executed.sum",
    "sm__inst_executed.avg.per_cycle_active",
    "sm__cycles_elapsed.avg",
    "sm__cycles_active.avg",
    "sm__cycles_elapsed.avg.per_second",
    LOCAL_LOADS,
    LOCAL_STORES,
    REGISTERS,
    "launch__grid_size",
    "launch__block_size",
    "launch__shared_mem_per_block_dynamic",
    "launch__sm_count",
    WAVES,
    *OCCUPANCY_LIMITS,
    *(f"{STALL_PREFIX}{stall}{STALL_SUFFIX}" for stall in _STALLS),
)

#: Of the full set's two thousand counters these say nothing about a kernel.
_UNINTERESTING: Final = re.compile(
    r"^(?:device__|profiler__|nvlink|numa|thread_id|sm__ops_path|breakdown:|group:|pmsampling:"
    r"|launch__(?:context|device|stream|uses|function|cluster_sched|tpc|persist|stack)"
    r"|(?:FBSP|FE_B|GPC_[AB]|LTS|SM_[A-C]|SYS)\.)|peak_sustained$|peak_sustained_elapsed\.per_second$"
    r"|\.(?:min|max)(?:\.|$)|\.sum\.p(?:ct|eak)|max_rate$"
)
_PREFIXES: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SCALED: Final = re.compile(r"^(?P<prefix>[KMGT]?)(?P<unit>byte|hz)(?P<per>/.*)?$")
_TIMES: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_PER_TIME: Final = re.compile(r"^(?P<what>[a-z]+)/(?P<time>ns|us|ms)$")
_FIRST_COLUMNS: Final = 11


def is_interesting(name: str) -> bool:
    """Whether a counter is worth keeping in a profile."""
    return _UNINTERESTING.search(name) is None


def base_units(value: float, unit: str) -> tuple[float, str]:
    """``(1.5, "Mbyte")`` → ``(1.5e6, "byte")``; times become ns, rates become per second."""
    scaled = _SCALED.match(unit if unit[:1] != "G" or unit != "Ghz" else "Ghz")
    if scaled:
        factor = _PREFIXES.get(scaled["prefix"], 1.0)
        return value * factor, scaled["unit"] + (scaled["per"] or "")
    if unit in _TIMES:
        return value * _TIMES[unit], "ns"
    per = _PER_TIME.match(unit)
    if per:
        return value * 1e9 / _TIMES[per["time"]], f"{per['what']}/s"
    return value, unit


def metric(name: str, text: str, unit: str) -> Metric | None:
    """A counter from its text, or None when it holds no number."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    if not math.isfinite(value):  # a ratio over nothing: absent, not a number
        return None
    value, unit = base_units(value, unit)
    return Metric(name=name, value=value, unit=unit)


def read_raw_csv(text: str) -> list[tuple[str, list[Metric]]]:
    """Launches of ``ncu --csv --page raw``: kernel name and counters of each.

    Lines of the profiler itself (``==PROF==``) before the table are skipped.

    Raises:
        ValueError: There is no table.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError("no raw CSV table of ncu found")
    rows = list(csv.reader(io.StringIO("\n".join(lines[start:]))))
    names, units = rows[0], rows[1]
    kernel = names.index("Kernel Name")
    launches = []
    for row in rows[2:]:
        cells = zip(names, units, row, strict=False)
        counters = [metric(n, v, u) for n, u, v in list(cells)[_FIRST_COLUMNS:]]
        launches.append((row[kernel], [counter for counter in counters if counter is not None]))
    return launches
