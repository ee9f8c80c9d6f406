"""The command line end to end: real processes, the real C compiler, real kills."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cli_support import Said, make_root, run

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")

#: Long enough a call that a busy machine does not spoil the timer's check.
TASK = ("c", "f32", "256x64x128")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """A session of one round in the foreground."""
    root = make_root(tmp_path_factory.mktemp("cli") / "root")
    said = run(root, "start", *TASK, "--rounds", "1")
    assert (said.code, said.err) == (0, "")
    return root, said


def status(root: Path) -> dict[str, Any]:
    """``status --json``."""
    return run(root, "status", "--json").json()


def test_a_round_of_real_work(night: tuple[Path, Said]) -> None:
    """Baseline against BLAS, one round with its line, a summary, exit code 0."""
    root, said = night
    assert "iter000_blas" in said.out
    assert "iter001_draft" in said.out
    assert sum(line.lstrip().startswith("1  ") for line in said.out.splitlines()) == 1
    shown = status(root)
    assert (shown["state"], shown["reason"]) == ("DONE", "budget of 1 rounds is used")
    assert sum(shown["counts"].values()) == 1
    assert shown["best"]["tflops"] > 0
    assert shown["gpu"].startswith("cpu_")


def test_the_report_names_files_that_are_there(night: tuple[Path, Said], tmp_path: Path) -> None:
    """The report of a real session is complete; --out writes the same text."""
    root, _ = night
    said = run(root, "report")
    assert said.code == 0
    kernel = re.search(r"^  best kernel +(\S+)$", said.out, re.MULTILINE)
    assert kernel is not None
    assert "matmul" in (root / kernel[1]).read_text(encoding="utf-8")
    assert "compiler " in said.out
    assert "checks of the whole output passed" in said.out
    assert run(root, "report", "--out", str(tmp_path / "r.txt")).code == 0
    assert (tmp_path / "r.txt").read_text(encoding="utf-8") == said.out
    assert run(root, "report", "--out", str(tmp_path / "no" / "r.txt")).code == 2


def test_the_start_kernel_runs_again(night: tuple[Path, Said]) -> None:
    """run-iter builds, verifies and times iter001 from the database alone."""
    root, _ = night
    said = run(root, "run-iter", status(root)["session"], "iter001")
    assert said.code == 0
    assert "same binary as recorded" in said.out
    assert "x library [" in said.out


def test_a_wrong_start_kernel_exits_2(tmp_path: Path) -> None:
    """A kernel that computes something else is refused in BASELINE, with the reason."""
    root = make_root(tmp_path / "root")
    (root / "matmul_zero.c").write_text(
        "void matmul(const float *a, const float *b, float *c, int m, int n, int k) {\n"
        "    (void)a; (void)b; (void)k;\n"
        "    for (long i = 0; i < (long)m * n; i++) c[i] = 0.0f;\n}\n",
        encoding="utf-8",
    )
    said = run(root, "start", *TASK, "--kernel", str(root / "matmul_zero.c"))
    assert said.code == 2
    assert "FAILED, the start kernel computes wrong results" in said.out


def test_a_detached_daemon_lives_is_killed_and_goes_on(tmp_path: Path) -> None:
    """--detach returns with the session; a second start exits 3; kill -9 loses nothing."""
    root = make_root(tmp_path / "root")
    said = run(root, "start", *TASK, "--detach")
    assert said.code == 0, said.err
    first = status(root)
    assert first["session"] in said.out
    assert first["daemon"]["alive"]
    assert first["daemon"]["works_on_this"]
    assert run(root, "start", *TASK).code == 3
    refused = run(root, "start", *TASK, "--detach")
    assert (refused.code, f"pid {first['daemon']['pid']}" in refused.err) == (3, True)
    os.kill(first["daemon"]["pid"], signal.SIGKILL)
    _wait_for(root, lambda shown: not shown["daemon"]["alive"])
    dead = status(root)
    assert (dead["status"], dead["children"]) == ("active", [])
    again = run(root, "resume", "--detach", "--rounds", "50")
    assert again.code == 0, again.err
    _wait_for(root, lambda shown: shown["state"] not in ("INIT", "BASELINE"))
    ended = run(root, "stop", "--now")
    assert ended.code == 0
    last = status(root)
    assert (last["session"], last["daemon"]["alive"]) == (first["session"], False)
    for line in (root / ".croq_fsm" / "daemon.log").read_text(encoding="utf-8").splitlines():
        assert line.startswith("croq-fsm: another daemon works") or json.loads(line)["event"]


def test_a_detached_start_that_fails_shows_why(tmp_path: Path) -> None:
    """What goes wrong behind the terminal is said on it, with the exit code."""
    root = make_root(tmp_path / "root")
    (root / ".croq_fsm").mkdir()
    (root / ".croq_fsm" / "croq.sqlite3").write_text("this is no database\n" * 50, encoding="utf-8")
    said = run(root, "start", *TASK, "--detach")
    assert said.code == 5
    assert "is damaged: it does not begin like an SQLite database" in said.err
    assert "no backup yet: move it and its .used file away, and start a new session" in said.err
    assert run(root, "status").code == 5


def _wait_for(root: Path, holds: Any) -> None:
    """Look until the status is as wanted; the time-out of the test ends it otherwise."""
    while not holds(status(root)):
        time.sleep(0.2)


def test_a_refused_start_kernel_leaves_a_true_record(tmp_path: Path) -> None:
    """The reason is said once, the advice is one that helps, and validate has nothing to say."""
    root = make_root(tmp_path / "root")
    kernel = root / "matmul_mine.c"
    kernel.write_text('#include "/etc/hostname"\nvoid matmul(void) {}\n', encoding="utf-8")
    said = run(root, "start", *TASK, "--kernel", str(kernel))
    assert said.code == 2
    assert said.out.count("/etc/hostname") == 1
    assert "mend the kernel and start again" in said.out
    assert "--reopen" not in said.out
    assert run(root, "validate").code == 0
