"""Nights on the simulator: the real daemon, engine, rules, statistics, files and git."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from croq_fsm.domain.states import Decision, State
from croq_fsm.errors import DiskFull, UsageError
from croq_fsm.toolchain.simulated.device import KEY
from support.simulated import TASK, Night, decisions, stopping

#: Faults on every side; two rounds hold a few of them.
STORM: dict[str, Any] = {
    "simulation__contention": 0.3,
    "simulation__wrong_result": 0.3,
    "rounds": 2,
    "seed": 3,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Night:
    """A night with faults that nobody stopped; not to be changed."""
    night = Night.of(tmp_path_factory.mktemp("undisturbed"), **STORM)
    night.run()
    return night


def test_a_night_is_a_real_one_but_for_its_marks(undisturbed: Night) -> None:
    """Every artifact says that it is simulated, and the audit agrees."""
    session, rounds, iterations, _ = undisturbed.record()
    assert (session.state, len(rounds)) == (State.DONE, 2)
    assert (session.device.key, session.device.simulated) == (KEY, True)
    assert all(it.build is None or "SIMULATED" in it.build.compilers.values() for it in iterations)
    report = undisturbed.audit()
    assert (report.problems, len(report.simulated)) == ((), 1)
    tuning = undisturbed.path / "tuning"
    assert {p.name for p in tuning.iterdir()} == {KEY}
    timings = list(tuning.rglob("timing_iter*.txt"))
    assert timings
    assert all("simulated: true" in path.read_text(encoding="utf-8") for path in timings)


def test_the_seed_makes_the_night(undisturbed: Night, tmp_path: Path) -> None:
    """The same seed in another root: equal to the last digit; another seed differs."""
    same = Night.of(tmp_path / "same", **STORM)
    other = Night.of(tmp_path / "other", **{**STORM, "seed": 4})
    for night in (same, other):
        night.run()
    assert same.outcome() == undisturbed.outcome()
    assert other.outcome() != undisturbed.outcome()


@pytest.mark.parametrize(
    "fault",
    [
        "handled_BASELINE@1",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "after_commit@6", "in_commit@9", "before_done@3", "handler_IMPLEMENT@2",
                "before_effect@2", "git_committed@1", "handled_MEASURE@2", "handler_DECIDE@3",
                "handled_IMPLEMENT@1",
            )
        ),
    ],
)  # fmt: skip
def test_a_killed_night_goes_on_as_if_nothing_had_happened(
    undisturbed: Night, tmp_path: Path, fault: str
) -> None:
    """Killed at a fault point and resumed: the same rounds, times and reasons to the last digit."""
    night = Night.of(tmp_path, **STORM)
    status = night.killed(f"{fault}=kill")
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    night.run()
    assert night.outcome() == undisturbed.outcome()
    assert night.audit().problems == ()


def test_a_night_stopped_again_and_again_is_the_same_night(
    undisturbed: Night, tmp_path: Path
) -> None:
    """Drained after every few steps and resumed: equal to the undisturbed night."""
    night = Night.of(tmp_path, **STORM)
    starts = 0
    while not night.run(stopping(7)).state.is_final:
        starts += 1
    assert starts >= 1
    assert night.outcome() == undisturbed.outcome()


def test_a_confirmation_takes_as_many_looks_as_it_needs(tmp_path: Path) -> None:
    """Under noise it goes on; hidden shapes are verified once, and the audit follows it all."""
    night = Night.of(tmp_path, rounds=1, simulation__block_noise=0.04)
    night.run()
    kinds = night.kinds(1)
    assert kinds.count("confirm") > 1
    assert kinds.count("verify") == 1 + night.config.measure.hidden_shapes
    assert night.record()[1][0].decision is Decision.KEEP
    assert night.audit().problems == ()


SCRIPTED = {
    "compile_fail": Decision.COMPILE_FAIL,
    "compiler_abort": Decision.COMPILE_FAIL,
    "compiler_hang": Decision.COMPILE_FAIL,
    "wrong_result": Decision.VERIFY_FAIL,
    "crash": Decision.SEGFAULT,
    "hang": Decision.HANG,
}


@pytest.mark.parametrize(
    "kind",
    [
        "compiler_abort",
        "wrong_result",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in sorted(SCRIPTED)),
    ],
)
def test_each_fault_of_a_candidate_has_its_decision(tmp_path: Path, kind: str) -> None:
    """What fails is recorded as what it is, and no candidate that fails is ever kept."""
    script = f'[[fault]]\nkind = "{kind}"\nmatching = "store_panels"\n'
    night = Night.of(tmp_path, script, rounds=1)
    assert night.run().state is State.DONE
    _, rounds, iterations, attempts = night.record()
    assert SCRIPTED[kind] in {done.decision for done in rounds} | {a.kind for a in attempts}
    kept = [it for it in iterations if it.candidate and it.decision is Decision.KEEP]
    assert not any("store_panels" in it.candidate.source for it in kept if it.candidate)
    assert night.audit().problems == ()


def test_an_hour_of_others_on_the_device_passes_in_no_time(tmp_path: Path) -> None:
    """Contended for an hour: the session waits, goes on, and no candidate pays for it."""
    script = '[[fault]]\nkind = "contention"\nfrom_s = 48\nuntil_s = 3600\n'
    night = Night.of(tmp_path, script, rounds=1)
    session = night.run()
    _, rounds, _, attempts = night.record()
    assert (session.state, len(rounds), attempts) == (State.DONE, 1, [])
    assert night.waits() > 3


@pytest.mark.slow
def test_a_slow_regime_changes_no_decision(tmp_path: Path) -> None:
    """All times grow by a quarter in mid-night; pairs do not care."""
    script = '[[fault]]\nkind = "slow"\nfrom_s = 150\nuntil_s = 100000\n'
    plain, slow = Night.of(tmp_path / "plain"), Night.of(tmp_path / "slow", script)
    for night in (plain, slow):
        night.run()
    assert decisions(slow.record()[1]) == decisions(plain.record()[1])
    assert slow.record()[2][-1].seconds > 1.2 * plain.record()[2][-1].seconds


def test_counters_that_may_not_be_read_end_the_session(tmp_path: Path) -> None:
    """The profiler is denied: FAILED with the reason, never a made-up profile."""
    script = '[[fault]]\nkind = "profiler_denied"\nfrom_s = 0\n'
    session = Night.of(tmp_path, script).run()
    assert session.state is State.FAILED
    assert "ERR_NVGPUCTRPERM" in (session.reason or "")


def test_a_full_disk_stops_the_daemon_and_resume_goes_on(tmp_path: Path) -> None:
    """No space: exit by its own error, nothing recorded of it; the next start goes on."""
    script = '[[fault]]\nkind = "disk_full"\nfrom_s = 30\n'
    night = Night.of(tmp_path, script, rounds=1)
    with pytest.raises(DiskFull):
        night.run()
    assert night.run().state is State.DONE
    assert night.record()[3] == []


@pytest.mark.parametrize(
    "kind", ["ideator_garbage", pytest.param("ideator_down", marks=pytest.mark.slow)]
)
def test_nonsense_of_an_ideator_ends_in_a_named_reason(tmp_path: Path, kind: str) -> None:
    """Every ask fails: no round is made up, and the session says why it ended."""
    script = f'[[fault]]\nkind = "{kind}"\nprobability = 1.0\n'
    night = Night.of(tmp_path, script)
    session = night.run()
    assert session.state.is_final
    assert session.reason
    assert night.record()[1] == []


@pytest.mark.slow
def test_a_scripted_kill_happens_once(tmp_path: Path) -> None:
    """The script kills the daemon; started again, the night comes to its end."""
    script = '[[fault]]\nkind = "kill"\npoint = "after_commit"\ncount = 3\n'
    night = Night.of(tmp_path, script, rounds=1)
    assert os.WIFSIGNALED(night.killed(""))
    assert night.run().state is State.DONE


def test_simulated_and_measured_sessions_never_share_a_root(undisturbed: Night) -> None:
    """The second kind is refused, with the way out."""
    real = TASK.model_copy(update={"simulated": False})
    with pytest.raises(UsageError, match=r"holds simulated sessions .*--root"):
        Night(undisturbed.path, undisturbed.config, real).another()


def test_the_audit_finds_a_removed_mark(undisturbed: Night, tmp_path: Path) -> None:
    """A simulated session that was made to look measured is a problem."""
    shutil.copytree(undisturbed.path, tmp_path / "root")
    night = Night(tmp_path / "root", undisturbed.config)
    with sqlite3.connect(night.root.database) as connection:
        changed = connection.execute(
            "UPDATE sessions SET task = replace(task, '\"simulated\":true', '\"simulated\":false')"
        )
        assert changed.rowcount == 1
    assert "simulated-mixed" in {problem.kind for problem in night.audit().errors}
