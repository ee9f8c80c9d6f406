"""Queues: several shapes in turn, each with its budget; discovery of what a session begins with."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import CHECKOUT, Shell, make_root, shell

from croq_fsm.cli.requests import from_tables
from croq_fsm.discovery import distance
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.states import Decision, State
from croq_fsm.domain.task import Task
from croq_fsm.errors import CompilerCrashed
from croq_fsm.storage.inspection import archive
from support.scripted import START

__all__ = ["shell"]

TWO = "64x64x64,64x64x32"


def kernel(folder: Path, name: str, macros: str) -> None:
    """A kernel of the scripted DSL."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(macros + START.split("\n", 1)[1], encoding="utf-8")


def test_several_shapes_queue_up(shell: Shell) -> None:
    """Shapes joined by commas become a session each, in their order."""
    shell.ideator.script = [{"TIME_US": "900"}, {"TIME_US": "800"}]
    assert shell("start", "c", "f32", TWO, "--rounds", "1").code == 0
    first, second = sorted(shell.sessions(), key=lambda s: s.created_at)
    assert [s.task.shape_key for s in (first, second)] == [
        "matmul_f32_64x64x64", "matmul_f32_64x64x32",
    ]  # fmt: skip
    assert {first.state, second.state} == {State.DONE}


def test_tasks_of_a_file_have_lists_of_shapes_and_budgets(tmp_path: Path) -> None:
    """A task's shapes may be a list; each gets the budgets of its task."""
    table = {
        "dsl": "c", "dtype": "f32", "shape": ["1x2x3", "4x5x6"], "gpu_seconds": 5.0, "tokens": 10,
        "hours": 0.5, "rounds": 3, "ideator": "rules", "operator": "matmul",
    }  # fmt: skip
    found = from_tables([table], tmp_path / "queue.toml")
    assert [r.shape for r in found] == ["1x2x3", "4x5x6"]
    assert {(r.gpu_seconds, r.tokens, r.hours, r.rounds) for r in found} == {(5.0, 10, 0.5, 3)}


def test_a_budget_of_device_seconds_ends_a_session(shell: Shell, tmp_path: Path) -> None:
    """A session that has used its seconds on the device ends after the round in hand."""
    queue = tmp_path / "queue.toml"
    queue.write_text(
        'dsl = "c"\ndtype = "f32"\nshape = "64x64x64"\ngpu_seconds = 0.000001\n', encoding="utf-8"
    )
    shell.ideator.script = [{"TIME_US": "900"}, {"TIME_US": "800"}]
    assert shell("start", "--task", str(queue)).code == 0
    (session,) = shell.sessions()
    assert (session.round, session.state) == (1, State.DONE)
    assert "on the device is used" in session.reason


def test_the_fastest_right_kernel_of_a_folder_is_the_start(shell: Shell, tmp_path: Path) -> None:
    """Wrong ones and former outputs are passed over; the others are measured, not believed."""
    folder = tmp_path / "matmul"
    kernel(folder, "matmul_a.c", "#define TIME_US 900\n")
    kernel(folder, "matmul_b.c", "#define TIME_US 700\n")
    kernel(folder, "matmul_c.c", "#define TIME_US 1\n#define WRONG 1\n")
    kernel(folder, "matmul_aitune_d.c", "#define TIME_US 5\n")
    shell.ideator.script = [{"TIME_US": "600"}]
    said = shell("start", "c", "f32", "64x64x64", "--kernel", str(folder), "--rounds", "1")
    assert said.code == 0, said.err
    (session,) = shell.sessions()
    with archive(shell.root / ".croq_fsm" / "croq.sqlite3") as opened, opened.look() as reader:
        start = reader.iteration(session.id, 1)
        detail = next(
            t["detail"] for t in reader.transitions(session.id) if t["from_state"] == "BASELINE"
        )
    assert start.candidate is not None
    assert "TIME_US 700" in start.candidate.source
    assert "refused: wrong results" in detail


def test_an_empty_folder_begins_with_the_kernel_that_ships(shell: Shell, tmp_path: Path) -> None:
    """Nothing to be found is no error: the family's own kernel is the start."""
    folder = tmp_path / "matmul"
    folder.mkdir()
    shell.ideator.script = [{"TIME_US": "900"}]
    said = shell("start", "c", "f32", "64x64x64", "--kernel", str(folder), "--rounds", "1")
    assert said.code == 0, said.err
    assert shell.sessions()[0].counts[Decision.KEEP] == 1


def test_the_best_of_a_near_session_is_a_start(shell: Shell) -> None:
    """What an earlier session of a near shape ended with is measured as a start kernel."""
    shell.ideator.script = [{"TIME_US": "500"}, {"TIME_US": "450"}]
    assert shell("start", "c", "f32", "64x64x64", "--rounds", "1").code == 0
    assert shell("start", "c", "f32", "64x64x128", "--rounds", "1").code == 0
    (newest,) = (s for s in shell.sessions() if s.task.shape == (64, 64, 128))
    with archive(shell.root / ".croq_fsm" / "croq.sqlite3") as opened, opened.look() as reader:
        start = reader.iteration(newest.id, 1)
    assert start.candidate is not None
    assert "TIME_US 500" in start.candidate.source


def test_a_compiler_that_keeps_crashing_ends_a_session(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After so many rounds in which the compiler itself died the session says whose bug it is."""
    build = shell.workbench.build

    def crashing(candidate: Candidate, task: Task) -> Build:
        if "TIME_US 1000" in candidate.source:
            return build(candidate, task)
        raise CompilerCrashed("the compiler crashed: killed by SIGSEGV")

    monkeypatch.setattr(shell.workbench, "build", crashing)
    monkeypatch.setenv("CROQ_FSM_LIMITS__COMPILER_CRASHES", "2")
    shell.ideator.script = [{"TIME_US": str(900 - n), "STYLE": str(n)} for n in range(4)]
    assert shell("start", "c", "f32", "64x64x64").code == 0
    (session,) = shell.sessions()
    assert session.counts == {Decision.COMPILE_FAIL: 2}
    assert session.reason.startswith("the compiler crashed in 2 rounds")


def test_distances_are_counted_in_doublings() -> None:
    """Twice a size is one; another number of sizes is infinitely far."""
    assert distance((64, 64, 64), (128, 64, 32)) == 2
    assert distance((64,), (64, 64)) == float("inf")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
@pytest.mark.parametrize(
    "fault", ["handled_MEASURE=kill", "handled_INIT@2=kill", "after_commit=kill"]
)
def test_a_queue_survives_kills_within_and_between_shapes(tmp_path: Path, fault: str) -> None:
    """Killed in a round, before the second shape, or after a commit: resume ends both shapes."""
    root = make_root(tmp_path / "root", "[git]\ncommit = false\n")
    command = [sys.executable, "-m", "croq_fsm"]
    place = ["--root", str(root)]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    start = [*command, "start", "c", "f32", "256x64x128,128x64x256", "--rounds", "1", *place]
    killed = subprocess.run(
        start, env={**env, "CROQ_FAULT": fault}, check=False, capture_output=True, timeout=110
    )
    assert killed.returncode == -9
    done = subprocess.run(
        [*command, "resume", *place], env=env, check=False, capture_output=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    with archive(root / ".croq_fsm" / "croq.sqlite3") as opened, opened.look() as reader:
        sessions = reader.sessions()
        rounds = [len(reader.rounds(s.id)) for s in sessions]
    assert [s.state for s in sessions] == [State.DONE, State.DONE]
    assert rounds == [1, 1]
