"""Wrong kernels of the other operators: their mistakes really are in them."""

from __future__ import annotations

import subprocess
from importlib.resources import files
from pathlib import Path

import pytest
from croqtile_support import need_choreo

from croq_fsm.config import CroqtileOptions
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.operators import SUPPORTED
from croq_fsm.domain.task import Task
from croq_fsm.toolchain.croqtile_generated import prepare
from croq_fsm.toolchain.croqtile_tools import find_tools
from croq_fsm.toolchain.operator_twins import WrongKernel, wrong_kernels

SUFFIXES = {"croqtile": ".co", "cuda": ".cu"}


def start(dsl: str, operator: str, dtype: str) -> Candidate:
    """The start kernel that ships."""
    folder = files("croq_fsm.kernels").joinpath(dsl, operator)
    path = folder.joinpath(f"{operator}_{dtype}_plain{SUFFIXES[dsl]}")
    return Candidate(source=path.read_text(encoding="utf-8"))


WRONG = wrong_kernels(start)


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_kernel_is_not_the_start_kernel(wrong: WrongKernel) -> None:
    """It differs by text or by patches, and claims an operator that its DSL can run."""
    plain = start(wrong.dsl, wrong.operator, wrong.dtype)
    assert wrong.candidate != plain
    assert (wrong.operator, wrong.dtype) in SUPPORTED[wrong.dsl]


def test_each_kind_of_mistake_is_there() -> None:
    """8-bit, block-scaled and sparse kernels each have their twins, in both languages."""
    assert {w.operator for w in WRONG.values() if w.dsl == "cuda"} == {
        "blockscale_gemm",
        "gemm_sp",
    }
    names = " ".join(WRONG)
    for word in ("e5m2", "scales_ignored", "shifted", "metadata_ignored", "lanes_exchanged"):
        assert word in names


@pytest.mark.choreo
@pytest.mark.parametrize("dtype", sorted(SUPPORTED["croqtile"]), ids="_".join)
def test_choreo_translates_every_start_kernel(tmp_path: Path, dtype: tuple[str, str]) -> None:
    """And what it makes of one can be completed with the glue."""
    need_choreo()
    text = translated(start("croqtile", *dtype).source, tmp_path)
    made = prepare(text, (), task(*dtype))
    assert made.kernels == (f"__choreo_device_{dtype[0]}",)
    assert "croq_candidate" in made.text
    assert made.text.count("warpgroup_wait<0>();") >= 1


@pytest.mark.choreo
@pytest.mark.parametrize("name", [name for name, wrong in WRONG.items() if wrong.dsl == "croqtile"])
def test_choreo_translates_every_wrong_kernel(tmp_path: Path, name: str) -> None:
    """A patch that does not apply would be refused for the wrong reason."""
    need_choreo()
    wrong = WRONG[name]
    text = translated(wrong.candidate.source, tmp_path)
    right = translated(start("croqtile", wrong.operator, wrong.dtype).source, tmp_path)
    its_task = task(wrong.operator, wrong.dtype)
    assert (
        prepare(text, wrong.candidate.patches, its_task).text != prepare(right, (), its_task).text
    )


def task(operator: str, dtype: str) -> Task:
    """A task on a device."""
    shape = (4096, 4096, 4096)
    return Task(
        dsl="croqtile", operator=operator, dtype=dtype, shape=shape, kernel="", model="test"
    )


def translated(source: str, folder: Path) -> str:
    """What the Choreo compiler makes of a source."""
    choreo = find_tools(CroqtileOptions()).choreo
    (folder / "kernel.co").write_text(source, encoding="utf-8")
    argv = [str(choreo), "-es", "-t", "cute", "-arch=sm_90a", "--suppress-main"]
    argv += ["--disable-cuda-runtime-env-check", "kernel.co", "-o", "kernel.cu"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / "kernel.cu").read_text(encoding="utf-8")
