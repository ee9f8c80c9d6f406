"""Environment report of the DSLs of an NVIDIA device: what is there and what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from croq_fsm.domain.device import Finding
from croq_fsm.errors import CroqError
from croq_fsm.gpu.device import chosen_row, query_smi
from croq_fsm.profiling.ncu import PERMISSION_CURE, Ncu
from croq_fsm.toolchain.croqtile_probe import Probe
from croq_fsm.toolchain.croqtile_tools import CURES, Tools
from croq_fsm.toolchain.process import Runner

_PARAMETERS: Final = Path("/proc/driver/nvidia/params")
_SM90: Final = "9.0"
BUILD, _RUN = "compiling any candidate", "running anything on the device"


class DeviceDoctor:
    """Looks at what every DSL of the device needs. Never raises for absence.

    Args:
        runner: Starts the tools that are asked.
        tools: Where they are.
        probe: Facts about the compilers.
        folder: Private folder of the children.
        deadline_s: Seconds for each child.
    """

    def __init__(
        self, runner: Runner, tools: Tools, probe: Probe, folder: Path, deadline_s: float
    ) -> None:
        self._runner = runner
        self._tools = tools
        self._probe = probe
        self._folder = folder
        self._deadline_s = deadline_s

    def findings(self) -> list[Finding]:
        """One line for each thing that was looked at."""
        return [
            *self.language(),
            self.tool("nvcc", self._probe.nvcc_version(), BUILD),
            self.tool("nm", "", "linking a candidate: its symbols must be seen first"),
            self._device(),
            self.tool("cublas", "", "timing the library reference (iter000)"),
            self._profiler(),
            self._counters(),
            self.tool("cuobjdump", "", "reading machine code by hand", required=False),
            self.tool("sanitizer", "", "looking for races and bad accesses", required=False),
        ]

    def language(self) -> list[Finding]:
        """What the DSL needs beside the CUDA toolkit."""
        return []

    def tool(self, name: str, version: str, forbids: str, *, required: bool = True) -> Finding:
        """Whether a tool is there; what its absence forbids."""
        path = getattr(self._tools, name)
        if path is None:
            return missing(name, forbids, CURES[name], required=required)
        return Finding(name=name, ok=True, found=f"{version} {path}".strip(), required=required)

    def _device(self) -> Finding:
        smi = self._tools.nvidia_smi
        if smi is None:
            return missing("device", _RUN, CURES["nvidia_smi"])
        try:
            row = chosen_row(query_smi(self._runner, smi, self._folder, self._deadline_s))
        except CroqError as exc:
            return missing("device", _RUN, f"repair the driver: {exc}")
        found = f"{row.get('name')} {row.get('uuid')} driver {row.get('driver_version')}"
        if row.get("compute_cap") != _SM90:
            cure = "use a Hopper device (compute capability 9.0)"
            return missing("device", _RUN, cure).model_copy(update={"found": found})
        return Finding(name="device", ok=True, found=found)

    def _profiler(self) -> Finding:
        forbids = "the PROFILE state, unless profiling.when_unavailable is 'degrade'"
        if self._tools.ncu is None:
            return missing("ncu", forbids, CURES["ncu"])
        try:
            tool = Ncu(self._runner, self._tools.ncu, self._deadline_s)
            version = tool.version(self._folder, self._deadline_s)
        except CroqError as exc:
            return missing("ncu", forbids, f"repair Nsight Compute: {exc}")
        return Finding(name="ncu", ok=True, found=f"{version} {self._tools.ncu}".strip())

    def _counters(self) -> Finding:
        restricted = next(_restricted(_PARAMETERS), None)
        if restricted is None:
            return Finding(
                name="counters", ok=True, found="the driver does not say", required=False
            )
        if restricted:
            return missing("counters", "reading performance counters, unless root", PERMISSION_CURE)
        return Finding(name="counters", ok=True, found="open to all users")


def _restricted(path: Path) -> Iterator[bool]:
    """Whether only administrators may profile, where the driver says so."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    match = re.search(r"^RmProfilingAdminOnly:\s*(\d)", text, re.MULTILINE)
    if match:
        yield match[1] == "1"


def missing(name: str, forbids: str, cure: str, *, required: bool = True) -> Finding:
    """What is not there, what that forbids, and the cure."""
    return Finding(name=name, ok=False, forbids=forbids, cure=cure, required=required)
