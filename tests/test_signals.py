"""Signals, the log, and the protocol of service managers, on real processes and sockets."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from croq_fsm import errors, notify
from croq_fsm.clock import Stillness, SystemClock
from croq_fsm.logfile import LogFile
from croq_fsm.notify import Heartbeat, Notifier
from croq_fsm.signals import Wanted, handled
from support.stage import TASK, TOP, Stage, fork, waited

UNIT = TOP / "config" / "croq-fsm.service"


def _said(stage: Stage, word: str) -> None:
    """Wait until the log has a word; the time-out of the test ends it otherwise."""
    while word not in stage.log.read_text():
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(number: signal.Signals) -> None:
    """The first is taken note of, the second kills by its own number, whatever else hangs."""

    def hang() -> int:
        stop = threading.Event()
        with handled(stop, Wanted()):
            os.kill(os.getpid(), number)
            while not stop.is_set():
                time.sleep(0.01)
            os.kill(os.getpid(), number)
            time.sleep(60)
        return 0

    assert waited(fork(hang)) == -number


def test_former_handlers_come_back() -> None:
    """After the daemon, signals mean what they meant before."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    before = [signal.getsignal(n) for n in numbers]
    with handled(threading.Event(), Wanted()):
        assert [signal.getsignal(n) for n in numbers] != before
    assert [signal.getsignal(n) for n in numbers] == before


def test_hangup_and_usr1_are_answered_in_the_log(tmp_path: Path) -> None:
    """USR1: where it stands, and the stacks. HUP after a rename: the log goes on in a new file."""
    stage = Stage(tmp_path / "s")
    stage.log = stage.root.log
    stage.root.prepare()
    stage.log.touch()
    pid = fork(stage.work("start", *TASK, "--rounds", "1000", "--log-json"))
    _said(stage, '"outcome": "stored"')
    os.kill(pid, signal.SIGUSR1)
    _said(stage, "told")
    _said(stage, "most recent call first")
    assert "step" in next(json.loads(x)["told"] for x in stage.log.read_text().splitlines()
                          if '"told"' in x)  # fmt: skip
    stage.log.rename(tmp_path / "old.log")
    os.kill(pid, signal.SIGHUP)
    while not stage.log.exists():
        time.sleep(0.01)
    _said(stage, "log reopened")
    os.kill(pid, signal.SIGTERM)
    assert waited(pid) == 0
    assert "log reopened" not in (tmp_path / "old.log").read_text()


def test_the_log_is_set_aside_when_it_is_large(tmp_path: Path) -> None:
    """It is renamed, goes on in a new file, and never takes more than about twice the bound."""
    path = tmp_path / "daemon.log"

    def write() -> int:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        log = LogFile(path, 1000)
        for n in range(100):
            os.write(2, f"{n:049d}\n".encode())
            log.keep_small()
        return 0

    assert waited(fork(write)) == 0
    old = path.with_name("daemon.log.1")
    assert path.stat().st_size + old.stat().st_size <= 2 * 1000
    assert path.read_text().splitlines() or old.read_text().splitlines()[-1].endswith("99")


def test_a_log_that_is_not_ours_stays(tmp_path: Path) -> None:
    """A terminal or another file behind standard error is never moved."""
    path = tmp_path / "daemon.log"
    path.write_text("x" * 100)
    assert not LogFile(path, 10).keep_small()
    assert not path.with_name("daemon.log.1").exists()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """A service manager's socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "notify"))
        server.settimeout(30)
        yield server


def test_a_daemon_tells_its_manager(tmp_path: Path, manager: socket.socket) -> None:
    """READY once it is, STATUS with each transition, pings, STOPPING first of all at the end."""
    stage = Stage(tmp_path / "s")

    def night() -> int:
        os.environ["NOTIFY_SOCKET"] = manager.getsockname()
        os.environ["WATCHDOG_USEC"] = "100000"
        code = stage.work("start", *TASK, "--rounds", "2")()
        return code or int("NOTIFY_SOCKET" in os.environ or "WATCHDOG_USEC" in os.environ)

    pid = fork(night)
    messages: list[str] = []
    while "STOPPING=1" not in messages:
        messages.append(manager.recv(4096).decode())
    assert waited(pid) == 0, stage.log.read_text()
    ready = next(i for i, m in enumerate(messages) if m.startswith("READY=1\n"))
    assert f"MAINPID={pid}" in messages[ready]
    states = [m for m in messages if m.startswith("STATUS=session")]
    assert messages.index(states[0]) > ready
    assert any("MEASURE of round 1" in m for m in states)
    assert "DONE" in states[-1]
    assert "WATCHDOG=1" in messages


class _Time:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The present second."""
        return self.now


def _pings(manager: socket.socket) -> int:
    """How many pings have come."""
    manager.setblocking(False)
    count = 0
    while True:
        try:
            count += manager.recv(100) == b"WATCHDOG=1"
        except BlockingIOError:
            return count


def test_the_watchdog_is_fed_with_progress_only(manager: socket.socket) -> None:
    """Ticks alone keep it alive for as long as one child may take, and not a second longer."""
    clock = _Time()
    heart = Heartbeat(Notifier(manager.getsockname(), 10.0), patience_s=60.0, now=clock)
    counts = []
    for _ in range(1200):
        clock.now += 0.1
        heart.tick()
        counts.append(_pings(manager))
    assert sum(counts[:600]) == 12
    assert sum(counts[600:]) == 0, "a daemon without progress must be found dead"
    heart.progress()
    assert _pings(manager) == 1


def test_the_manager_is_found_in_the_environment() -> None:
    """Abstract and plain names; a watchdog that is meant for another process is not ours."""
    variables = {"NOTIFY_SOCKET": "@a", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1", "X": "y"}
    assert notify.from_environment(variables) == Notifier("@a", None)
    assert variables == {"X": "y"}
    mine = {"NOTIFY_SOCKET": "/a", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    assert notify.from_environment(mine) == Notifier("/a", 3.0)
    assert notify.from_environment({}) == Notifier()


def test_an_abstract_socket_is_reached_and_a_dead_one_harms_nobody() -> None:
    """A name with @ is one with a NUL; a manager that is gone costs a warning and no night."""
    name = f"croq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"\0{name}")
        Notifier(f"@{name}").status("two\nlines")
        assert server.recv(100) == b"STATUS=two lines"
    Notifier(f"@{name}").stopping()


def test_the_unit_restarts_what_a_restart_can_mend() -> None:
    """Every exit code but 1 is permanent; the unit is notified, watched and killed as it must."""
    unit = UNIT.read_text(encoding="utf-8")
    listed = re.search(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert listed is not None
    permanent = {
        kind.exit_code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.CroqError)
    } - {0, 1}
    assert {int(code) for code in listed[1].split()} == permanent
    for line in ("Type=notify", "KillMode=mixed", "Restart=on-failure", "WatchdogSec=120"):
        assert f"\n{line}\n" in unit


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Systemd's own check has nothing to say about it."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    text = re.sub(r"^(ExecStart)=\S+", r"\1=/bin/true", UNIT.read_text(), flags=re.MULTILINE)
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("%h/kernels", "/"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stopped_process_knows_that_it_stood_still() -> None:
    """SIGSTOP for longer than the gap that counts is noticed, an ordinary wait is not."""
    ours, theirs = os.pipe()

    def run() -> int:
        still = Stillness(longest_s=0.4)
        with still.watched():
            time.sleep(0.8)
            if still.stood_still_s():
                return 1
            os.write(theirs, b"x")
            time.sleep(1.5)
            return 0 if still.stood_still_s() >= 0.4 else 2

    pid = fork(run)
    os.read(ours, 1)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.0)
    os.kill(pid, signal.SIGCONT)
    assert waited(pid) == 0


def test_nobody_can_set_the_clock_of_a_night() -> None:
    """Wall time that is set back or forth changes nothing but a warning, once for each jump."""
    wall, boot = _Time(), _Time()
    wall.now = 1e9
    clock = SystemClock(wall, boot)
    assert clock.now() == 1e9
    for jump in (-86400.0, 7 * 86400.0):
        wall.now += jump
        boot.now += 10.0
        wall.now += 10.0
        assert clock.now() == 1e9 + boot.now
        assert clock.jumped() is not None
        assert clock.jumped() is None
    wall.now -= 6 * 86400.0
    assert clock.jumped() == pytest.approx(0.0)
