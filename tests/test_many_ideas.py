"""A simulated night of many proposals: none twice, no long run of macros, only active bases.

The engine, the rules, the guards and the database are the real ones; the device is a model. The
promises are looked up in the finished database, by a reader of its own.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from croq_fsm.config import Storage
from croq_fsm.root import Root
from support.bench import git_root
from support.rules import proves

#: A second base may be so much slower than the best.
_SECOND_WITHIN = 1.25
_LONGEST_RUN = 2
_TASKS = ("4096x8192x4096", "8192x8192x8192", "2048x2048x16384", "1024x1024x1024")


@dataclass(frozen=True)
class Kernel:
    """A measured kernel: in which round it came, how fast it is, how it is built."""

    number: int
    round: int
    seconds: float
    kept: bool
    structure: dict[str, str]


@dataclass
class Record:
    """What a night left in the database."""

    path: Path

    def rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(query, values).fetchall()
        finally:
            connection.close()

    def problems(self) -> list[str]:
        """Every breach of the promises, over all sessions."""
        sessions = [row[0] for row in self.rows("SELECT id FROM sessions")]
        return [problem for session in sessions for problem in self._of(session)]

    def _of(self, session: str) -> Iterator[str]:
        prints = self.rows("SELECT fingerprint FROM ideas WHERE session_id = ?", session)
        if len(prints) != len(set(prints)):
            yield f"{session}: a fingerprint came twice"
        query = "SELECT candidate FROM iterations WHERE session_id = ? AND number > 0"
        tried = self.rows(query, session)
        if len(tried) != len(set(tried)):
            yield f"{session}: a candidate was measured twice"
        run = 0
        query = "SELECT round, macro_only FROM rounds WHERE session_id = ? ORDER BY round"
        for number, macro_only in self.rows(query, session):
            run = run + 1 if macro_only else 0
            if run > _LONGEST_RUN:
                yield f"{session}: round {number} is macro-only round {run} in a row"
        yield from self._strangers(session)

    def _strangers(self, session: str) -> Iterator[str]:
        query = (
            "SELECT number, round, seconds, decision, structure FROM iterations "
            "WHERE session_id = ? AND number > 0 ORDER BY number"
        )
        kernels = [
            Kernel(number, round_, seconds, decision == "KEEP", json.loads(structure))
            for number, round_, seconds, decision, structure in self.rows(query, session)
        ]
        query = "SELECT round, base FROM rounds WHERE session_id = ? ORDER BY round"
        for number, base in self.rows(query, session):
            active = _active([k for k in kernels if k.round < number])
            if base not in active:
                yield f"{session}: round {number} derives from iter{base}, active: {active}"


def _active(known: list[Kernel]) -> set[int]:
    """The best kernel, and the fastest of another structure while it is near enough."""
    best = [k for k in known if k.kept][-1]
    others = [k for k in known if k.structure != best.structure]
    other = min(others, key=lambda k: (k.seconds, k.number), default=best)
    near = other.seconds <= best.seconds * _SECOND_WITHIN
    return {best.number, other.number} if near else {best.number}


def night(root: Path, rounds: int, shapes: tuple[str, ...] = _TASKS[:1]) -> Record:
    """Simulated sessions of so many rounds each."""
    environment = os.environ | {"CROQ_FSM_GIT__COMMIT": "false"}
    for shape in shapes:
        task = ("croqtile", "f16", shape, "--simulate", "--rounds", str(rounds))
        done = subprocess.run(
            [sys.executable, "-m", "croq_fsm", "start", *task, "--root", str(root)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    return Record(Root(root, Storage()).database)


@proves("rule 2", "rule 3", "rule 4", "macros only", "repetition", "other base")
def test_a_short_night_keeps_the_promises(tmp_path: Path) -> None:
    """Twelve simulated rounds: the reader finds nothing, and finds each thing that is spoilt."""
    record = night(git_root(tmp_path / "root"), 12)
    assert record.rows("SELECT count(*) FROM ideas") == [(12,)]
    assert record.problems() == []
    for spoil, found in (
        ("UPDATE rounds SET macro_only = 1", "macro-only round 3 in a row"),
        ("UPDATE rounds SET base = 99 WHERE round = 7", "round 7 derives from iter99"),
        (
            "UPDATE iterations SET candidate = 'x' WHERE number IN (1, 2)",
            "measured twice",
        ),
    ):
        copy = tmp_path / "spoilt.sqlite3"
        source, target = sqlite3.connect(record.path), sqlite3.connect(copy)
        source.backup(target)
        target.execute(spoil)
        target.commit()
        target.close()
        source.close()
        assert any(found in problem for problem in Record(copy).problems()), spoil
        copy.unlink()


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_two_thousand_proposals_keep_the_promises(tmp_path: Path) -> None:
    """A simulated night over four shapes takes two thousand ideas and breaks no promise."""
    record = night(git_root(tmp_path / "root"), 500, _TASKS)
    assert record.rows("SELECT count(*) FROM ideas") == [(2000,)]
    assert record.problems() == []
