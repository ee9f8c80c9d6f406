"""Parts shared by the tests of DSL ``croqtile``."""

from __future__ import annotations

import shutil
import subprocess
import threading
from functools import cache
from importlib.resources import files
from pathlib import Path

import pytest

from croq_fsm.config import Config, CroqtileOptions, Deadlines
from croq_fsm.domain.task import Task
from croq_fsm.toolchain.croqtile import CroqtileWorkbench
from croq_fsm.toolchain.croqtile_tools import find_tools
from croq_fsm.toolchain.process import Command, Completed, Ending, NullJournal
from croq_fsm.toolchain.runner import LocalRunner

SHIPPED = files("croq_fsm.kernels").joinpath("croqtile", "matmul")


def task(dtype: str = "f16", shape: tuple[int, ...] = (4096, 8192, 4096)) -> Task:
    """A matmul task."""
    return Task(
        dsl="croqtile", operator="matmul", dtype=dtype, shape=shape, kernel="", model="test"
    )


def shipped(name: str) -> str:
    """Source of a shipped kernel, for example ``f16_plain``."""
    return SHIPPED.joinpath(f"matmul_{name}.co").read_text(encoding="utf-8")


def real_runner() -> LocalRunner:
    """The runner of the product."""
    return LocalRunner("test", NullJournal(), threading.Event(), Deadlines())


def workbench(folder: Path, **deadlines: float) -> CroqtileWorkbench:
    """A workbench on the tools of this machine."""
    config = Config(deadlines=Deadlines(**deadlines))
    return CroqtileWorkbench(real_runner(), config, folder / "cache", folder / "work")


def need_choreo() -> None:
    """Skip unless the Choreo compiler and its headers are here."""
    tools = find_tools(CroqtileOptions())
    for name in ("choreo", "choreo_headers", "cute_headers"):
        if getattr(tools, name) is None:
            pytest.skip(f"{name} not found (CHOREO_HOME, CUTE_HOME)")


def need_nvcc() -> None:
    """Skip unless CUDA programs can be compiled here."""
    if find_tools(CroqtileOptions()).nvcc is None:
        pytest.skip("nvcc not found (CUDA_HOME)")


@cache
def gpu_problem() -> str:
    """Why there is no SM90 device here; "" when there is one."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return "nvidia-smi not found"
    argv = [smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    return "" if "9.0" in done.stdout else f"no SM90 device ({done.stdout.strip()[:50]})"


def need_gpu() -> None:
    """Skip unless an SM90 device is here."""
    if gpu_problem():
        pytest.skip(gpu_problem())


class ScriptedRunner:
    """Answers commands from a list of (word in the command line, output, status)."""

    def __init__(self, *script: tuple[str, str, int]) -> None:
        self._script = script
        self.sandbox = ""
        self.seen: list[Command] = []

    def run(self, command: Command) -> Completed:
        """The first entry whose word is in the command line."""
        self.seen.append(command)
        line = " ".join(command.argv)
        for word, output, status in self._script:
            if word in line:
                return Completed(Ending.EXITED, status, output, "", 0.1)
        raise AssertionError(f"unexpected command: {line}")

    def converse(self, command: Command) -> None:
        """No conversation is scripted."""
        raise AssertionError(f"unexpected conversation: {command.argv}")


class ScriptedTalk:
    """A conversation that gives its answers in order and keeps the requests."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self._answers = list(answers)
        self.requests: list[dict[str, object]] = []

    def ask(self, request: dict[str, object], deadline_s: float) -> dict[str, object]:
        """The next answer."""
        del deadline_s
        self.requests.append(request)
        return self._answers.pop(0)

    def cpu_seconds(self) -> float | None:
        """Nobody counts."""
        return None

    def close(self) -> None:
        """Nothing to close."""
