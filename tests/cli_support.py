"""The command line in this process with scripted tools, and in one of its own with real ones."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from croq_fsm.cli.main import main
from croq_fsm.domain.session import Session
from croq_fsm.storage.inspection import archive
from support.bench import git_root
from support.scripted import ScriptedIdeator, ScriptedWorkbench

CHECKOUT = Path(__file__).resolve().parent.parent
DEADLINE_S = 100.0

#: Quick and coarse; what these tests ask for is no precision.
QUICK = """
[measure]
screen_pairs = 3
pairs = 5
max_pairs = 5
confirm_pairs = 5
block_s = 0.005
warmup_s = 0.005
verify_seeds = 1
"""


def make_root(path: Path, extra: str = "") -> Path:
    """A repository whose configuration is quick and whose device lease is its own."""
    root = git_root(path)
    lease = root.parent / "lease"
    lease.mkdir(exist_ok=True)
    text = f'{extra}\n[contention]\nlease_dir = "{lease}"\n{QUICK}'
    (root / "croq_fsm.toml").write_text(text, encoding="utf-8")
    return root


@dataclass
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """Its output as a JSON object."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value


@dataclass
class Shell:
    """Runs commands on one root in this process, with scripted tools.

    Attributes:
        root: The root.
        capture: Catches what is said.
        workbench: What every DSL is.
        ideator: What every ideator is.
    """

    root: Path
    capture: pytest.CaptureFixture[str]
    workbench: ScriptedWorkbench
    ideator: ScriptedIdeator

    def __call__(self, *arguments: str) -> Said:
        """Run a command."""
        self.capture.readouterr()
        code = main([*arguments, "--root", str(self.root)])
        said = self.capture.readouterr()
        return Said(code, said.out, said.err)

    def sessions(self) -> list[Session]:
        """All sessions, newest first."""
        with archive(self.root / ".croq_fsm" / "croq.sqlite3") as opened, opened.look() as reader:
            return reader.sessions()


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    """Commands on a fresh root; DSL and ideator are scripted, everything else is real."""
    root = make_root(tmp_path / "root", "[git]\ncommit = false\n")
    workbench = ScriptedWorkbench(root / ".croq_fsm" / "cache")
    ideator = ScriptedIdeator([])
    monkeypatch.setattr("croq_fsm.daemon.open_workbench", lambda *_: workbench)
    monkeypatch.setattr("croq_fsm.ideators.load.load", lambda *_: ideator)
    yield Shell(root, capsys, workbench, ideator)
    restore_logging()


def restore_logging() -> None:
    """Take back what a command set up for its process."""
    structlog.reset_defaults()
    root = logging.getLogger()
    for handler in list(root.handlers):
        if type(handler).__module__ == "croq_fsm.log":
            root.removeHandler(handler)
    root.setLevel(logging.WARNING)


def run(root: Path, *arguments: str, env: dict[str, str] | None = None) -> Said:
    """Run a command in a process of its own, with the real tools."""
    done = subprocess.run(
        [sys.executable, "-m", "croq_fsm", *arguments, "--root", str(root)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **(env or {})},
    )
    return Said(done.returncode, done.stdout, done.stderr)
