"""What the survival trials share: a root to hurt, and the questions that a survivor has to answer.

The questions are put from outside: plain SQL and git, and then the product's own audit.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from croq_fsm.cli.main import main
from croq_fsm.config import load
from croq_fsm.root import Root
from croq_fsm.toolchain.survivors import RUN_MARKER, marked
from croq_fsm.validation import validate

_GONE_S: Final = 10.0
_TRAILER: Final = "Croq-Attempt"


@dataclass(frozen=True)
class Facts:
    """What has been acknowledged: rows that must never change or go once they are there.

    Attributes:
        transitions: Of all sessions, in order.
        rounds: Of all sessions, in order.
        best: Number of the best kernel by session.
    """

    transitions: tuple[tuple[Any, ...], ...] = ()
    rounds: tuple[tuple[Any, ...], ...] = ()
    best: tuple[tuple[str, int], ...] = ()


def make_root(folder: Path, settings: str) -> Root:
    """A repository with this configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "croq_fsm.toml").write_text(settings, encoding="utf-8")
    return Root(folder, load(None).storage)


def command(root: Root, *arguments: str, output: Path | None = None) -> Callable[[], int]:
    """A command of ``croq-fsm`` on a root, to be run in a fork of this process."""

    def run() -> int:
        if output is not None:
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for number in (1, 2):
                os.dup2(descriptor, number)
            # Whoever imported us may have put others in their places.
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - a descriptor
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - a descriptor
        return main([*arguments, "--root", str(root.path)])

    return run


def fork(work: Callable[[], int], gate: tuple[int, int] | None = None) -> int:
    """Run in a process of its own, in which everything is imported already; returns its pid.

    Args:
        work: What to do; its result becomes the exit status.
        gate: A pipe; the child begins when the parent closes both of its ends.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        if gate is not None:
            os.close(gate[1])
            os.read(gate[0], 1)
            os.close(gate[0])
        status = work()
    finally:
        os._exit(status)


def facts(root: Root) -> Facts:
    """Read what is there, read-only."""
    if not root.database.exists() or not root.database.stat().st_size:
        return Facts()
    connection = sqlite3.connect(f"file:{root.database}?mode=ro", uri=True, timeout=30)
    try:
        return Facts(
            tuple(connection.execute("SELECT * FROM transitions ORDER BY session_id, seq")),
            tuple(connection.execute("SELECT * FROM rounds ORDER BY session_id, round")),
            tuple(
                connection.execute(
                    "SELECT id, best_iteration FROM sessions WHERE best_iteration IS NOT NULL "
                    "ORDER BY id"
                )
            ),
        )
    except sqlite3.OperationalError:
        return Facts()  # the first migration is not committed yet
    finally:
        connection.close()


def lost(before: Facts, after: Facts) -> list[str]:
    """What was acknowledged and is not there any more, or has changed; and what stands twice."""
    found = [
        f"{name} {row[:2]} is gone or changed"
        for name in ("transitions", "rounds")
        for row in set(getattr(before, name)) - set(getattr(after, name))
    ]
    for name in ("transitions", "rounds"):
        rows = getattr(after, name)
        by_session: dict[str, list[int]] = {}
        for row in rows:
            by_session.setdefault(row[0], []).append(row[1])
        found += [
            f"{name} of {session} are {numbers}"
            for session, numbers in by_session.items()
            if numbers != list(range(1, len(numbers) + 1))
        ]
    now = dict(after.best)
    found += [
        f"best of {session} went back from {number} to {now.get(session)}"
        for session, number in before.best
        if now.get(session, -1) < number
    ]
    return found


def orphans(root: Root) -> list[int]:
    """Processes of any run of this root that do not go away."""
    connection = sqlite3.connect(f"file:{root.database}?mode=ro", uri=True, timeout=30)
    try:
        runs = [row[0] for row in connection.execute("SELECT run_id FROM runs")]
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()
    # Only the last two can have anybody left: each start ends the survivors of those before.
    until = time.monotonic() + _GONE_S
    while alive := [pid for run in runs[-2:] for pid in marked(RUN_MARKER, run)]:
        if time.monotonic() > until:
            return alive
        time.sleep(0.05)
    return []


def audited(root: Root) -> list[str]:
    """Problems that the audit finds, git included, and what git says of the repository itself."""
    found = [f"{p.kind}: {p.where}: {p.text}" for p in validate(root).errors]
    checked = git(root, "fsck", "--full", "--strict")
    if checked.returncode:
        found.append(f"git fsck: {checked.stdout}{checked.stderr}")
    return found + doubled(root)


def doubled(root: Root) -> list[str]:
    """Promises that were committed more than once."""
    said = git(root, "log", "--all", f"--format=%(trailers:key={_TRAILER},valueonly)").stdout
    seen: dict[str, int] = {}
    for trailer in filter(None, map(str.strip, said.splitlines())):
        seen[trailer] = seen.get(trailer, 0) + 1
    return [f"{n} commits carry {trailer}" for trailer, n in seen.items() if n > 1]


def git(root: Root, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask git."""
    return subprocess.run(
        ["git", "-C", str(root.path), *arguments], capture_output=True, text=True, check=False
    )


def told(table: dict[str, Any], out: Path | None) -> None:
    """Print the figures, and leave them as JSON."""
    for name, value in table.items():
        print(f"{name:34} {value}")
    if out is not None:
        out.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
