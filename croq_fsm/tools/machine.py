"""Tools about the machine: device, environment, neighbours. They look, and disturb nobody."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from croq_fsm.config import Config
from croq_fsm.errors import CroqError, EnvironmentMissing
from croq_fsm.gpu import device as gpu
from croq_fsm.gpu.contention import Neighbours
from croq_fsm.gpu.eviction import end_own_users
from croq_fsm.sandbox.policy import Policy
from croq_fsm.toolchain.process import Command, NullJournal, Runner
from croq_fsm.toolchain.registry import check_dsl, open_workbench
from croq_fsm.toolchain.runner import LocalRunner

_NO_DRIVER: Final = 2
_BUSY: Final = 1
_TIMEOUT: Final = 3
_POLL_S: Final = 5.0
_RESET_S: Final = 120.0
UNKNOWN_GPU: Final = "sm00_unknown"


@dataclass(frozen=True)
class Machine:
    """What the tools start children with.

    Attributes:
        config: The configuration.
        runner: Starts them.
        folder: Their working folder.
    """

    config: Config
    runner: Runner
    folder: Path

    @classmethod
    def of(cls, config: Config, folder: Path) -> Machine:
        """With a runner of its own, that writes no database."""
        runner = LocalRunner(
            "tool", NullJournal(), threading.Event(), config.deadlines, policy=Policy.of(config)
        )
        return cls(config, runner, folder)

    def row(self) -> dict[str, str]:
        """The device's row of ``nvidia-smi``; EnvironmentMissing without driver or device."""
        rows = gpu.query_smi(self.runner, self.smi(), self.folder, self.config.deadlines.probe_s)
        return gpu.chosen_row(rows)

    def smi(self) -> Path:
        """Path of ``nvidia-smi``."""
        found = shutil.which("nvidia-smi")
        if found is None:
            raise EnvironmentMissing("nvidia-smi is not on PATH; install the NVIDIA driver")
        return Path(found)

    def neighbours(self, uuid: str) -> Neighbours:
        """Looks for others on the device."""
        deadline_s = self.config.deadlines.probe_s
        return Neighbours(self.runner, self.smi(), uuid, cwd=self.folder, deadline_s=deadline_s)


def detect_gpu(machine: Machine, dsl: str | None) -> tuple[str, int]:
    """Device key and exit code; 1 where there is none. Nothing is cached."""
    try:
        if dsl is not None:
            folder = machine.folder
            bench = open_workbench(check_dsl(dsl), machine.runner, machine.config, folder, folder)
            return bench.device().key, 0
        return gpu.make_device({}, machine.row()).key, 0
    except EnvironmentMissing:
        return UNKNOWN_GPU, 1


def validate_env(machine: Machine, dsl: str) -> tuple[dict[str, Any], int]:
    """What the workbench of a DSL lacks. Exit code 1 when it cannot work."""
    folder = machine.folder
    errors: list[str] = []
    warnings: list[str] = []
    try:
        bench = open_workbench(check_dsl(dsl), machine.runner, machine.config, folder, folder)
        for finding in bench.doctor():
            if not finding.ok:
                text = f"{finding.name}: forbids {finding.forbids}; {finding.cure}"
                (errors if finding.required else warnings).append(text)
    except CroqError as exc:
        errors.append(str(exc))
    values = {"dsl": dsl, "pass": not errors, "errors": errors, "warnings": warnings}
    return values, int(bool(errors))


def contention(
    machine: Machine, *, kill: bool, threshold: int, spare: int | None
) -> tuple[dict[str, Any], int]:
    """Who else is on the device. Exit code 0: nobody; 1: somebody; 2: no driver.

    Foreign processes are never ended. With ``contention.kill = "own-user"`` in the configuration
    ``kill`` ends the user's own others, as a daemon would.
    """
    try:
        row = machine.row()
        looks = machine.neighbours(row.get("uuid", ""))
        occupants, load, used = looks.occupants(), looks.load(), looks.memory()
    except EnvironmentMissing as exc:
        return {"idle": None, "message": str(exc), "warnings": []}, _NO_DRIVER
    ended: list[str] = []
    warnings = []
    if kill and machine.config.contention.kill == "own-user":
        ended = end_own_users([o for o in occupants if o.pid != spare])
        occupants = looks.occupants()
    elif kill:
        warnings.append(
            '--kill ends nothing: contention.kill is "never"; whoever measures waits instead'
        )
    idle = not occupants and (load or 0) <= threshold
    values = {
        "idle": idle,
        "gpu_name": row.get("name"),
        "gpu_util": load,
        "gpu_mem": used,
        "threshold": threshold,
        "contenders": [{"pid": o.pid, "name": o.name, "visible": o.visible} for o in occupants],
        "killed": ended,
        "warnings": warnings,
    }
    return values, 0 if idle else _BUSY


def check(
    machine: Machine, *, wait: bool, timeout_s: float, threshold: int, reset: bool,
    pause: Callable[[float], None] = time.sleep,
) -> tuple[dict[str, Any], int]:  # fmt: skip
    """Whether the device is free. Exit code 0: it is; 1: busy; 2: no driver; 3: still busy.

    ``reset`` is done when the caller says so and never otherwise; it needs the right to.
    """
    resetting = _reset(machine) if reset else None
    until = time.monotonic() + timeout_s
    while True:
        values, code = contention(machine, kill=False, threshold=threshold, spare=None)
        if resetting is not None:
            values["reset"] = resetting
        if code != _BUSY or not wait:
            return values, code
        if time.monotonic() >= until:
            return values, _TIMEOUT
        pause(min(_POLL_S, max(0.1, until - time.monotonic())))


def _reset(machine: Machine) -> str:
    """Ask the driver to reset the device; what it said."""
    try:
        uuid = machine.row().get("uuid", "")
        argv = (str(machine.smi()), "--gpu-reset", "-i", uuid)
    except EnvironmentMissing as exc:
        return f"not done: {exc}"
    done = machine.runner.run(
        Command(argv=argv, cwd=machine.folder, deadline_s=_RESET_S, label="nvidia-smi")
    )
    return "done" if done.ok else f"refused: {done.output.strip()[:300]}"
