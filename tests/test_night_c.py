"""Real nights on the CPU: real daemon, real compiler, real kernels, killed for real."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from croq_fsm.config import Storage
from croq_fsm.domain.states import State
from croq_fsm.root import Root
from croq_fsm.toolchain.survivors import marked
from support.bench import git_root

_SHAPE = "64x64x64"
_ROUNDS = "2"
_QUICK = {
    "CROQ_FSM_MEASURE__PAIRS": "5",
    "CROQ_FSM_MEASURE__SCREEN_PAIRS": "3",
    "CROQ_FSM_MEASURE__MAX_PAIRS": "10",
    "CROQ_FSM_MEASURE__CONFIRM_PAIRS": "5",
    "CROQ_FSM_MEASURE__BLOCK_S": "0.002",
    "CROQ_FSM_MEASURE__WARMUP_S": "0.002",
    "CROQ_FSM_MEASURE__VERIFY_SEEDS": "1",
    "CROQ_FSM_MEASURE__FINAL_PAIRS": "3",
    "CROQ_FSM_MEASURE__HIDDEN_SHAPES": "1",
}
_KILLED = -9


def _run(root: Path, *arguments: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        **_QUICK,
        "CROQ_FSM_CONTENTION__LEASE_DIR": str(root.parent),
        "CROQ_FAULT": fault,
    }
    return subprocess.run(
        [sys.executable, "-m", "croq_fsm", *arguments, "--root", str(root)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def _status(root: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(_run(root, "status", "--json").stdout)
    return found


@pytest.mark.parametrize("state", [s.name for s in State if not s.is_final])
def test_killed_in_a_state_and_resumed(tmp_path: Path, state: str) -> None:
    """Whatever state the daemon dies in, resume goes on; no round is lost or doubled."""
    root = git_root(tmp_path / "root")
    # After the work of the state and before its commit: all of the work is lost.
    count = 1 if state in ("INIT", "BASELINE") else 2
    first = _run(
        root,
        "start",
        "c",
        "f32",
        _SHAPE,
        "--rounds",
        _ROUNDS,
        fault=f"handled_{state}@{count}=kill",
    )
    assert first.returncode == _KILLED, first.stderr
    dead = _status(root)
    assert dead["state"] == state
    assert dead["daemon"]["alive"] is False  # type: ignore[index]
    second = _run(root, "resume")
    assert second.returncode == 0, second.stderr
    status = _status(root)
    assert (status["state"], status["round"]) == ("DONE", int(_ROUNDS))
    audit = _run(root, "validate", "--json")
    assert audit.returncode == 0, audit.stdout
    assert not _orphans(root)


def _orphans(root: Path) -> list[int]:
    """Processes of any run of this root that are still alive."""
    connection = sqlite3.connect(Root(root, Storage()).database)
    runs = [row[0] for row in connection.execute("SELECT run_id FROM runs")]
    connection.close()
    return [pid for run in runs for pid in marked("CROQ_RUN_ID", run)]


def test_a_second_daemon_is_refused_and_names_the_first(tmp_path: Path) -> None:
    """Two daemons on one root: the second exits with code 3 and the first one's pid."""
    root = git_root(tmp_path / "root")
    environment = {**os.environ, **_QUICK, "CROQ_FSM_CONTENTION__LEASE_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-m", "croq_fsm", "start", "c", "f32", "512x512x512", "--root", str(root)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as daemon:
        assert daemon.stdout is not None
        for line in daemon.stdout:
            if "iter001" in line:
                break
        second = _run(root, "start", "c", "f32", "128x128x128", "--rounds", "1")
        assert second.returncode == 3
        assert str(daemon.pid) in second.stderr
        daemon.terminate()
        assert daemon.wait(timeout=60) == 0
    status = _status(root)
    assert status["status"] == "active"
    assert status["state"] not in ("DONE", "FAILED")
