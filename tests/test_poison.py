"""A session that brings the daemon down is parked; what merely disturbs it never counts."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from croq_fsm import faults
from croq_fsm.domain.states import Decision, Outcome, State
from croq_fsm.engine import Engine
from croq_fsm.errors import PoisonSession, UsageError
from states import HANDLERS
from support.bench import TASK as ONE
from support.bench import Bench
from support.scripted import ScriptedIdeator
from support.stage import Stage, fork, waited

_KILLED = -9
_QUEUE = """
[[tasks]]
dsl = "c"
dtype = "f32"
shape = "64x64x64"
rounds = 1
[[tasks]]
dsl = "c"
dtype = "f32"
shape = "32x32x32"
rounds = 1
"""


def _stage(tmp_path: Path) -> Stage:
    """A root with a queue of two sessions."""
    stage = Stage(tmp_path / "s")
    config = stage.root.path / "croq_fsm.toml"
    config.write_text(config.read_text() + _QUEUE, encoding="utf-8")
    return stage


def _with(fault: str, work: Callable[[], int]) -> int:
    """Run in a fork with a fault point armed."""

    def run() -> int:
        faults.arm(fault)
        return work()

    return waited(fork(run))


def _sessions(stage: Stage) -> list[tuple[str, str]]:
    """State and last outcome of all sessions, in order of creation."""
    connection = sqlite3.connect(stage.root.database)
    found = connection.execute(
        "SELECT state, (SELECT outcome FROM transitions t WHERE t.session_id = s.id "
        "ORDER BY seq DESC LIMIT 1) FROM sessions s ORDER BY created_at, rowid"
    ).fetchall()
    connection.close()
    return found


@pytest.mark.parametrize(
    "point",
    [
        "handler_IDEATE",
        pytest.param("handled_MEASURE", marks=pytest.mark.slow),
        pytest.param("before_commit@4", marks=pytest.mark.slow),
        pytest.param("take_up", marks=pytest.mark.slow),
    ],
)
def test_three_crashes_in_one_place_park_the_session_and_the_queue_goes_on(
    tmp_path: Path, point: str
) -> None:
    """The fourth start gives it up with a reason and code 8, and works on the next session."""
    stage = _stage(tmp_path)
    # In later starts the point is the first of its kind that is passed.
    again = point.partition("@")[0]
    assert _with(f"{point}=kill", stage.work("start")) == _KILLED
    for _ in range(2):
        assert _with(f"{again}=kill", stage.work("resume")) == _KILLED
    assert stage.run("resume") == PoisonSession.exit_code, stage.log.read_text()
    assert _sessions(stage) == [
        (State.FAILED.name, Outcome.POISONED.name),
        (State.DONE.name, Outcome.FINISHED.name),
    ]
    assert stage.run("validate") == 0, stage.log.read_text()


def test_a_promise_that_kills_does_not_kill_for_ever(tmp_path: Path) -> None:
    """Files that bring the daemon down when they are written park their session, unwritten."""
    stage = _stage(tmp_path)
    assert _with("before_effect=kill", stage.work("start")) == _KILLED
    for _ in range(3):
        assert _with("before_effect=kill", stage.work("resume")) == _KILLED
    assert stage.run("resume") == PoisonSession.exit_code, stage.log.read_text()
    assert [state for state, _ in _sessions(stage)] == [State.FAILED.name, State.DONE.name]


def test_promises_of_a_session_that_has_ended_are_kept(tmp_path: Path) -> None:
    """Killed between the last transition and its files: resume writes and commits them."""
    stage = Stage(tmp_path / "s")
    work = stage.work("start", "c", "f32", "64x64x64", "--rounds", "1")
    assert _with("before_effect@4=kill", work) == _KILLED
    assert _sessions(stage) == [(State.DONE.name, Outcome.FINISHED.name)]
    assert not list(stage.root.path.glob("tuning/**/iter002*.c"))
    assert stage.run("resume") == 0, stage.log.read_text()
    assert list(stage.root.path.glob("tuning/**/iter002*.c"))
    assert stage.run("validate") == 0, stage.log.read_text()
    assert stage.run("resume") == UsageError.exit_code, "nothing is left to do"


def test_one_bad_session_does_not_end_the_queue(tmp_path: Path) -> None:
    """A folder of the first session is a link: it is named, the second one has its night."""
    stage = _stage(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (stage.root.path / "tuning" / "cpu_test" / "c" / "srcs").mkdir(parents=True)
    link = stage.root.path / "tuning" / "cpu_test" / "c" / "srcs" / "matmul_f32_64x64x64"
    link.symlink_to(tmp_path / "elsewhere")
    assert stage.run("start") == UsageError.exit_code
    assert "symbolic link" in stage.log.read_text()
    assert [state for state, _ in _sessions(stage)][1] == State.DONE.name
    assert not list((tmp_path / "elsewhere").iterdir())


def _engine(bench: Bench, disturbed: Callable[[], str | None]) -> Engine:
    """The bench's engine with a say about disturbances."""
    return Engine(
        repository=bench.repository,
        ports_of=bench.ports,
        effects=bench.effects(),
        handlers=dict(HANDLERS),
        run_id="test-run",
        stop=bench.stop,
        observe=lambda before, step, after: bench.steps.append((before, step, after)),
        disturbed=disturbed,
    )


def test_a_step_that_was_slept_through_is_repeated_and_recorded_once(tmp_path: Path) -> None:
    """Its work is dropped, no begin is counted for it, and the rounds are as on a quiet night."""
    bench = Bench(
        tmp_path,
        ScriptedIdeator([{"TIME_US": "800"}] * 3),
        task=ONE.model_copy(update={"rounds": 1}),
    )
    answers = [None, None, "slept", None, "slept"]
    session = _engine(bench, lambda: answers.pop(0) if answers else None).run(bench.session_id)
    assert not answers
    assert (session.state, session.counts) == (State.DONE, {Decision.KEEP: 1})
    assert [after.seq for _, _, after in bench.steps] == list(range(1, len(bench.steps) + 1))
    assert session.begins == 0
    bench.close()


def test_what_is_always_disturbed_is_taken_in_the_end(tmp_path: Path) -> None:
    """On a machine that stands still all the time the night goes on, after a few tries a step."""
    bench = Bench(
        tmp_path,
        ScriptedIdeator([{"TIME_US": "800"}] * 9),
        task=ONE.model_copy(update={"rounds": 1}),
    )
    session = _engine(bench, lambda: "always").run(bench.session_id)
    assert session.state is State.DONE
    bench.close()


def test_a_wait_is_no_longer_for_a_clock_that_was_set_back(tmp_path: Path) -> None:
    """A back-off that seems to end in a day ends after the longest wait that is configured."""
    bench = Bench(
        tmp_path,
        ScriptedIdeator([{"TIME_US": "800"}]),
        task=ONE.model_copy(update={"rounds": 1}),
    )
    bench.workbench.busy = 1
    waits: list[float] = []

    def wait(seconds: float, _stop: object) -> bool:
        waits.append(seconds)
        return False

    bench.clock.wait = wait  # type: ignore[method-assign]
    engine = _engine(bench, lambda: None)
    engine.observe = lambda _before, step, _after: (
        setattr(bench.clock, "time", bench.clock.time - 86400.0)  # type: ignore[func-returns-value]
        if step.outcome is Outcome.CONTENDED
        else None
    )
    session = engine.run(bench.session_id)
    assert session.state is State.DONE
    assert 0 < len(waits) < 700, "each look lets a second pass; a day would be 86400"
    bench.close()


def test_the_environment_of_tests_has_no_fault() -> None:
    """Other tests run without armed points."""
    assert not os.environ.get("CROQ_FAULT")
