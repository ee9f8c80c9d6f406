"""Identity, limits and peaks of an NVIDIA device, asked of child processes.

The daemon itself never makes a CUDA context and never calls NVML: after a device fault both
can hang for ever. ``nvidia-smi`` and our judge program answer instead, each with a deadline.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from croq_fsm.domain.device import Device
from croq_fsm.domain.names import gpu_key
from croq_fsm.errors import EnvironmentMissing
from croq_fsm.toolchain.process import Command, Runner

_FIELDS: Final = (
    "index",
    "name",
    "uuid",
    "driver_version",
    "compute_cap",
    "memory.total",
    "power.limit",
    "clocks.max.sm",
    "clocks.max.mem",
    "ecc.mode.current",
    "persistence_mode",
    "mig.mode.current",
)
_ABSENT: Final = frozenset({"[N/A]", "[Not Supported]", "N/A", "", "[Unknown Error]"})


@dataclass(frozen=True)
class Peaks:
    """What the vendor's data sheet promises.

    Attributes:
        dense_flops: f16 or bf16 matrix products with f32 accumulation, dense, FLOP/s.
        bandwidth: Device memory, bytes/s.
    """

    dense_flops: float
    bandwidth: float


#: By a word of the device's name; the first that matches counts. SXM parts unless said.
_DATA_SHEET: Final = (
    ("GH200", Peaks(989.4e12, 4.0e12)),
    ("H200 NVL", Peaks(835.5e12, 4.8e12)),
    ("H200", Peaks(989.4e12, 4.8e12)),
    ("H100 NVL", Peaks(835.5e12, 3.9e12)),
    ("H100 PCIe", Peaks(756.4e12, 2.0e12)),
    ("H100", Peaks(989.4e12, 3.35e12)),
    ("H800 PCIe", Peaks(756.4e12, 2.0e12)),
    ("H800", Peaks(989.4e12, 3.35e12)),
    ("H20", Peaks(148.0e12, 4.0e12)),
)
#: Dense f16 operations of one SM90 multiprocessor per clock.
_FLOPS_PER_CLOCK: Final = 4096
_LIMITS: Final = (
    "sms",
    "smem_per_block",
    "smem_per_sm",
    "registers_per_sm",
    "threads_per_block",
    "l2_bytes",
)
_REGISTERS_PER_THREAD: Final = 255


def query_smi(
    runner: Runner, nvidia_smi: Path, cwd: Path, deadline_s: float
) -> list[dict[str, str]]:
    """One row per device; a value that the driver does not give is absent.

    Raises:
        EnvironmentMissing: There is no device, or the driver does not answer.
    """
    argv = (str(nvidia_smi), f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits")
    completed = runner.run(Command(argv=argv, cwd=cwd, deadline_s=deadline_s, label="nvidia-smi"))
    if not completed.ok:
        raise EnvironmentMissing(f"nvidia-smi failed: {completed.output.strip()[:300]}")
    rows = []
    for line in completed.stdout.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(_FIELDS):
            row = dict(zip(_FIELDS, values, strict=True))
            rows.append({name: value for name, value in row.items() if value not in _ABSENT})
    if not rows:
        raise EnvironmentMissing("nvidia-smi lists no device")
    return rows


def chosen_row(rows: list[dict[str, str]], uuid: str = "") -> dict[str, str]:
    """The device with this UUID; else the first of CUDA_VISIBLE_DEVICES; else the first."""
    wanted = uuid or os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    for row in rows:
        if wanted and (row.get("uuid", "").startswith(wanted) or row.get("index") == wanted):
            return row
    return rows[0]


def make_device(info: Mapping[str, object], row: Mapping[str, str]) -> Device:
    """The device from the judge's ``info`` answer and its row of ``nvidia-smi``.

    Either may be empty; what neither says is absent.
    """
    name = str(info.get("name") or row.get("name") or "unknown")
    capability = str(info.get("capability") or row.get("compute_cap", "").replace(".", ""))
    limits = {key: value for key in _LIMITS if isinstance(value := info.get(key), int) and value}
    if limits:
        limits["registers_per_thread"] = _REGISTERS_PER_THREAD
    peaks = peaks_of(name)
    facts = {
        key.replace(".", "_"): value for key, value in row.items() if key not in {"name", "uuid"}
    }
    clock = _number(info.get("max_sm_mhz")) or _number(row.get("clocks.max.sm"))
    return Device(
        key=gpu_key(f"sm{capability}", name),
        name=name,
        uuid=str(info.get("uuid") or row.get("uuid") or ""),
        peak_flops=_flops(peaks, limits.get("sms"), clock, capability),
        peak_bandwidth=peaks.bandwidth if peaks else None,
        limits=limits,
        facts=facts,
        peak_source=_source(name, peaks, limits.get("sms"), clock, capability),
    )


def peaks_of(name: str) -> Peaks | None:
    """Data-sheet peaks of a device by its name; None for one that is not in the table."""
    return next((peaks for word, peaks in _DATA_SHEET if word in name), None)


def _source(
    name: str, peaks: Peaks | None, sms: int | None, mhz: float | None, capability: str
) -> str:
    """Where the peaks are from, in words; "" when there are none."""
    parts = [f"the vendor's data sheet for {name}"] if peaks else []
    if sms and mhz and capability == "90":
        parts.append(f"{sms} multiprocessors x {_FLOPS_PER_CLOCK} FLOP x {mhz:.0f} MHz")
    return ", or if more ".join(parts)


def _flops(
    peaks: Peaks | None, sms: int | None, mhz: float | None, capability: str
) -> float | None:
    """The larger of the data sheet and what the units could do at the highest clock.

    A data sheet states the boost clock under load; a short kernel on a cool chip may run at the
    highest one, and a roof must be above whatever can honestly be measured.
    """
    bounds = [peaks.dense_flops] if peaks else []
    if sms and mhz and capability == "90":
        bounds.append(sms * _FLOPS_PER_CLOCK * mhz * 1e6)
    return max(bounds, default=None)


def _number(value: object) -> float | None:
    try:
        return float(str(value)) or None
    except ValueError:
        return None
