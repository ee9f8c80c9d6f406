"""``validate --remeasure``: each champion passes, or is wrong, slower, or of another world."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import Shell, shell

from croq_fsm.domain import source
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.device import Device
from croq_fsm.domain.measurement import Estimate
from croq_fsm.domain.task import Task
from croq_fsm.validation.remeasure import is_slower
from support.scripted import ScriptedWorkbench

__all__ = ["shell"]


@pytest.fixture
def night(shell: Shell) -> Shell:
    """A session whose best kernel takes 800 us."""
    shell.ideator.script = [{"TIME_US": "800"}]
    assert shell("start", "c", "f32", "64x64x64", "--rounds", "1").code == 0
    return shell


def _kinds(shell: Shell, code: int) -> set[str]:
    """Kinds of all findings of a re-measurement that ends with this code."""
    said = shell("validate", "--remeasure", "--json")
    assert said.code == code, said.err
    return {p["kind"] for p in json.loads(said.out)["problems"]}


def test_a_champion_that_stands_passes(night: Shell) -> None:
    """Same binary, right, as fast as recorded: nothing is found, and the figures are told."""
    assert _kinds(night, 0) == set()
    said = night("validate", "--remeasure")
    assert "iter002_speed: pass; 0.5" in said.err


def _patched(shell: Shell, monkeypatch: pytest.MonkeyPatch, macro: str, **facts: object) -> None:
    """The workbench builds something else from the champion's source by now."""
    build = ScriptedWorkbench.build

    def other(self: ScriptedWorkbench, candidate: Candidate, task: Task) -> Build:
        text = f"{macro}\n{source.strip_comments(candidate.source)}"
        made = build(self, candidate.model_copy(update={"source": text}), task)
        return made.model_copy(update=facts)

    monkeypatch.setattr(ScriptedWorkbench, "build", other)


def test_a_champion_that_computes_wrong_results_is_a_problem(
    night: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A miscompiling compiler, bad memory: code 1 and the kernel is named."""
    _patched(night, monkeypatch, "#define WRONG 1")
    assert _kinds(night, 1) == {"champion-wrong"}


def test_a_champion_that_crashes_is_a_problem(
    night: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ran on the night; now it dies."""
    _patched(night, monkeypatch, "#define CRASH 1")
    assert _kinds(night, 1) == {"champion-wrong"}


def test_a_champion_that_is_slower_is_a_problem(
    night: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ratio to the library is clearly below the record."""
    monkeypatch.setattr(ScriptedWorkbench, "_macros", lambda *_: {"TIME_US": "900"})
    assert _kinds(night, 1) == {"champion-slower"}


def test_another_toolchain_is_told_apart_from_a_wrong_kernel(
    night: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another compiler makes another binary: a warning with both versions, code 0."""
    _patched(night, monkeypatch, "", compilers={"cc": "scripted 2"})
    assert _kinds(night, 0) == {"champion-other-toolchain"}
    said = night("validate", "--remeasure")
    assert "cc was scripted 1, is scripted 2" in said.out


def test_another_device_is_told_apart(night: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another kind of device nothing is measured: a warning."""
    other = Device(key="cpu_other", name="other", uuid="other", peak_flops=1e12)
    monkeypatch.setattr(ScriptedWorkbench, "device", lambda *_: other)
    assert _kinds(night, 0) == {"champion-other-device"}


def test_noise_is_not_slower() -> None:
    """Only an interval wholly below the record, by more than noise explains, is slower."""
    found = Estimate(ratio=0.96, low=0.95, high=0.97, pairs=12)
    assert not is_slower(found, 1.0, 0.0)
    assert is_slower(found, 1.05, 0.0)
    assert not is_slower(found, 1.05, 0.1)


def test_without_a_session_there_is_nothing_to_measure(shell: Shell, tmp_path: Path) -> None:
    """A fresh root has no champions and no problems."""
    assert _kinds(shell, 0) == set()
