"""Kernels and files that want more than to compute: sources, and sessions that meet them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from croq_fsm.config import Storage
from croq_fsm.root import Root
from croq_fsm.toolchain.survivors import marked
from support.bench import git_root

#: What must be found nowhere.
CANARY: Final = "nobody-must-see-4711"
_HEAD: Final = "void matmul(const float *a, const float *b, float *c, int m, int n, int k)"
_BODY: Final = """{
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            c[i * n + j] = sum;
        }
"""
#: Rules that are switched off to try what stands behind them.
_UNRULED: Final = """
import sys
from croq_fsm.toolchain import c_rules
c_rules.source_problems = lambda *_: []
c_rules.expanded_problems = lambda *_: []
c_rules.object_problems = lambda *_: []
from croq_fsm.cli.main import run
sys.argv[0] = "croq-fsm"
run()
"""
_QUICK: Final = {
    "CROQ_FSM_MEASURE__PAIRS": "5",
    "CROQ_FSM_MEASURE__SCREEN_PAIRS": "3",
    "CROQ_FSM_MEASURE__MAX_PAIRS": "6",
    "CROQ_FSM_MEASURE__CONFIRM_PAIRS": "5",
    "CROQ_FSM_MEASURE__BLOCK_S": "0.002",
    "CROQ_FSM_MEASURE__WARMUP_S": "0.002",
    "CROQ_FSM_MEASURE__VERIFY_SEEDS": "1",
    "CROQ_FSM_DEADLINES__VERIFY_S": "5",
    "CROQ_FSM_DEADLINES__KILL_GRACE_S": "0.2",
    "CROQ_FSM_IDEATOR": "replay",
}


def kernel(before: str = "", inside: str = "") -> str:
    """A right matmul with something of its own before it, or at its end."""
    return f"{before}\n{_HEAD}\n{_BODY}{inside}\n}}\n"


def early(body: str) -> str:
    """A right matmul whose object does something before ``main``, and says what came of it.

    ``body`` sets ``got`` when it gets through. In either case the process ends at once, so that
    the record of the attempt shows that it was made.
    """
    before = f"""#define _GNU_SOURCE
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
__attribute__((constructor)) static void attack(void) {{
    int got = 0;
    {body}
    fprintf(stderr, got ? "attack got through\\n" : "attack got nothing\\n");
    fflush(stderr);
    abort();
}}"""
    return kernel(before)


@dataclass(frozen=True)
class Night:
    """A finished session.

    Attributes:
        root: Its root.
        done: The process that worked on it.
    """

    root: Path
    done: subprocess.CompletedProcess[str]

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Rows of the database."""
        connection = sqlite3.connect(Root(self.root, Storage()).database)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    def attempts(self) -> dict[str, tuple[str, str, str]]:
        """Tag → kind, message and log of the failed attempt."""
        rows = self.rows("SELECT name, kind, message, log FROM attempts ORDER BY ordinal")
        return {str(name).partition("_")[2]: (kind, text, log) for name, kind, text, log in rows}

    def places_of(self, secret: str) -> list[str]:
        """Files of the root that hold a text, git's objects included, in any encoding we write."""
        found = [
            str(path.relative_to(self.root))
            for path in self.root.rglob("*")
            if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes()
        ]
        objects = subprocess.run(
            ["git", "cat-file", "--batch", "--batch-all-objects"],
            cwd=self.root,
            capture_output=True,
            check=True,
        ).stdout
        found += ["git objects"] if secret.encode() in objects else []
        found += ["output"] if secret in self.done.stdout + self.done.stderr else []
        return found

    def orphans(self) -> list[int]:
        """Processes of its runs that still live."""
        runs = self.rows("SELECT run_id FROM runs")
        return [pid for (run,) in runs for pid in marked("CROQ_RUN_ID", run)]


def night(
    path: Path,
    sources: dict[str, str],
    *,
    ruled: bool = True,
    env: dict[str, str] | None = None,
    settings: str = "",
) -> Night:
    """Work through kernels, one a round, with the real daemon and compiler.

    Args:
        path: Fresh folder.
        sources: Tag → source.
        ruled: Whether the rules on sources and objects hold; without them the sandbox is alone.
        env: More variables of the daemon.
        settings: More lines of the configuration.
    """
    root = git_root(path / "root")
    recording = path / "recording.jsonl"
    recording.write_text("".join(map(_proposal, sources, sources.values())), encoding="utf-8")
    (root / "croq_fsm.toml").write_text(
        f"{settings}\n[ideators.replay]\npath = {json.dumps(str(recording))}\n", encoding="utf-8"
    )
    program = ("-m", "croq_fsm") if ruled else ("-c", _UNRULED)
    arguments = ("start", "c", "f32", "32x32x32", "--rounds", str(len(sources)))
    done = subprocess.run(
        [sys.executable, *program, *arguments, "--root", str(root)],
        env={
            **os.environ,
            **_QUICK,
            "CROQ_FSM_CONTENTION__LEASE_DIR": str(path),
            "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
            **(env or {}),
        },
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    return Night(root, done)


def _proposal(tag: str, source: str) -> str:
    proposal = {
        "tag": tag,
        "base": 1,
        "edit": {"kind": "whole_source", "source": source},
        "summary": f"try {tag}",
        "hypothesis": "time.us is what it rests on, as the profile shows",
        "metrics": ["time.us"],
        "category": "compute",
        "expected_gain": 0.1,
        "levers": [tag],
        "research_basis": "a corpus of hostile kernels",
    }
    return json.dumps(proposal) + "\n"


def attacks(root: Path) -> dict[str, str]:
    """Name → C statements that set ``got`` when they get through.

    Args:
        root: Root of a session; beside it lies ``home/.ssh/id_key`` with the canary.
    """
    key, state = root.parent / "home" / ".ssh" / "id_key", root / ".croq_fsm"
    harness = Path(__file__).resolve().parent.parent / "croq_fsm" / "measure" / "c" / "bench.c"
    return {
        "key": f"""char text[64] = {{0}};
            int file = open("{key}", O_RDONLY);
            got = file >= 0 && read(file, text, 63) > 0;
            fputs(text, stderr);""",
        "socket": """got = socket(AF_INET, SOCK_STREAM, 0) >= 0
            || socket(AF_INET6, SOCK_DGRAM, 0) >= 0 || socket(AF_UNIX, SOCK_STREAM, 0) >= 0;""",
        "forks": """for (int i = 0; i < 500; ++i) {
                const int pid = fork();
                if (pid == 0) for (;;) pause();
                got |= pid > 0;
            }""",
        "link": f"""got = symlink("{key}", "verify.out") == 0 || symlink("{key}", "x") == 0
            || link("{key}", "y") == 0;""",
        "database": f"""got = open("{state / "croq.sqlite3"}", O_RDONLY) >= 0
            || open("{state / "croq.sqlite3"}", O_WRONLY) >= 0;""",
        "cache": f"""got = open("{state / "cache" / "planted"}", O_WRONLY | O_CREAT, 0600) >= 0
            || mkdir("{state / "cache" / "folder"}", 0700) == 0;""",
        "harness": f"""got = open("{harness}", O_WRONLY) >= 0;""",
        "trace": """got = ptrace(PTRACE_SEIZE, getppid(), 0, 0) == 0
            || ptrace(PTRACE_ATTACH, getppid(), 0, 0) == 0;""",
        "keys_of_others": """for (int pid = 1; pid < 100000; ++pid) {
                char name[64];
                snprintf(name, sizeof name, "/proc/%d/environ", pid);
                got |= pid != getpid() && open(name, O_RDONLY) >= 0;
            }""",
        "rename": f"""got = rename("{root / "croq_fsm.toml"}", "mine") == 0
            || unlink("{root / "croq_fsm.toml"}") == 0;""",
        "parent": """struct rlimit none = {1, 1};
            got = prlimit(getppid(), RLIMIT_CPU, &none, 0) == 0
                || kill(getppid(), SIGKILL) == 0;""",
    }


def plant(path: Path) -> Path:
    """A folder for a root, beside a home with a private key in it."""
    key = path / "home" / ".ssh" / "id_key"
    key.parent.mkdir(parents=True)
    key.write_text(f"{CANARY}\n", encoding="ascii")
    return path / "root"
