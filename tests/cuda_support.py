"""Parts shared by the tests of DSL ``cuda``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from croqtile_support import real_runner

from croq_fsm.config import Config, Deadlines
from croq_fsm.domain.task import Task
from croq_fsm.toolchain.cuda import CudaWorkbench


def task(dtype: str = "f16", shape: tuple[int, ...] = (4096, 8192, 4096)) -> Task:
    """A matmul task."""
    return Task(dsl="cuda", operator="matmul", dtype=dtype, shape=shape, kernel="", model="test")


@cache
def shipped(name: str = "f16_plain") -> str:
    """Source of a shipped kernel."""
    folder = files("croq_fsm.kernels").joinpath("cuda", "matmul")
    return folder.joinpath(f"matmul_{name}.cu").read_text(encoding="utf-8")


@cache
def of(operator: str, dtype: str) -> str:
    """Source of the plain start kernel of an operator."""
    folder = files("croq_fsm.kernels").joinpath("cuda", operator)
    return folder.joinpath(f"{operator}_{dtype}_plain.cu").read_text(encoding="utf-8")


def workbench(folder: Path, **deadlines: float) -> CudaWorkbench:
    """A workbench on the tools of this machine."""
    config = Config(deadlines=Deadlines(**deadlines))
    return CudaWorkbench(real_runner(), config, folder / "cache", folder / "work")
