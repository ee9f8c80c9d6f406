"""The runner: every child ends in bounded time and takes its whole tree with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from croq_fsm.config import Deadlines
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateHung,
    CandidateRefused,
    DeviceWedged,
    Drained,
    EnvironmentMissing,
)
from croq_fsm.toolchain.child import Child
from croq_fsm.toolchain.process import Command, Completed, Ending, Limits, NullJournal, Role
from croq_fsm.toolchain.runner import LocalRunner, kill_survivors
from croq_fsm.toolchain.survivors import marked

QUICK = Deadlines(kill_grace_s=0.2, reap_s=5.0)
ECHO = """
import os, sys
answers = os.fdopen(3, "w", buffering=1)
for line in sys.stdin:
    print(line.strip(), file=answers)
"""


class Recorder:
    """A journal that remembers the order of what it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.pids: list[int] = []

    def started(self, child_id: str, pid: int, start_time: float, command: Command) -> None:
        """Remember the start; the child must exist now."""
        assert start_time == pytest.approx(psutil.Process(pid).create_time())
        self.events.append(("started", command.label))
        self.pids.append(pid)
        assert child_id

    def ended(self, child_id: str, completed: Completed) -> None:
        """Remember the end."""
        self.events.append(("ended", completed.ending.value))
        assert child_id


@pytest.fixture
def run_id() -> str:
    """A run identity of this test alone."""
    return f"run-{os.urandom(6).hex()}"


@pytest.fixture
def stop() -> threading.Event:
    """The stop request."""
    return threading.Event()


@pytest.fixture
def runner(run_id: str, stop: threading.Event) -> Iterator[LocalRunner]:
    """A runner with short grace; at the end no child of it may live."""
    yield LocalRunner(run_id, NullJournal(), stop, QUICK)
    assert marked("CROQ_RUN_ID", run_id) == []


def python(code: str, cwd: Path, deadline_s: float = 20.0, **more: object) -> Command:
    """A Python child."""
    argv = (sys.executable, "-I", "-S", "-c", textwrap.dedent(code))
    return Command(argv, cwd, deadline_s, "child", **more)  # type: ignore[arg-type]


def shell(script: str, cwd: Path, deadline_s: float = 20.0, **more: object) -> Command:
    """A shell child; the shell is the program under test here, not a way to start one."""
    return Command(("sh", "-c", script), cwd, deadline_s, "child", **more)  # type: ignore[arg-type]


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition comes true within some seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_exit_status_and_output_are_returned(runner: LocalRunner, tmp_path: Path) -> None:
    """A child's status and both streams come back."""
    completed = runner.run(shell("echo out; echo err >&2; exit 3", tmp_path))
    assert (completed.ending, completed.returncode) == (Ending.EXITED, 3)
    assert (completed.stdout, completed.stderr) == ("out\n", "err\n")
    assert not completed.ok


def test_signal_is_reported_as_negative_status(runner: LocalRunner, tmp_path: Path) -> None:
    """Death by a signal is told apart from an exit status."""
    completed = runner.run(shell("kill -SEGV $$", tmp_path))
    assert (completed.ending, completed.returncode) == (Ending.SIGNALLED, -signal.SIGSEGV)


def test_stdin_is_given_or_empty(runner: LocalRunner, tmp_path: Path) -> None:
    """Bytes reach the child even when they exceed the pipe; without bytes stdin is at its end."""
    big = b"x" * 300_000
    assert runner.run(shell("wc -c", tmp_path, stdin=big)).stdout.strip() == "300000"
    assert runner.run(shell("wc -c", tmp_path)).stdout.strip() == "0"


def test_child_that_does_not_read_its_stdin_is_no_problem(
    runner: LocalRunner, tmp_path: Path
) -> None:
    """A broken pipe towards the child is not an error."""
    assert runner.run(shell("exec <&-; exit 0", tmp_path, stdin=b"x" * 300_000)).ok


def test_environment_is_an_allow_list(
    runner: LocalRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str
) -> None:
    """No secret reaches a child; its markers and a private TMPDIR do."""
    monkeypatch.setenv("CANARY_API_KEY", "s3cret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    out = runner.run(shell("env; ls -d $TMPDIR", tmp_path, env={"EXTRA": "1"})).stdout
    assert "s3cret" not in out
    assert {"EXTRA=1", "CUDA_VISIBLE_DEVICES=0", f"CROQ_RUN_ID={run_id}"} <= set(out.split("\n"))
    assert f"TMPDIR={tmp_path}/" in out
    assert list(tmp_path.iterdir()) == []


def test_untrusted_child_gets_no_home_and_no_new_privileges(
    runner: LocalRunner, tmp_path: Path
) -> None:
    """Candidate code has its private folder as home and cannot gain privileges."""
    script = "echo $HOME $TMPDIR; while read line; do echo $line; done < /proc/self/status"
    done = runner.run(shell(script, tmp_path, untrusted=True, role=Role.COMPILE))
    home, tmpdir = done.stdout.splitlines()[0].split()
    assert home == tmpdir
    assert Path(home).parent == tmp_path
    assert {"NoNewPrivs: 1", "CapEff: 0000000000000000"} <= set(done.stdout.splitlines())


@pytest.mark.parametrize("program", ["no-such-program", "./no-such-program", "/etc/hostname"])
def test_program_that_cannot_start_is_an_environment_error(
    runner: LocalRunner, tmp_path: Path, program: str
) -> None:
    """Absent and non-executable programs are told apart from failing ones."""
    with pytest.raises(EnvironmentMissing, match=program.lstrip("./")):
        runner.run(Command((program,), tmp_path, 5.0, "child"))


def test_missing_folder_is_an_environment_error(runner: LocalRunner, tmp_path: Path) -> None:
    """A working folder that is not there is named."""
    with pytest.raises(EnvironmentMissing, match="nowhere"):
        runner.run(shell("true", tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "script",
    [
        "sleep 1000",
        "trap '' TERM; while :; do sleep 1; done",
        "kill -STOP $$",
        "kill -STOP 0",
        "setsid sleep 1000 & sleep 1000",
        "env -i setsid sleep 1000 & sleep 1000",
        "exec >&- 2>&-; sleep 1000",
    ],
)
def test_hanging_child_dies_with_its_tree(runner: LocalRunner, tmp_path: Path, script: str) -> None:
    """Whatever a child does to survive, deadline and grace end it and all below it."""
    before = _sleepers()
    completed = runner.run(shell(script, tmp_path, deadline_s=0.3))
    assert (completed.ending, completed.returncode) == (Ending.DEADLINE, None)
    assert eventually(lambda: _sleepers() <= before)


@pytest.mark.parametrize("prefix", ["", "setsid ", "env -i setsid "])
def test_leftover_that_holds_the_pipe_does_not_delay_the_end(
    runner: LocalRunner, tmp_path: Path, prefix: str
) -> None:
    """After a normal end nobody waits for a grandchild that keeps stdout open, and it is killed."""
    before = _sleepers()
    completed = runner.run(shell(f"{prefix}sleep 1000 & echo done", tmp_path, deadline_s=15.0))
    assert (completed.ending, completed.stdout) == (Ending.EXITED, "done\n")
    assert eventually(lambda: _sleepers() <= before)


def test_fork_bomb_ends(runner: LocalRunner, tmp_path: Path) -> None:
    """Five hundred processes, half of them in their own sessions, all end."""
    bomb = """
    import os, time
    for i in range(500):
        if os.fork() == 0:
            if i % 2:
                os.setsid()
            time.sleep(1000)
    print("armed", flush=True)
    time.sleep(1000)
    """
    assert runner.run(python(bomb, tmp_path, deadline_s=1.5)).stdout == "armed\n"


@pytest.mark.parametrize("prefix", [(), ("env", "-i")])
def test_process_that_only_forks_and_exits_is_caught(
    runner: LocalRunner, tmp_path: Path, prefix: tuple[str, ...]
) -> None:
    """A chain of processes, each alive for a moment and in its own session, has an end."""
    chain = """
    import os, time
    if os.fork():
        while not os.path.exists("chain"):
            time.sleep(0.01)
        os._exit(0)
    until = time.time() + 30
    while time.time() < until:
        if os.fork():
            os._exit(0)
        os.setsid()
        open("chain", "w").write(str(os.getpid()))
    """
    plain = python(chain, tmp_path)
    command = Command((*prefix, *plain.argv), tmp_path, 10.0, "chain")
    runner.run(command)
    last = (tmp_path / "chain").read_text()
    time.sleep(0.2)
    assert (tmp_path / "chain").read_text() == last


def test_flood_is_cut_and_killed(runner: LocalRunner, tmp_path: Path) -> None:
    """Endless output is capped in memory and ends the child."""
    completed = runner.run(shell("yes", tmp_path, output_cap=1000, flood_cap=100_000))
    assert completed.ending is Ending.FLOODED
    assert (len(completed.stdout), completed.truncated) == (1000, True)


def test_huge_single_line_is_no_problem(runner: LocalRunner, tmp_path: Path) -> None:
    """A line without end costs no more than the cap."""
    code = "import sys; sys.stdout.write('x' * 5_000_000)"
    completed = runner.run(python(code, tmp_path, output_cap=4096))
    assert (completed.ok, len(completed.stdout), completed.truncated) == (True, 4096, True)


def test_undecodable_output_is_replaced(runner: LocalRunner, tmp_path: Path) -> None:
    """Bytes that are no UTF-8 do not raise."""
    assert runner.run(shell(r"printf 'a\377b'", tmp_path)).stdout == "a\ufffdb"


def test_limits_are_laid_on_the_child(runner: LocalRunner, tmp_path: Path) -> None:
    """CPU time, file size and address space are bounded by the system."""
    spin = runner.run(python("while True: pass", tmp_path, limits=Limits(cpu_s=1)))
    assert spin.returncode == -signal.SIGXCPU
    write = "dd if=/dev/zero of=big bs=1M count=8 2>/dev/null"
    assert not runner.run(shell(write, tmp_path, limits=Limits(file_bytes=1 << 20))).ok
    assert (tmp_path / "big").stat().st_size <= 1 << 20
    hog = python("bytearray(1 << 30)", tmp_path, limits=Limits(memory_bytes=256 << 20))
    assert "MemoryError" in runner.run(hog).stderr


def test_stop_ends_the_child_and_raises(
    runner: LocalRunner, tmp_path: Path, stop: threading.Event
) -> None:
    """A stop request does not wait for the deadline."""
    threading.Timer(0.3, stop.set).start()
    with pytest.raises(Drained):
        runner.run(shell("sleep 1000", tmp_path, deadline_s=1000))
    with pytest.raises(Drained, match="before"):
        runner.run(shell("true", tmp_path))


def test_tick_is_served_while_waiting(run_id: str, tmp_path: Path) -> None:
    """The watchdog is fed during a run and while a stubborn child is being killed."""
    ticks: list[float] = []
    runner = LocalRunner(
        run_id, NullJournal(), threading.Event(), QUICK, lambda: ticks.append(time.monotonic())
    )
    runner.run(shell("trap '' TERM; while :; do sleep 1; done", tmp_path, deadline_s=0.5))
    assert len(ticks) > 8


def test_failing_tick_leaves_no_child(run_id: str, tmp_path: Path) -> None:
    """Even an error of our own does not orphan a child."""
    calls = iter([None] * 3)

    def tick() -> None:
        if next(calls, "over") == "over" and not raised:
            raised.append(True)
            raise RuntimeError("watchdog")

    raised: list[bool] = []
    runner = LocalRunner(run_id, NullJournal(), threading.Event(), QUICK, tick)
    with pytest.raises(RuntimeError, match="watchdog"):
        runner.run(shell("sleep 1000", tmp_path))
    assert marked("CROQ_RUN_ID", run_id) == []


def test_journal_hears_of_start_before_end(tmp_path: Path) -> None:
    """Each child is journalled at its start and at its end, failed starts included."""
    journal = Recorder()
    runner = LocalRunner("run-x", journal, threading.Event(), QUICK)
    runner.run(shell("true", tmp_path))
    with pytest.raises(EnvironmentMissing):
        runner.run(Command(("./absent",), tmp_path, 5.0, "absent"))
    talk = runner.converse(python(ECHO, tmp_path))
    talk.close()
    assert [kind for kind, _ in journal.events] == ["started", "ended"] * 3


# The process object of a child that nobody can reap is dropped without its status.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_unreapable_child_is_a_wedged_device(
    run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that SIGKILL does not end is reported within its bound, and ticks go on."""
    ticks: list[int] = []
    deadlines = Deadlines(kill_grace_s=0.1, reap_s=0.4)
    runner = LocalRunner(
        run_id, NullJournal(), threading.Event(), deadlines, lambda: ticks.append(1)
    )
    with monkeypatch.context() as patch:
        patch.setattr(Child, "ended", property(lambda _: False))
        with pytest.raises(DeviceWedged, match="driver"):
            runner.run(shell("true", tmp_path, deadline_s=0.2))
    assert ticks
    assert marked("CROQ_RUN_ID", run_id) == []


def test_children_die_with_a_killed_daemon(tmp_path: Path, run_id: str) -> None:
    """SIGKILL of the starter ends child and hidden grandchild without any help."""
    daemon = f"""
    import threading
    from pathlib import Path
    from croq_fsm.config import Deadlines
    from croq_fsm.toolchain.process import Command, NullJournal
    from croq_fsm.toolchain.runner import LocalRunner
    runner = LocalRunner("{run_id}", NullJournal(), threading.Event(), Deadlines())
    script = "env -i setsid sleep 4711 & echo up > up; sleep 4712"
    runner.run(Command(("sh", "-c", script), Path("{tmp_path}"), 1000, "child"))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(daemon)])
    try:
        assert eventually((tmp_path / "up").exists)
    finally:
        process.kill()
        process.wait()
    assert eventually(lambda: marked("CROQ_RUN_ID", run_id) == [])
    assert eventually(lambda: not {"4711", "4712"} & _sleepers())


def test_thread_that_started_a_child_may_end(runner: LocalRunner, tmp_path: Path) -> None:
    """The end of the starting thread is not taken for the daemon's death."""
    talks: list[object] = []
    thread = threading.Thread(target=lambda: talks.append(runner.converse(python(ECHO, tmp_path))))
    thread.start()
    thread.join()
    talk = talks[0]
    assert talk.ask({"a": 1}, 10.0) == {"a": 1}  # type: ignore[attr-defined]
    talk.close()  # type: ignore[attr-defined]


def test_survivors_of_a_former_run_are_ended(tmp_path: Path, run_id: str) -> None:
    """Only processes with the run's marker are killed, wherever they hide."""
    env = {"PATH": os.environ["PATH"], "CROQ_RUN_ID": run_id}
    ours = subprocess.Popen(["sleep", "1000"], env=env, start_new_session=True, cwd=tmp_path)
    other = subprocess.Popen(["sleep", "1000"], env=env | {"CROQ_RUN_ID": f"{run_id}0"})
    try:
        threading.Thread(target=ours.wait).start()
        assert kill_survivors(run_id, 10.0) == [ours.pid]
        assert other.poll() is None
        assert kill_survivors(run_id, 10.0) == []
    finally:
        other.kill()
        other.wait()


def test_conversation_answers_each_request(runner: LocalRunner, tmp_path: Path) -> None:
    """Requests go in order to stdin, answers come from descriptor 3."""
    talk = runner.converse(python(ECHO, tmp_path))
    assert [talk.ask({"n": n}, 10.0)["n"] for n in range(5)] == list(range(5))
    talk.close()
    talk.close()
    with pytest.raises(CandidateCrashed, match="ended already"):
        talk.ask({}, 1.0)


@pytest.mark.parametrize(
    ("body", "error", "match"),
    [
        ("os.kill(os.getpid(), 11)", CandidateCrashed, "SIGSEGV"),
        ("print('last words'); sys.exit(7)", CandidateCrashed, "status 7; last output: last words"),
        ("time.sleep(1000)", CandidateHung, "no answer in time"),
        ("os.kill(0, signal.SIGSTOP)", CandidateHung, "no answer in time"),
        ("os.write(3, b'nonsense\\n')", CandidateRefused, "no JSON"),
        ("os.write(3, b'[1]\\n')", CandidateRefused, "no JSON object"),
        ("os.write(3, b'{\"ns\": NaN}\\n')", CandidateRefused, "no JSON"),
        ("os.write(3, b'[' * 100000 + b'\\n')", CandidateRefused, "no JSON"),
        ("while True: os.write(3, b'x' * 65536)", CandidateRefused, "flooded"),
        ("while True: os.write(1, b'x' * 65536)", CandidateRefused, "flooded"),
    ],
)
def test_bad_answer_is_a_typed_error(
    runner: LocalRunner, tmp_path: Path, body: str, error: type[Exception], match: str
) -> None:
    """Crash, hang, nonsense and floods each have their own error, and leave nothing behind."""
    code = f"import os, sys, time, signal\nsys.stdin.readline()\n{body}"
    talk = runner.converse(python(code, tmp_path, flood_cap=1 << 20))
    with pytest.raises(error, match=match):
        talk.ask({"cmd": "x"}, 0.5)


def test_answer_before_the_request_is_refused(runner: LocalRunner, tmp_path: Path) -> None:
    """A second answer that lies ready for the next request is a forgery."""
    code = "import os, sys\nsys.stdin.readline()\nos.write(3, b'{}\\n{}\\n')\nsys.stdin.readline()"
    talk = runner.converse(python(code, tmp_path))
    assert talk.ask({}, 10.0) == {}
    with pytest.raises(CandidateRefused, match="without being asked"):
        talk.ask({}, 10.0)


def test_life_of_a_conversation_is_bounded(runner: LocalRunner, tmp_path: Path) -> None:
    """The command's deadline ends even a child that answers well."""
    talk = runner.converse(python("import time; time.sleep(1000)", tmp_path, deadline_s=0.3))
    with pytest.raises(CandidateHung):
        talk.ask({}, 1000.0)


def test_stop_ends_a_conversation(
    runner: LocalRunner, tmp_path: Path, stop: threading.Event
) -> None:
    """A stop request interrupts the wait for an answer."""
    talk = runner.converse(python("import time; time.sleep(1000)", tmp_path))
    stop.set()
    with pytest.raises(Drained):
        talk.ask({}, 1000.0)


def test_conversation_with_an_absent_program(runner: LocalRunner, tmp_path: Path) -> None:
    """A program that cannot start is the environment's fault, not the candidate's."""
    talk = runner.converse(Command(("./absent",), tmp_path, 5.0, "child"))
    with pytest.raises(EnvironmentMissing, match="absent"):
        talk.ask({}, 5.0)


def test_descriptors_stay_flat_over_many_children(runner: LocalRunner, tmp_path: Path) -> None:
    """Failing and succeeding children leak no descriptor."""
    runner.run(shell("true", tmp_path))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(10):
        runner.run(shell("exit 1", tmp_path))
        talk = runner.converse(python("import sys; sys.exit(1)", tmp_path))
        with pytest.raises(CandidateCrashed):
            talk.ask({}, 10.0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def _sleepers() -> set[str]:
    """Arguments of all ``sleep`` processes on this machine that tests could have started."""
    found = set()
    for process in psutil.process_iter(["name", "cmdline", "status"]):
        info = process.info
        if info["name"] == "sleep" and info["status"] != psutil.STATUS_ZOMBIE and info["cmdline"]:
            found.add(info["cmdline"][-1])
    return found
