"""The survival trials in their short form; the full forms are marked slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.stage import TOP

_SKIPPED = 77


def _trial(name: str, out: Path, *arguments: str, seconds: float) -> dict[str, object]:
    """Figures of a trial; skips where the machine does not allow it."""
    done = subprocess.run(
        [sys.executable, str(TOP / "scripts" / name), *arguments, "--out", str(out)],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": str(TOP)},
    )
    if done.returncode == _SKIPPED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(out.read_text(encoding="utf-8"))
    return found


def test_a_few_faults_at_system_calls(tmp_path: Path) -> None:
    """A sample of kills and I/O errors at write-class calls: all are resumed to the same end."""
    table = _trial("fault_enumeration.py", tmp_path / "t.json", "--sample", "4", seconds=110)
    assert (table["faults tried"], table["broken"]) == (4, 0)
    assert table["resumed to the undisturbed end"] == 4
    assert int(str(table["points taken"])) > 300


@pytest.mark.slow
@pytest.mark.timeout(8 * 3600)
def test_faults_at_every_system_call(tmp_path: Path) -> None:
    """Each write-class call of a cycle is broken once in each way; takes hours."""
    table = _trial("fault_enumeration.py", tmp_path / "t.json", seconds=8 * 3600)
    assert table["broken"] == 0


def test_a_power_cut(tmp_path: Path) -> None:
    """What was acknowledged is there after a cut, and the session goes on."""
    table = _trial("power_cut.py", tmp_path / "t.json", "--cuts", "1", "--seed", "5", seconds=110)
    assert table["acknowledged transitions lost"] == 0
    assert table["cuts with anything broken"] == 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thirty_power_cuts(tmp_path: Path) -> None:
    """Thirty cuts at random moments lose nothing that was acknowledged."""
    table = _trial("power_cut.py", tmp_path / "t.json", seconds=1800)
    assert (table["cuts"], table["cuts with anything broken"]) == (30, 0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_five_hundred_kills(tmp_path: Path) -> None:
    """500 kills of a running session: nothing lost, doubled or left behind."""
    table = _trial("kill_trial.py", tmp_path / "t.json", seconds=3600)
    assert (table["kills"], table["broken"]) == (500, 0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_some_kills(tmp_path: Path) -> None:
    """The kill trial itself, in short."""
    table = _trial("kill_trial.py", tmp_path / "t.json", "--kills", "10", seconds=300)
    assert (table["kills"], table["broken"]) == (10, 0)
