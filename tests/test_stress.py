"""The stress test and the benchmarks: made histories are valid, outcomes hang on the seed alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(_ROOT / "tests" / "benchmarks"))
sys.path.insert(0, str(_ROOT / "scripts"))

import _stress_night as stress  # noqa: E402 - found by the line above
import history  # noqa: E402 - the same

from croq_fsm.domain import guards  # noqa: E402 - the same

_SCRIPT = _ROOT / "scripts" / "mock_skill_ab_test.py"
_SMALL = ("--agents-per-dsl", "1", "--round-target", "12", "--check-every", "4", "--seed", "7")


def test_a_made_history_passes_the_audit_and_goes_on(tmp_path: Path) -> None:
    """Copied rounds are rounds like others: the audit finds nothing, before and after more."""
    night = history.begin(tmp_path)
    history.grow(night, 40, exact=True)
    assert night.audit().problems == ()
    history.continued(night, 2)
    _, rounds, *_ = night.record()
    assert len(rounds) == 42
    assert night.audit().problems == ()


def test_each_guard_has_its_control() -> None:
    """A guard that is new gets a variant, and a variant switches one guard off, not more."""
    assert len(stress.VARIANTS) == 1 + len(guards.GUARDS)
    assert stress.admitting(stress.STRICT) is guards.refusals


def _job(tmp_path: Path, variant: str, rounds: int) -> stress.Job:
    return stress.Job(variant, "croqtile", 0, rounds, rounds, 7, 4, False, str(tmp_path))


@pytest.mark.slow
def test_a_session_is_the_same_again(tmp_path: Path) -> None:
    """The same job gives the same result, to the last digit, and keeps every rule."""
    first, second = (stress.run(_job(tmp_path, stress.STRICT, 12)) for _ in range(2))
    assert first == second
    assert first["reached_target"]
    assert first["violations"] == 0
    assert first["validate_problems"] == {}


@pytest.mark.slow
def test_a_control_lets_through_what_its_guard_holds(tmp_path: Path) -> None:
    """Without the guard a misdeed becomes an idea, and the checkpoint finds it."""
    result = stress.run(_job(tmp_path, "no_modest", 60))
    assert result["violations"] > 0
    assert not result["reached_target"]


@pytest.mark.slow
def test_the_outcome_hangs_on_the_arguments_alone(tmp_path: Path) -> None:
    """One worker, or two that are killed with all they do and started again: equal summaries."""
    variants = ("--variants", "strict,no_modest")
    plain = [sys.executable, str(_SCRIPT), *_SMALL, *variants, "--run-name", "r"]
    subprocess.run([*plain, "--output-root", str(tmp_path / "a"), "--jobs", "1"], check=False)
    disturbed = [*plain, "--output-root", str(tmp_path / "b"), "--jobs", "2"]
    child = subprocess.Popen(disturbed, start_new_session=True)
    until = time.monotonic() + 120
    while not list((tmp_path / "b").glob("r/runs/*.json")) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    subprocess.run(disturbed, check=False)
    one, two = (
        json.loads((tmp_path / name / "r" / "summary.json").read_text()) for name in ("a", "b")
    )
    assert one == two
