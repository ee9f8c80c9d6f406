"""A session killed for real at every fault point goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from croq_fsm import faults
from croq_fsm.domain.records import Round
from croq_fsm.domain.states import State
from support.bench import TASK, Bench
from support.scripted import ScriptedIdeator, proposal

_STATES = [s.name for s in State if not s.is_final]

#: Point → how often it is passed before the kill.
POINTS = [
    *[(f"handler_{s}", 1) for s in _STATES],
    *[(f"handled_{s}", 1) for s in _STATES],
    *[("before_commit", n) for n in (1, 2, 5, 9, 12, 13)],
    *[("in_commit", n) for n in (1, 2, 5, 9, 12, 13)],
    *[("after_commit", n) for n in (1, 2, 5, 9, 12, 13)],
    *[("before_effect", n) for n in (1, 2, 3, 4, 5)],
    *[("before_done", n) for n in (1, 2, 3, 4, 5)],
    *[("before_rename", n) for n in (1, 3, 9)],
    ("git_added", 1),
    ("git_committed", 1),
    ("git_committed", 2),
    ("in_final", 1),
    ("in_final", 2),
]


def _ideator(rounds_done: int) -> ScriptedIdeator:
    """The rest of the same script, whatever was done before the crash."""
    script = [
        {"TIME_US": "800"},
        lambda c: proposal(c.base.iteration, {"TIME_US": "600"}, flags=("-O3",)),
        {"TIME_US": "900"},
    ]
    return ScriptedIdeator(script[rounds_done:])


def _forked(work: Callable[[], None]) -> int:
    """Run in a child process and return its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a child must never return into pytest
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def _first_run(folder: Path, fault: str) -> None:
    faults.arm(fault)
    Bench(folder, _ideator(0), task=TASK.model_copy(update={"rounds": 3})).run()


def _resume(folder: Path) -> None:
    faults.arm("")
    bench = Bench(folder, _ideator(0), reopen=True)
    with bench.repository.read() as reader:
        taken = reader.last_idea(bench.session_id)
    bench.ideator = _ideator(taken[0] if taken else 0)
    bench.run()


def _outcome(folder: Path) -> tuple[object, ...]:
    """What must not depend on the crash: rounds, commits, the chain of steps, the logs."""
    bench = Bench(folder, _ideator(0), reopen=True)
    with bench.repository.read() as reader:
        session = reader.session(bench.session_id)
        rounds = [_facts(record) for record in reader.rounds(session.id)]
        steps = [row["seq"] for row in reader.transitions(session.id)]
        assert reader.open_intents() == []
    assert session.state is State.DONE
    found = (rounds, bench.log(), steps, bench.file("logs/results.tsv"))
    bench.close()
    return found


def _facts(record: Round) -> tuple[object, ...]:
    return (record.round, record.iteration, record.kernel, record.decision, record.seconds)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """The same night without a crash."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert _forked(lambda: _first_run(folder, "")) == 0
    return _outcome(folder)


@pytest.mark.parametrize(("point", "count"), POINTS)
def test_killed_and_resumed_equals_undisturbed(
    tmp_path: Path, undisturbed: tuple[object, ...], point: str, count: int
) -> None:
    """No round is lost or doubled, each commit exists once, and the views are whole."""
    status = _forked(lambda: _first_run(tmp_path, f"{point}@{count}=kill"))
    assert os.WIFSIGNALED(status), "the fault point was never reached"
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert _forked(lambda: _resume(tmp_path)) == 0
    assert _outcome(tmp_path) == undisturbed
