"""Environment report of DSL ``croqtile``: what is there, what is missing, what that forbids."""

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
_BUILD, _RUN = "compiling any candidate", "running anything on the device"


class Doctor:
    """Looks at everything that the DSL needs. Never raises for absence.

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
            self._tool("choreo", self._tools.choreo_version, _BUILD),
            self._dialect(),
            self._tool("choreo_headers", "", _BUILD),
            self._tool("cute_headers", self._probe.cutlass_version(), _BUILD),
            self._tool("nvcc", self._probe.nvcc_version(), _BUILD),
            self._tool("nm", "", "linking a candidate: its symbols must be seen first"),
            self._device(),
            self._tool("cublas", "", "timing the library reference (iter000)"),
            self._profiler(),
            self._counters(),
            self._tool("cuobjdump", "", "reading machine code by hand", required=False),
            self._tool("sanitizer", "", "looking for races and bad accesses", required=False),
        ]

    def _tool(self, name: str, version: str, forbids: str, *, required: bool = True) -> Finding:
        path = getattr(self._tools, name)
        if path is None:
            return _missing(name, forbids, CURES[name], required=required)
        return Finding(name=name, ok=True, found=f"{version} {path}".strip(), required=required)

    def _dialect(self) -> Finding:
        name = self._probe.dialect_name() if self._tools.choreo else ""
        if not name:
            cure = "use a Choreo compiler that targets sm_90a through CuTe (-t cute)"
            return _missing("dialect", _BUILD, cure)
        if name == "head":
            return Finding(name="dialect", ok=True, found=name)
        return Finding(
            name="dialect",
            ok=False,
            found=name,
            forbids="the shipped start kernels; kernels of your own in that dialect work",
            cure="use a newer Choreo compiler, or give a start kernel with --kernel",
            required=False,
        )

    def _device(self) -> Finding:
        smi = self._tools.nvidia_smi
        if smi is None:
            return _missing("device", _RUN, CURES["nvidia_smi"])
        try:
            row = chosen_row(query_smi(self._runner, smi, self._folder, self._deadline_s))
        except CroqError as exc:
            return _missing("device", _RUN, f"repair the driver: {exc}")
        found = f"{row.get('name')} {row.get('uuid')} driver {row.get('driver_version')}"
        if row.get("compute_cap") != _SM90:
            cure = "use a Hopper device (compute capability 9.0)"
            return _missing("device", _RUN, cure).model_copy(update={"found": found})
        return Finding(name="device", ok=True, found=found)

    def _profiler(self) -> Finding:
        forbids = "the PROFILE state, unless profiling.when_unavailable is 'degrade'"
        if self._tools.ncu is None:
            return _missing("ncu", forbids, CURES["ncu"])
        try:
            tool = Ncu(self._runner, self._tools.ncu, self._deadline_s)
            version = tool.version(self._folder, self._deadline_s)
        except CroqError as exc:
            return _missing("ncu", forbids, f"repair Nsight Compute: {exc}")
        return Finding(name="ncu", ok=True, found=f"{version} {self._tools.ncu}".strip())

    def _counters(self) -> Finding:
        restricted = next(_restricted(_PARAMETERS), None)
        if restricted is None:
            return Finding(
                name="counters", ok=True, found="the driver does not say", required=False
            )
        if restricted:
            return _missing(
                "counters", "reading performance counters, unless root", PERMISSION_CURE
            )
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


def _missing(name: str, forbids: str, cure: str, *, required: bool = True) -> Finding:
    return Finding(name=name, ok=False, forbids=forbids, cure=cure, required=required)
