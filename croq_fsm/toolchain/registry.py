"""DSLs by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from croq_fsm.config import Config
from croq_fsm.domain import task
from croq_fsm.errors import UsageError
from croq_fsm.toolchain.process import Runner
from croq_fsm.toolchain.workbench import Workbench

_Factory = Callable[[Runner, Config, Path, Path], Workbench]

#: DSL → module and class; imported on first use, so that one DSL never burdens another.
WORKBENCHES: Final = {
    "c": ("croq_fsm.toolchain.c", "CWorkbench"),
    "croqtile": ("croq_fsm.toolchain.croqtile", "CroqtileWorkbench"),
    "cuda": ("croq_fsm.toolchain.cuda", "CudaWorkbench"),
}

#: DSLs whose kernels run on a GPU.
ON_DEVICES: Final = frozenset({"croqtile", "cuda"})

#: The DSL that can be simulated.
SIMULATED_DSL: Final = "croqtile"

#: File suffix of a kernel → DSL, of those that can be opened.
SUFFIXES: Final = {task.SUFFIXES[dsl]: dsl for dsl in WORKBENCHES}


def check_dsl(dsl: str) -> str:
    """The name itself; UsageError lists the known ones."""
    if dsl not in WORKBENCHES:
        raise UsageError(f"unknown DSL {dsl!r}; known: {', '.join(sorted(WORKBENCHES))}")
    return dsl


def check_simulated(dsl: str) -> None:
    """UsageError for a DSL that the simulator does not model."""
    if dsl != SIMULATED_DSL:
        raise UsageError(f"--simulate models DSL {SIMULATED_DSL}, not {dsl}")


def open_workbench(dsl: str, runner: Runner, config: Config, cache: Path, work: Path) -> Workbench:
    """The workbench of a DSL.

    Args:
        dsl: Name.
        runner: Starts its children.
        config: The effective configuration.
        cache: Folder of the build cache.
        work: Folder for the children's private folders.
    """
    module, name = WORKBENCHES[check_dsl(dsl)]
    if config.simulation.on:
        check_simulated(dsl)
        module, name = "croq_fsm.toolchain.simulated.workbench", "SimulatedWorkbench"
    factory = cast(_Factory, getattr(import_module(module), name))
    return factory(runner, config, cache, work)
