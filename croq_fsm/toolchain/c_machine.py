"""The CPU as a device: identity, static limits, measured peaks, and which cores to run on."""

from __future__ import annotations

import json
import os
import platform
import re
import uuid
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from croq_fsm.config import Config
from croq_fsm.domain import names
from croq_fsm.domain.device import Device
from croq_fsm.domain.source import sha256
from croq_fsm.errors import EnvironmentMissing
from croq_fsm.toolchain.process import Command, Runner

_CPUS: Final = Path("/sys/devices/system/cpu")
_NAMESPACE: Final = uuid.UUID("9f1d6c5e-7a51-4f7c-8d3f-3b1f0a2f6f10")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: The three streams together: well above the last cache, and bounded.
_STREAM_TIMES, _STREAM_LEAST, _STREAM_MOST = 4, 96 << 20, 768 << 20


@dataclass(frozen=True)
class Peaks:
    """What the machine can do at most with the configured threads.

    Attributes:
        flops: Fused multiply-adds from registers, counted as two, per second.
        bandwidth: Bytes per second of three streams from memory.
    """

    flops: float
    bandwidth: float


class CpuMachine:
    """Facts about the CPU of this machine.

    Args:
        cpuinfo: Content of ``/proc/cpuinfo``.
        cpus: Folder of the CPUs in sysfs.
    """

    def __init__(self, cpuinfo: str | None = None, cpus: Path = _CPUS) -> None:
        self._cpuinfo = _read(Path("/proc/cpuinfo")) if cpuinfo is None else cpuinfo
        self._cpus = cpus

    @cached_property
    def name(self) -> str:
        """Model name, or implementer and part where there is none (Arm)."""
        if model := self._field("model name"):
            return model
        implementer, part = self._field("CPU implementer"), self._field("CPU part")
        return f"{implementer} {part}".strip() or "unknown"

    @property
    def key(self) -> str:
        """``cpu_<arch>_<model name>``."""
        return names.gpu_key(f"cpu_{platform.machine()}", self.name)

    @cached_property
    def uuid(self) -> str:
        """The same at every start on this machine, another one elsewhere."""
        machine = _read(Path("/etc/machine-id")).strip() or platform.node()
        return f"CPU-{uuid.uuid5(_NAMESPACE, f'{machine} {self.name}')}"

    @cached_property
    def instructions(self) -> frozenset[str]:
        """Instruction-set extensions as the kernel names them."""
        return frozenset((self._field("flags") or self._field("Features")).split())

    @cached_property
    def fast_cpus(self) -> tuple[int, ...]:
        """CPUs that we may use and that are the fastest kind of this machine.

        On machines with two kinds of cores a kernel that moved between them would look like
        two kernels.
        """
        allowed = sorted(os.sched_getaffinity(0))
        speeds = {cpu: self._speed(cpu) for cpu in allowed}
        return tuple(cpu for cpu in allowed if speeds[cpu] == max(speeds.values()))

    def cpus_for(self, threads: int) -> tuple[int, ...]:
        """CPUs to stay on: one core for one thread (the last one serves fewer interrupts)."""
        return self.fast_cpus[-1:] if threads == 1 else self.fast_cpus

    @cached_property
    def limits(self) -> dict[str, int]:
        """Static limits; one that is not known is absent."""
        found = {"cores": len(self.fast_cpus), **self._caches()}
        if width := self._vector_bytes():
            found["vector_bytes"] = width
            is_many = "avx512f" in self.instructions or platform.machine() == "aarch64"
            found["vector_registers"] = 32 if is_many else 16
        return found

    def device(self, peaks: Peaks | None, threads: int) -> Device:
        """The device of a session."""
        facts = {
            "arch": platform.machine(),
            "kernel": platform.release(),
            "threads": str(threads),
            "clock": "CPU time of the thread" if threads == 1 else "wall time",
            "cpus": ",".join(map(str, self.cpus_for(threads))),
        }
        if governor := _read(self._cpus / "cpu0/cpufreq/scaling_governor").strip():
            facts["governor"] = governor
        return Device(
            key=self.key,
            name=self.name,
            uuid=self.uuid,
            peak_flops=peaks.flops if peaks else None,
            peak_bandwidth=peaks.bandwidth if peaks else None,
            limits=self.limits,
            facts=facts,
        )

    def _field(self, name: str) -> str:
        match = re.search(rf"^{name}\s*:\s*(.+)$", self._cpuinfo, re.MULTILINE)
        return match.group(1).strip() if match else ""

    def _speed(self, cpu: int) -> int:
        """Relative capacity of a core, or its highest clock; 0 when neither is told."""
        folder = self._cpus / f"cpu{cpu}"
        for file in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
            text = _read(folder / file).strip()
            if text.isdigit():
                return int(text)
        return 0

    def _caches(self) -> dict[str, int]:
        found = {}
        for index in sorted(self._cpus.glob("cpu0/cache/index*")):
            kind = _read(index / "type").strip()
            size = _size(_read(index / "size").strip())
            level = _read(index / "level").strip()
            if size and kind != "Instruction":
                found["l1d_bytes" if level == "1" else f"l{level}_bytes"] = size
        return found

    def _vector_bytes(self) -> int:
        flags = self.instructions
        if "sve" in flags:
            text = _read(Path("/proc/sys/abi/sve_default_vector_length")).strip()
            return int(text) if text.isdigit() else 16
        widths = (("avx512f", 64), ("avx", 32), ("sse2", 16), ("asimd", 16))
        return next((width for flag, width in widths if flag in flags), 0)


def measure_peaks(
    runner: Runner,
    program: Path,
    machine: CpuMachine,
    config: Config,
    folder: Path,
    *,
    again: bool = False,
) -> Peaks:
    """Measure the peaks once and remember them in ``folder``.

    A busy machine shows too low a peak, never too high a one: when it is measured again, the
    higher value stays.

    Args:
        runner: Starts the program.
        program: Our compiled ``peaks.c``.
        machine: The CPU.
        config: Threads and deadlines.
        folder: Where ``peaks-*.json`` is kept; also the working folder.
        again: Measure even if something is remembered.

    Raises:
        EnvironmentMissing: The program fails.
    """
    threads = config.c.threads
    identity = sha256(f"{machine.uuid} {threads} {sha256(program.read_bytes())}")
    remembered = folder / f"peaks-{identity[:16]}.json"
    known = _peaks_of(_read(remembered))
    if known is not None and not again:
        return known
    last_cache = max(machine.limits.get("l3_bytes", 0), machine.limits.get("l2_bytes", 0))
    nbytes = min(max(_STREAM_TIMES * last_cache, _STREAM_LEAST), _STREAM_MOST)
    argv = (str(program), str(nbytes), str(threads))
    done = runner.run(Command(argv, folder, config.deadlines.probe_s, "peaks"))
    peaks = _peaks_of(done.stdout)
    if not done.ok or peaks is None:
        why = (
            done.output.strip()[:300]
            or f"it ended as {done.ending.name} {done.returncode}; c.threads is {threads}"
        )
        raise EnvironmentMissing(f"the peaks could not be measured: {why}")
    if known is not None:
        flops, bandwidth = max(known.flops, peaks.flops), max(known.bandwidth, peaks.bandwidth)
        peaks = Peaks(flops, bandwidth)
    remembered.write_text(json.dumps(asdict(peaks)), encoding="utf-8")
    return peaks


def _peaks_of(text: str) -> Peaks | None:
    try:
        told: dict[str, Any] = json.loads(text)
        return Peaks(float(told["flops"]), float(told["bandwidth"]))
    except (ValueError, KeyError, TypeError):
        return None


def _read(path: Path) -> str:
    """Content of a small system file; "" when it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _size(text: str) -> int:
    """``32768K`` in bytes."""
    if text and text[-1] in _UNITS and text[:-1].isdigit():
        return int(text[:-1]) * _UNITS[text[-1]]
    return int(text) if text.isdigit() else 0
