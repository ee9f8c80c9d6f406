"""Sessions from the command line, with scripted tools: from start to hint."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from cli_support import Said, Shell, shell
from rich.console import Console

from croq_fsm import inbox
from croq_fsm.cli import control
from croq_fsm.cli.main import main
from croq_fsm.cli.progress import LiveProgress
from croq_fsm.config import load
from croq_fsm.domain.measurement import Check, Verification
from croq_fsm.domain.states import State, Status
from croq_fsm.gpu.lease import DeviceLease
from croq_fsm.root import Root, RootLock, find, is_locked
from croq_fsm.storage.git import Git
from support.scripted import START, proposal

__all__ = ["shell"]

TASK = ("c", "f32", "64x64x64")


def rounds(count: int) -> list[object]:
    """Ideas of which each is a little faster than the one before."""
    return [{"TIME_US": str(900 - 20 * n)} for n in range(count)]


def interrupting(_context: object) -> object:
    """An idea in the middle of which the daemon is asked to drain."""
    os.kill(os.getpid(), signal.SIGTERM)
    return proposal(1, {"TIME_US": "900"})


def root_of(shell: Shell) -> Root:
    """The root as the product sees it."""
    return find(shell.root, load(shell.root / "croq_fsm.toml"))


def began(shell: Shell, *options: str, ideas: int = 2) -> Said:
    """A session that has run for some rounds."""
    shell.ideator.script = rounds(ideas)
    return shell("start", *TASK, *options)


def test_a_start_shows_one_line_a_round_and_a_summary(shell: Shell) -> None:
    """Task, baseline, a line for each round with all its figures, and what comes next."""
    said = began(shell, "--rounds", "2")
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    session = shell.sessions()[0]
    assert lines[0] == f"session {session.id}: c matmul_f32_64x64x64 by rules"
    assert "ends after round 2" in lines[1]
    shown = [line for line in lines if line.startswith("    ") and " KEEP " in line]
    assert len(shown) == 2
    for number, line in enumerate(shown, 1):
        assert line.split()[:2] == [str(number), "KEEP"]
        assert f"iter{number + 1:03d}_speed: set" in line
        assert line.count("x ") >= 2
        assert "[" in line
    assert f"session {session.id}: DONE, budget of 2 rounds is used" in lines
    assert any(line.startswith("  next    croq-fsm report") for line in lines)


def test_foreign_text_stays_on_its_line(shell: Shell) -> None:
    """Newlines and escape sequences of an idea's summary do not reach the terminal."""
    bad = "tile\nthe \x1b[31mloop\x07"
    shell.ideator.script = [
        lambda c: proposal(c.base.iteration, {"TIME_US": "900"}, summary=bad),
    ]
    said = shell("start", *TASK, "--rounds", "1")
    assert "tile the ?[31mloop?" in said.out
    assert "\x1b" not in said.out


def test_json_log_holds_the_rounds(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    """With --log-json every line is an object, and the rounds are events."""
    said = began(shell, "--rounds", "1", "--log-json")
    events = [json.loads(line) for line in said.err.splitlines()]
    assert said.out == ""
    found = [e for e in events if e["event"] == "round"]
    assert [(e["round"], e["decision"]) for e in found] == [(1, "KEEP")]
    assert {"session begins", "transition", "session rests"} <= {e["event"] for e in events}


def test_a_queue_of_the_configuration_is_worked_off(shell: Shell) -> None:
    """Tasks run in order, each with its own limits; the newest is what status shows."""
    text = (shell.root / "croq_fsm.toml").read_text(encoding="utf-8")
    queue = "".join(
        f'[[tasks]]\ndsl = "c"\ndtype = "f32"\nshape = "{n}x{n}x{n}"\nrounds = {r}\n'
        for n, r in ((8, 1), (16, 2))
    )
    (shell.root / "croq_fsm.toml").write_text(text + queue, encoding="utf-8")
    shell.ideator.script = rounds(5)
    said = shell("start")
    assert said.code == 0
    second, first = sorted(shell.sessions(), key=lambda s: -s.task.shape[0])
    assert (first.round, second.round) == (1, 2)
    assert first.updated_at < second.updated_at
    assert shell("status", "--json").json()["session"] == second.id


def test_a_task_file_and_options_that_overrule_it(shell: Shell) -> None:
    """--rounds on the command line goes before the file's."""
    path = shell.root / "task.toml"
    path.write_text(
        'dsl = "c"\ndtype = "f32"\nshape = "8x8x8"\nrounds = 9\nhours = 2.0\n', encoding="utf-8"
    )
    shell.ideator.script = rounds(3)
    assert shell("start", "--task", str(path), "--rounds", "1").code == 0
    task = shell.sessions()[0].task
    assert task.rounds == 1
    assert task.deadline is not None


def test_the_time_of_the_command_line_ends_the_whole_queue(shell: Shell) -> None:
    """--for bounds the night and not each task: what has no time left is not begun."""
    path = shell.root / "tasks.toml"
    one = '[[tasks]]\ndsl = "c"\ndtype = "f32"\nshape = "8x8x8"\nhours = 5.0\n'
    path.write_text(one * 2, encoding="utf-8")

    def late(_context: object) -> object:
        time.sleep(1.1)
        return proposal(1, {"TIME_US": "900"})

    shell.ideator.script = [late]
    said = shell("start", "--task", str(path), "--for", "1s")
    assert said.code == 0
    waiting, ended = sorted(shell.sessions(), key=lambda s: s.state.is_final)
    assert (ended.reason, waiting.seq) == ("the deadline has passed", 0)
    assert f"not begun: {waiting.id}" in said.out


def test_a_stop_ends_the_round_and_the_queue(shell: Shell) -> None:
    """A stop finishes the round, ends the session with that reason, and begins no other."""
    path = shell.root / "tasks.toml"
    path.write_text('[[tasks]]\ndsl = "c"\ndtype = "f32"\nshape = "8x8x8"\n' * 2, encoding="utf-8")

    def stopping(context: object) -> object:
        inbox.leave(root_of(shell), "stop")
        return proposal(1, {"TIME_US": "900"})

    shell.ideator.script = [stopping]
    said = shell("start", "--task", str(path))
    assert said.code == 0
    states = {s.seq > 0: (s.state, s.reason, s.round) for s in shell.sessions()}
    assert states[True] == (State.DONE, "stopped by the user", 1)
    assert states[False] == (State.INIT, "", 0)
    shell.ideator.script = rounds(2)
    resumed = shell("resume")
    assert resumed.code == 0
    assert all(s.state.is_final for s in shell.sessions())


def test_a_pause_rests_and_resume_goes_on(shell: Shell) -> None:
    """A paused session is active again after resume, with everything it had."""

    def pausing(context: object) -> object:
        inbox.leave(root_of(shell), "pause")
        return proposal(1, {"TIME_US": "900"})

    shell.ideator.script = [pausing, {"TIME_US": "800"}]
    said = shell("start", *TASK, "--rounds", "2")
    assert said.code == 0
    assert shell.sessions()[0].status is Status.PAUSED
    status = shell("status")
    assert ", paused" in status.out
    assert "'croq-fsm resume' goes on" in status.out
    assert shell("resume").code == 0
    session = shell.sessions()[0]
    assert (session.status, session.round) == (Status.ENDED, 2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_exits_clean(shell: Shell, number: int) -> None:
    """The session stays where it is, exit code 0, and the summary says how to go on."""

    def interrupting(context: object) -> object:
        os.kill(os.getpid(), number)
        return proposal(1, {"TIME_US": "900"})

    shell.ideator.script = [interrupting]
    said = shell("start", *TASK)
    session = shell.sessions()[0]
    assert said.code == 0
    assert not session.state.is_final
    assert f"session {session.id}: interrupted in {session.state.name}; nothing is lost" in said.out
    assert f"  next    croq-fsm resume {session.id}" in said.out


def test_resume_finds_nothing(shell: Shell) -> None:
    """When all have ended, resume says so, exits 2 and names the way on."""
    began(shell, "--rounds", "1")
    said = shell("resume")
    assert said.code == 2
    assert "nothing to resume" in said.err
    named = shell("resume", shell.sessions()[0].id)
    assert named.code == 2
    assert "add --reopen" in named.err


def test_reopening_a_finished_session_needs_and_takes_new_limits(shell: Shell) -> None:
    """DONE goes on in PROFILE; --rounds counts from now and replaces the old limit."""
    began(shell, "--rounds", "1")
    refused = shell("resume", "--reopen")
    assert refused.code == 2
    assert "has used its 1 rounds; say how many more with --rounds" in refused.err
    shell.ideator.script = [
        {"TIME_US": "700"},
        lambda c: proposal(c.base.iteration, {"TIME_US": "650"}, flags=("-O3",)),
    ]
    said = shell("resume", "--reopen", "--rounds", "2")
    assert said.code == 0
    session = shell.sessions()[0]
    assert (session.round, session.task.rounds, session.state) == (3, 3, State.DONE)
    assert "reopened" in shell("logs").out


def test_reopening_a_failed_session_goes_back_to_where_it_failed(shell: Shell) -> None:
    """FAILED in BASELINE is tried again in BASELINE."""
    kernel = shell.root / "matmul_bad.c"
    kernel.write_text(f"#define WRONG 1\n{START}", encoding="utf-8")
    said = shell("start", *TASK, "--kernel", str(kernel))
    assert said.code == 2
    session = shell.sessions()[0]
    assert session.state is State.FAILED
    assert "computes wrong results" in session.reason
    assert "mend the kernel and start again" in said.out
    again = shell("resume", "--reopen")
    assert again.code == 2
    rows = shell("logs", "-n", "2").out
    assert "FAILED > BASELINE" in rows
    assert "BASELINE > FAILED" in rows


def test_new_limits_replace_the_old_ones(shell: Shell) -> None:
    """Any limit that is given drops those that are not."""
    shell.ideator.script = [interrupting]
    shell("start", *TASK, "--for", "8h")
    shell.ideator.script = rounds(3)
    assert shell("resume", "--rounds", "1").code == 0
    task = shell.sessions()[0].task
    assert (task.rounds, task.deadline) == (1, None)


def test_stop_and_pause_without_a_daemon(shell: Shell) -> None:
    """Nothing runs: stop says so; pause records it for a session that is unfinished."""
    assert shell("stop").code == 0
    assert "nothing to stop" in shell("stop").out
    assert "nothing to pause" in shell("pause").out

    shell.ideator.script = [interrupting]
    shell("start", *TASK)
    said = shell("pause")
    assert "is paused; no daemon was working on it" in said.out
    assert shell.sessions()[0].status is Status.PAUSED


def test_hints_reach_the_ideator(shell: Shell) -> None:
    """A hint left before the start is in the context of the first idea; an empty one is refused."""
    assert shell("hint", "  ").code == 2
    assert shell("hint", "x" * 5000).code == 2
    assert shell("hint", "try larger tiles").code == 0
    began(shell, "--rounds", "1")
    assert shell.ideator.seen[0].hints == ("try larger tiles",)


def test_a_second_daemon_is_refused(shell: Shell) -> None:
    """start, resume and run-iter exit 3 and name the holder; status and logs work beside it."""
    began(shell, "--rounds", "1")
    session = shell.sessions()[0]
    lock = RootLock(root_of(shell), "another")
    try:
        for command in (
            ("start", *TASK),
            ("resume", "--reopen", "--rounds", "1"),
            ("run-iter", session.id, "1"),
        ):
            said = shell(*command)
            assert said.code == 3
            assert f"pid {os.getpid()}" in said.err
        status = shell("status", "--json").json()
        assert status["daemon"] == {
            "pid": os.getpid(),
            "run_id": "another",
            "alive": True,
            "works_on_this": False,
        }
        assert shell("logs").code == 0
        assert shell("report").code == 0
    finally:
        lock.release()
    assert len(shell.sessions()) == 1


def test_a_taken_device_leaves_no_session(shell: Shell) -> None:
    """When another root's daemon has the device, start exits 3 before a session is made."""
    with DeviceLease("test-device", shell.root.parent / "lease", "other"):
        said = shell("start", *TASK)
    assert said.code == 3
    assert "test-device is taken" in said.err
    assert shell.sessions() == []


def test_stop_waits_a_little_and_says_what_happens(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop leaves its message and comes back; --now waits until the lock is free."""
    root = root_of(shell)
    root.prepare()
    lock = RootLock(root, "busy")
    monkeypatch.setattr(control, "_STOP_WAIT_S", 0.1)
    said = shell("stop")
    assert "ends after the round in hand; 'croq-fsm stop --now" in said.out
    release = threading.Timer(0.5, lock.release)
    release.start()
    now = shell("stop", "--now")
    release.join()
    assert (now.code, "has ended" in now.out) == (0, True)
    kinds = {p.read_text(encoding="utf-8").split('"kind": "')[1][:8] for p in root.inbox.iterdir()}
    assert kinds == {'stop", "', "stop-now"}


def test_logs_show_one_line_for_each_transition(shell: Shell) -> None:
    """All transitions with reasons, oldest first; --follow ends with the session."""
    began(shell, "--rounds", "1")
    session = shell.sessions()[0]
    said = shell("logs", "-n", "0")
    lines = said.out.splitlines()
    assert len(lines) == session.seq
    assert [int(line.split("#")[1].split()[0]) for line in lines] == [*range(1, session.seq + 1)]
    assert lines[-1].endswith("- budget of 1 rounds is used")
    assert shell("logs", "-n", "2").out.splitlines() == lines[-2:]
    assert shell("logs", "--follow", "-n", "1").out.splitlines() == lines[-1:]


def test_watch_ends_with_the_session(shell: Shell) -> None:
    """--watch prints what it sees and ends when nothing more will come."""
    began(shell, "--rounds", "1")
    said = shell("status", "--watch")
    assert said.code == 0
    assert "DONE: budget of 1 rounds is used" in said.out


def test_run_iter_verifies_and_times_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right kernel is shown beside the record; a wrong one exits 1; an unknown one exits 2."""
    began(shell, "--rounds", "1")
    session = shell.sessions()[0]
    said = shell("run-iter", session.id[:12], "iter002_speed")
    assert said.code == 0
    assert "same binary as recorded" in said.out
    assert "checks of the whole output passed" in said.out
    assert "recorded" in said.out
    unknown = shell("run-iter", session.id, "7")
    assert unknown.code == 2
    assert "has no iteration 7; it has iter001 to iter002" in unknown.err
    monkeypatch.setattr(shell.workbench, "verify", _wrong)
    wrong = shell("run-iter", session.id, "2")
    assert wrong.code == 1
    assert "iter002_speed computes wrong results" in wrong.err
    assert "smoke (verify): 3 elements differ" in wrong.out


def _wrong(*_: object) -> Verification:
    check = Check(name="smoke", rung="verify", passed=False, detail="3 elements differ")
    return Verification(checks=(check,))


def test_the_root_is_the_repository_around_the_folder(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without --root the repository around the current folder is meant, with its configuration."""
    began(shell, "--rounds", "1")
    below = shell.root / "deep" / "er"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    capsys.readouterr()
    assert main(["status", "--json"]) == 0
    assert shell.sessions()[0].id in capsys.readouterr().out


def test_live_terminal_shows_state_and_rounds(shell: Shell) -> None:
    """On a terminal lines are cut to its width, and the last line follows the state."""
    shell.ideator.script = [interrupting]
    shell("start", *TASK)
    session = shell.sessions()[0]
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system=None)
    progress = LiveProgress(console)
    progress.begins(session, None)
    console.print(progress)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[-1].startswith(f" round 1 iter002_speed | {session.state.name} ")
    progress.ends(session, ["the end"])
    console.print(progress)
    assert out.getvalue().splitlines()[-1] == "the end"


def test_a_killed_daemon_leaves_a_session_that_status_explains(shell: Shell) -> None:
    """Nothing is shown as running after a death, and status says how to go on."""
    shell.ideator.script = [interrupting]
    shell("start", *TASK)
    status = shell("status", "--json").json()
    assert status["daemon"]["alive"] is False
    assert status["children"] == []
    assert (status["status"], status["daemon"]["pid"]) == ("active", os.getpid())
    assert "daemon     none; 'croq-fsm resume' goes on" in shell("status").out


def test_looking_never_keeps_a_daemon_from_starting(shell: Shell) -> None:
    """A face that looks at the lock in that very instant is not mistaken for another daemon."""
    root = root_of(shell)
    root.prepare()
    RootLock(root, "first").release()
    look = root.lock.open("rb")
    fcntl.flock(look, fcntl.LOCK_SH)
    over = threading.Timer(0.03, look.close)
    over.start()
    RootLock(root, "second").release()
    over.join()
    assert not is_locked(root)


def test_a_stop_at_once_does_not_stop_the_next_daemon(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that a former daemon died of is gone before the first child of this one runs."""
    seen: list[Path] = []
    check = Git.check

    def checking(git: Git) -> None:
        seen.extend(root_of(shell).inbox.iterdir())
        check(git)

    inbox.leave(root_of(shell), "stop-now")
    monkeypatch.setattr(Git, "check", checking)
    shell.ideator.script = rounds(1)
    assert shell("start", *TASK, "--rounds", "1").code == 0
    assert seen == []
    assert shell.sessions()[0].round == 1


def test_a_hint_of_bytes_that_are_no_text_is_left_as_text(shell: Shell) -> None:
    """Half a character is replaced: nothing could write it into the database."""
    assert shell("hint", "try \udcff\udcfe tiles").code == 0
    (path,) = root_of(shell).inbox.iterdir()
    assert json.loads(path.read_text(encoding="utf-8"))["text"] == "try ?? tiles"
