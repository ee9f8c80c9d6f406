"""How sessions stand: the contract of ``status --json``, and which session is meant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from croq_fsm.config import load
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, State, Status
from croq_fsm.errors import Contended
from croq_fsm.report import finals, lines, standing, status_text
from croq_fsm.root import RootLock
from croq_fsm.storage.inspection import archive
from support.bench import TASK, Bench
from support.scripted import ScriptedIdeator, ScriptedWorkbench


class _Strict(BaseModel):
    """Part of the contract: exactly these fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Kernel(_Strict):
    """A measured kernel; all None before it is measured."""

    iter: int | None
    kernel: str | None
    tflops: float | None
    seconds: float | None
    self_reported: bool


class Escalation(_Strict):
    """What the streak demands."""

    level: int
    advice: str


class DaemonFields(_Strict):
    """The daemon of the root."""

    pid: int | None
    run_id: str | None
    alive: bool
    works_on_this: bool


class Contract(_Strict):
    """All of ``status --json``."""

    session: str
    state: str
    status: str
    state_since: str
    reason: str
    round: int
    dsl: str
    operator: str
    dtype: str
    shape_key: str
    model: str
    gpu: str | None
    simulated: bool
    self_reported: bool
    work: dict[str, Any] | None
    best: Kernel
    baseline: Kernel
    ratio: float | None
    final: dict[str, Any] | None
    noise: float | None
    counts: dict[str, int]
    streak: int
    escalation: Escalation
    in_hand: dict[str, Any] | None
    limits: dict[str, int | str | None]
    db: str
    daemon: DaemonFields
    children: list[dict[str, Any]]


def look(bench: Bench) -> standing.Standing:
    """The standing of the bench's session."""
    with archive(bench.root.database) as opened, opened.look() as inspector:
        session = inspector.session(bench.session_id)
        return standing.gather(inspector, session, bench.root, bench.clock.now())


def test_json_before_anything_is_measured(tmp_path: Path) -> None:
    """All fields are there from the first moment; what is not known is null."""
    bench = Bench(tmp_path, ScriptedIdeator([]))
    shown = Contract.model_validate(standing.as_json(look(bench)))
    assert (shown.state, shown.status, shown.round, shown.gpu) == ("INIT", "active", 0, None)
    assert shown.best.iter is shown.best.tflops is shown.baseline.tflops is shown.ratio is None
    assert shown.counts == {d.name: 0 for d in Decision}
    assert shown.daemon.alive is False
    assert "nothing measured yet" in status_text.block(look(bench))
    bench.close()


def test_json_of_a_finished_session(tmp_path: Path) -> None:
    """Best, baseline, ratio of one measurement, counts, streak and reason come from the rows."""
    ideator = ScriptedIdeator([{"TIME_US": "500"}, {"TIME_US": "900"}])
    bench = Bench(tmp_path, ideator, task=TASK.model_copy(update={"rounds": 2}))
    session = bench.run()
    stands = look(bench)
    shown = Contract.model_validate(standing.as_json(stands))
    best = stands.best
    assert best is not None
    assert best.library_seconds is not None
    assert (shown.best.iter, shown.best.kernel) == (2, "iter002_speed")
    assert shown.best.tflops == bench.task.tflops(best.seconds)
    assert shown.baseline.kernel == "iter000_blas"
    assert shown.ratio == best.library_seconds / best.seconds
    assert (shown.counts["KEEP"], shown.counts["DISCARD"], shown.streak) == (1, 1, 1)
    assert (shown.state, shown.status, shown.reason) == ("DONE", "ended", session.reason)
    assert shown.db == str(bench.root.database)
    assert shown.limits == {"rounds": 2, "deadline": None}
    bench.close()


def test_the_ratio_falls_back_to_the_baseline(tmp_path: Path) -> None:
    """Without the library in the measurement of record its time of BASELINE is taken."""
    bench = Bench(tmp_path, ScriptedIdeator([{"TIME_US": "500"}]))
    session = bench.run()
    best = look(bench).best
    assert best is not None
    assert session.library_seconds is not None
    alone = replace(best, library_seconds=None)
    assert standing.library_ratio(alone, session) == session.library_seconds / best.seconds
    assert not standing.same_window(alone)
    assert standing.library_ratio(best, session) != standing.library_ratio(alone, session)
    bench.close()


def test_a_living_daemon_is_shown_with_its_lock(tmp_path: Path) -> None:
    """The lock says who lives; the database is asked only when nobody does."""
    bench = Bench(tmp_path, ScriptedIdeator([]))
    lock = RootLock(bench.root, "run-of-the-lock")
    stands = look(bench)
    lock.release()
    assert stands.daemon.alive
    assert stands.daemon.run_id == "run-of-the-lock"
    assert stands.is_worked_on
    assert look(bench).daemon.alive is False
    bench.close()


@pytest.fixture
def one(tmp_path: Path) -> Session:
    """A session to make others of."""
    bench = Bench(tmp_path, ScriptedIdeator([]))
    session = bench.session()
    bench.close()
    return session


def variant(session: Session, name: str, at: int, seq: int, status: Status) -> Session:
    """A session of that name, last touched at that time."""
    state = State.DONE if status is Status.ENDED else State.PROFILE if seq else State.INIT
    return replace(
        session, id=name, created_at=at if not seq else 0, updated_at=at, seq=seq,
        status=status, state=state,
    )  # fmt: skip


ACTIVE, ENDED, PAUSED = Status.ACTIVE, Status.ENDED, Status.PAUSED


@pytest.mark.parametrize(
    ("rows", "alive", "meant"),
    [
        ([], False, None),
        ([("a", 1, 5, ENDED), ("b", 2, 5, ENDED)], False, "b"),
        ([("a", 9, 5, ACTIVE), ("b", 2, 5, ENDED)], False, "a"),
        # a new session that has not begun comes before one that was worked on earlier
        ([("a", 1, 5, ENDED), ("b", 2, 0, ACTIVE)], False, "b"),
        # a queue: what was made earlier and waits does not hide what is worked on
        ([("a", 9, 5, ACTIVE), ("b", 1, 0, ACTIVE), ("c", 1, 0, ACTIVE)], True, "a"),
        ([("a", 9, 5, ENDED), ("b", 1, 0, ACTIVE), ("c", 2, 0, ACTIVE)], True, "b"),
        # an old leftover does not hide the night that has just ended
        ([("a", 9, 5, ENDED), ("b", 1, 0, ACTIVE)], False, "a"),
        # an older session was resumed: only it is active
        ([("a", 1, 5, ACTIVE), ("b", 9, 5, ENDED)], True, "a"),
        ([("a", 1, 5, PAUSED), ("b", 0, 0, ACTIVE)], False, "a"),
    ],
)
def test_which_session_is_meant(
    one: Session, rows: list[tuple[str, int, int, Status]], meant: str | None, *, alive: bool
) -> None:
    """The one last worked on, unless a newer one waits to begin."""
    found = standing.current([variant(one, *row) for row in rows], alive=alive)
    assert (found.id if found else None) == meant


def test_the_table_lists_all_and_marks_one(one: Session) -> None:
    """Several sessions, one line each."""
    rows = [variant(one, "aaa", 1, 3, ENDED), variant(one, "bbb", 2, 3, PAUSED)]
    table = status_text.table(rows, {}, "bbb").splitlines()
    assert len(table) == 3
    assert table[1].startswith("  aaa")
    assert table[2].startswith("> bbb")
    assert "paused" in table[2]


def test_limits_in_words(one: Session) -> None:
    """Both limits, one, or none."""
    bounded = replace(one, task=one.task.model_copy(update={"rounds": 5, "deadline": 2e9}))
    assert lines.limits(one) == "when you stop it, or when the ideas are exhausted"
    assert lines.limits(bounded).startswith("after round 5 or with the round that runs at 2033-")
    assert lines.remaining(bounded, 2e9 - 7200.0) == "5 rounds or 2 h 00 min left"


def test_the_end_is_the_figure_of_record(tmp_path: Path) -> None:
    """Best, start kernel and library of one window at the end, in each regime of the device."""
    bench = Bench(
        tmp_path, ScriptedIdeator([{"TIME_US": "800"}]), task=TASK.model_copy(update={"rounds": 1})
    )
    bench.run()
    found = look(bench)
    last = standing.as_json(found)["final"]
    assert list(last) == ["isolated", "burst"]
    for regime in found.finals.regimes:
        assert {b.contestant for b in regime.samples.blocks} == {"candidate", "start", "library"}
        assert regime.samples.purpose == "final"
        told = last[regime.name]
        assert told["to_library"]["ratio"] == pytest.approx(0.5, rel=0.01)
        assert told["to_start"]["ratio"] == pytest.approx(1.25, rel=0.01)
        assert told["best_tflops"] == TASK.tflops(regime.seconds["candidate"])
    assert "at the end isolated 0.5" in " ".join(status_text.block(found).split())


def test_a_newer_best_makes_an_older_end_no_figure_of_record(tmp_path: Path) -> None:
    """After a reopening with another gain the former end speaks of another kernel."""
    bench = Bench(
        tmp_path, ScriptedIdeator([{"TIME_US": "800"}]), task=TASK.model_copy(update={"rounds": 1})
    )
    session = bench.run()
    last = look(bench)
    assert len(last.finals.regimes) == 2
    with archive(bench.root.database) as opened, opened.look() as inspector:
        start = inspector.iteration(session.id, 1)
        assert finals.read(inspector, session, start).regimes == ()
        assert finals.read(inspector, session, None).regimes == ()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"measure.final_pairs": 0}, "measure.final_pairs = 0"),
        ({"measure.final_s": 0.5}, "measure.final_s"),
    ],
)
def test_what_is_not_measured_at_the_end_is_named(
    tmp_path: Path, settings: dict[str, object], says: str
) -> None:
    """Turned off, or no time left: the session ends all the same, and says why."""
    ideator = ScriptedIdeator([{"TIME_US": "800"}])
    bench = Bench(
        tmp_path, ideator, config=load(None, settings), task=TASK.model_copy(update={"rounds": 1})
    )
    assert bench.run().state is State.DONE
    found = look(bench)
    assert found.finals.regimes == ()
    assert all(says in why for why in (found.finals.skipped or {}).values())
    assert set(found.finals.skipped or {}) == {"isolated", "burst"}


def test_a_device_in_use_at_the_end_costs_the_last_measurement_only(tmp_path: Path) -> None:
    """The round is stored, the session is done, and the reason is told."""
    bench = Bench(tmp_path, ScriptedIdeator([]))

    def busy_at_the_end(contestants: Any, task: Any, plan: Any) -> Any:
        if plan.purpose == "final":
            raise Contended("somebody else is on the device")
        return ScriptedWorkbench.time(bench.workbench, contestants, task, plan)

    bench.workbench.time = busy_at_the_end  # type: ignore[method-assign]
    assert bench.run().state is State.DONE
    skipped = look(bench).finals.skipped or {}
    assert skipped == dict.fromkeys(("isolated", "burst"), "somebody else is on the device")
