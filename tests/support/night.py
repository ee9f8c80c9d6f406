"""A finished night with every kind of round, made once and copied for each test."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from croq_fsm.config import load
from croq_fsm.domain.states import State
from croq_fsm.ideators.contract import Context
from croq_fsm.root import Root
from croq_fsm.validation import Report, validate
from support.bench import TASK, Bench
from support.scripted import ScriptedIdeator, proposal

#: The bench writes its context pack there.
CONFIG = load(None, {"storage.compaction_summary": "summary/{dsl}/summary.md"})


def whole(context: Context, text: str, tag: str, **changes: object) -> object:
    """A proposal of a structural change: one more line above the base."""
    source = text + context.base.candidate.source
    edit = {"kind": "whole_source", "source": source}
    return proposal(context.base.iteration, {}, tag=tag, edit=edit, **changes)


def script() -> list[object]:
    """KEEP, DISCARD, KEEP by structure, a repaired and an unrepaired failure, a wrong result."""
    return [
        {"TIME_US": "900"},
        {"TIME_US": "950"},
        lambda c: whole(c, "int faster;\n", "structure", flags=("-O3",)),
        lambda c: whole(c, "#define NO_COMPILE 1\n", "broken"),
        lambda c: whole(c, "#define WRONG 1\n", "wrong"),
        {"TIME_US": "800"},
    ]


def make(path: Path, rounds: int = 6) -> Bench:
    """A finished session."""
    ideator = ScriptedIdeator(script(), repairs=[{"TIME_US": "700"}])
    task = TASK.model_copy(update={"rounds": rounds})
    bench = Bench(path, ideator, config=CONFIG, task=task)
    bench.run()
    bench.close()
    return bench


def interrupted(path: Path) -> Bench:
    """A session that was stopped with its second idea in hand."""
    ideator = ScriptedIdeator([{"TIME_US": "900"}])
    bench = Bench(path, ideator, config=CONFIG)

    def last(context: Context) -> object:
        bench.stop.set()
        return proposal(context.base.iteration, {"TIME_US": "800"})

    ideator.script.append(last)
    bench.run()
    bench.close()
    return bench


def reopened(path: Path, state: State) -> Bench:
    """The session in the root below ``path``, put back to work as ``resume --reopen`` does it."""
    bench = Bench(path, ScriptedIdeator([]), config=CONFIG, reopen=True)
    session = bench.session()
    task = session.task.model_copy(update={"rounds": session.round + 1})
    bench.repository.revise(session, task, state, int(bench.clock.now() * 1e6))
    return bench


def again(path: Path, clock_moves_s: float = 1e6) -> str:
    """A second session of the same task in the root below ``path``, after a copied night."""
    ideator = ScriptedIdeator([{"TIME_US": "500"}])
    task = TASK.model_copy(update={"rounds": 1})
    bench = Bench(path, ideator, config=CONFIG, task=task, reopen=True)
    bench.session_id = bench._create()
    bench.clock.time += clock_moves_s
    bench.run()
    bench.close()
    return bench.session_id


@dataclass
class Night:
    """A copy of a finished night, to be spoilt."""

    root: Root
    session: str

    @classmethod
    def copy(cls, original: Path, session: str, target: Path) -> Night:
        """Copy a root."""
        shutil.copytree(original, target, symlinks=True)
        return cls(Root(target, CONFIG.storage), session)

    def sql(self, statement: str, *values: Any) -> None:
        """Change the database as nobody should; foreign keys are not looked at."""
        connection = sqlite3.connect(self.root.database)
        with connection:
            changed = connection.execute(statement, values).rowcount
        connection.close()
        assert changed, f"nothing was changed by {statement}"

    def ask(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of a query."""
        connection = sqlite3.connect(self.root.database)
        found = connection.execute(query, values).fetchall()
        connection.close()
        return found

    def report(self, *, ask_git: bool = False) -> Report:
        """What validate says; unless git is asked, every promised commit is there."""
        return validate(self.root, trailers=None if ask_git else self._promised)

    def kinds(self, *, ask_git: bool = False) -> set[str]:
        """Kinds of the problems, warnings left out."""
        return {p.kind for p in self.report(ask_git=ask_git).errors}

    def _promised(self, session: str) -> dict[str, str]:
        query = "SELECT seq FROM intents WHERE kind = 'git' AND session_id = ?"
        return {f"{session}/{seq}": "a commit" for (seq,) in self.ask(query, session)}

    def file(self, relative: str) -> Path:
        """A file below the key of the session."""
        kind, name = relative.split("/", 1)
        return self.root.path / "tuning/cpu_test/c" / kind / TASK.key / name
