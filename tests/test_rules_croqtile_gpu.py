"""Kernels of the ``.co`` GEMM family on a real SM90 device: each one is right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from croqtile_support import need_choreo, need_gpu, need_nvcc, real_runner, task
from rules_croqtile_support import COMPILED, MACHINE, MAIN

from croq_fsm.config import Config, Deadlines
from croq_fsm.domain.build import Candidate
from croq_fsm.ideators.rules.croqtile_config import Gemm, Shape
from croq_fsm.ideators.rules.croqtile_limits import is_feasible, settled
from croq_fsm.ideators.rules.croqtile_render import render
from croq_fsm.toolchain.croqtile import CroqtileWorkbench

pytestmark = [pytest.mark.gpu, pytest.mark.choreo, pytest.mark.timeout(300)]

#: The main shape; remainders in all dimensions; few rows and many columns; a short reduction.
ON_DEVICE = [MAIN, (1000, 1216, 520), (200, 8256, 1088), (1056, 1984, 192)]


def cases() -> Iterator[tuple[str, tuple[int, ...], Gemm]]:
    """Every kernel of the list on every shape that it can run on."""
    for name, config in COMPILED.items():
        for shape in ON_DEVICE:
            fit = settled(config, Shape(*shape))
            if is_feasible(fit, Shape(*shape), MACHINE):
                yield name, shape, fit


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> CroqtileWorkbench:
    """One workbench for all; CROQ_FSM_TEST_CACHE names a build cache to start from."""
    need_choreo()
    need_nvcc()
    need_gpu()
    folder = tmp_path_factory.mktemp("family")
    cache = Path(os.environ.get("CROQ_FSM_TEST_CACHE", folder / "cache"))
    return CroqtileWorkbench(
        real_runner(), Config(deadlines=Deadlines(verify_s=20.0)), cache, folder / "work"
    )


@pytest.mark.parametrize(
    ("shape", "config"),
    [pytest.param(shape, config, id=f"{name}-{shape}") for name, shape, config in cases()],
)
def test_every_construct_is_right(
    bench: CroqtileWorkbench, shape: tuple[int, ...], config: Gemm
) -> None:
    """Each element of the output is right for several seeds."""
    asked = task(config.element, shape)
    build = bench.build(Candidate(source=render(config)), asked)
    found = bench.verify(build, asked, (1, 2, 3))
    assert found.passed, found.first_failure
