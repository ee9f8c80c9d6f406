"""Keys of the user reach no child, no log, no database, no commit: searched for byte by byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import hostile
import pytest
from sandbox_support import TOP

from croq_fsm import log
from croq_fsm.config import Deadlines
from croq_fsm.toolchain.process import Command, NullJournal, Role
from croq_fsm.toolchain.runner import LocalRunner

#: Variables as users set them; each value is searched for.
KEYS = {
    "ANTHROPIC_API_KEY": "sk-ant-canary-0123456789abcdef",
    "OPENAI_API_KEY": "canary-openai-0123456789",
    "AWS_SECRET_ACCESS_KEY": "canary/aws+0123456789",
    "GITHUB_TOKEN": "canary-github-0123456789",
    "PGPASSWORD": "canary-database-pass",
    "SOME_SERVICE_CREDENTIALS": "canary credentials with blanks",
}
_SPY = """char text[65536];
    extern char **environ;
    for (char **each = environ; *each; ++each) fprintf(stderr, "%s\\n", *each);
    for (int pid = 1; pid < 100000; ++pid) {
        char name[64];
        snprintf(name, sizeof name, "/proc/%d/environ", pid);
        int file = open(name, O_RDONLY);
        long n = file < 0 ? -1 : read(file, text, sizeof text);
        for (long i = 0; i < n; ++i) if (text[i] == 0) text[i] = 10;
        if (n > 0) fwrite(text, 1, (unsigned long)n, stderr);
        if (file >= 0) close(file);
    }"""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("use", ["full", pytest.param("limits", marks=pytest.mark.slow)])
def test_a_session_leaves_no_key_anywhere(tmp_path: Path, use: str) -> None:
    """Not in the database, logs, files or commits, whatever the kernel spies out and prints."""
    sources = {"spy": hostile.early(_SPY)}
    settings = f'[sandbox]\nuse = "{use}"\ndemand = "limits"\n'
    night = hostile.night(tmp_path, sources, ruled=False, env=KEYS, settings=settings)
    assert night.done.returncode == 0, night.done.stderr
    kind, message, _ = night.attempts()["spy"]
    assert kind == "SEGFAULT"
    assert "attack got nothing" in message
    # What the spy printed was kept, so that a key in it would be found.
    assert night.places_of("CROQ_CHILD_ID=") != []
    for name, value in KEYS.items():
        assert night.places_of(value) == [], name


@pytest.mark.timeout(150)
def test_a_crash_with_a_key_in_its_text_leaves_none(tmp_path: Path) -> None:
    """An unexpected error that quotes a key is told without it, in the database as well."""
    failing = (
        "import os, sys\n"
        "from croq_fsm.toolchain import c\n"
        "def fail(*_): raise RuntimeError('it broke: ' + os.environ['ANTHROPIC_API_KEY'])\n"
        "c.CWorkbench.device = fail\n"
        "from croq_fsm.cli.main import run\n"
        "run()\n"
    )
    subprocess.run(["git", "init", "-q", str(tmp_path / "root")], check=True)
    done = subprocess.run(
        [
            *(sys.executable, "-c", failing, "start", "c", "f32", "32x32x32"),
            *("--rounds", "1", "--root", str(tmp_path / "root")),
        ],
        env={**os.environ, **KEYS, "PYTHONPATH": str(TOP)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    night = hostile.Night(tmp_path / "root", done)
    assert done.returncode == 1, done.stdout
    assert "it broke" in done.stdout + done.stderr
    assert night.places_of("it broke") != []
    assert night.places_of(KEYS["ANTHROPIC_API_KEY"]) == []


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("untrusted", [False, True])
def test_no_kind_of_child_gets_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: Role, *, untrusted: bool
) -> None:
    """Trusted or not, compilers, candidates and profilers start without them."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    runner = LocalRunner("keys", NullJournal(), threading.Event(), Deadlines())
    command = Command(("env",), tmp_path, 20.0, "env", untrusted=untrusted, role=role)
    done = runner.run(command)
    assert "PATH=" in done.stdout
    for name, value in KEYS.items():
        assert name not in done.output
        assert value not in done.output


def test_the_daemon_cannot_be_looked_into() -> None:
    """Its environment is closed to a process of the same user without root's capabilities."""
    code = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(TOP)!r})\n"
        "from croq_fsm.sandbox import capabilities, secrecy\n"
        "if sys.argv[1] == 'hidden': secrecy.hide()\n"
        "capabilities.drop()\n"  # both sides, as for any user but root
        "starter = os.getpid()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.execv(sys.executable, [sys.executable, '-I', '-S', '-c',\n"
        "        'import sys; print(len(open(sys.argv[1], \"rb\").read()) > 0)',\n"
        "        f'/proc/{starter}/environ'])\n"
        "os.waitpid(pid, 0)\n"
    )

    def look(how: str) -> str:
        argv = [sys.executable, "-c", code, how]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    assert "True" in look("open")
    assert "PermissionError" in look("hidden")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("key AKIAIOSFODNN7EXAMPLE was refused", "AKIAIOSFODNN7EXAMPLE"),
        ("GET https://me:hunter22@host/path failed", "hunter22"),
        ("token eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2Q", "SflKxwRJSMeKKF2Q"),
        (
            "-----BEGIN OPENSSH PRIVATE KEY-----\nabcdef\n-----END OPENSSH PRIVATE KEY-----",
            "abcdef",
        ),
        ("-----BEGIN RSA PRIVATE KEY-----\ncut off here", "cut off"),
        ("glpat-0123456789abcdefghij", "0123456789abcdefghij"),
    ],
)
def test_what_looks_like_a_key_is_redacted(text: str, secret: str) -> None:
    """Keys that no variable holds are known by their looks."""
    assert secret not in log.redacted(text)
    assert log.REDACTED in log.redacted(text)


def test_ordinary_texts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, hashes, addresses and numbers of tokens are no secrets."""
    monkeypatch.setenv("PWD", "/a/folder/of/mine")
    text = json.dumps(
        {"path": "/a/folder/of/mine", "sha": "e3b0c44298fc1c149afbf4c8996fb924", "tokens": 123456,
         "url": "https://host:8080/path", "mail": "a@b.example", "time": "12:30:01"}
    )  # fmt: skip
    assert log.redacted(text) == text
