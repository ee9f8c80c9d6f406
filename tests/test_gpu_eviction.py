"""Only the user's own foreign processes on the device are ever ended, and only when allowed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cuda_support import workbench as cuda_workbench

from croq_fsm.config import Config, Contention, Deadlines
from croq_fsm.domain.device import Device
from croq_fsm.errors import Contended
from croq_fsm.gpu import eviction
from croq_fsm.gpu.contention import Neighbours, Occupant
from croq_fsm.toolchain.cuda import CudaWorkbench
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.survivors import RUN_MARKER

UUID = "GPU-evict"


@pytest.fixture
def strangers() -> Iterator[list[psutil.Process]]:
    """Starts processes that are no children of ours, and ends them at the end."""
    started: list[psutil.Process] = []
    yield started
    for process in started:
        if process.is_running():
            process.kill()


def stranger(started: list[psutil.Process], code: str = "", **env: str) -> psutil.Process:
    """A process whose parent is gone, so that it is nobody's child."""
    sleeper = f"{code}\nprint('up', flush=True)\nimport time; time.sleep(600)"
    middle = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE,"
        " stderr=subprocess.DEVNULL,"
        " start_new_session=True)\n"
        "child.stdout.readline()\nprint(child.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", middle, sleeper],
        check=True,
        capture_output=True,
        timeout=30,
        env={**os.environ, **env},
    )
    process = psutil.Process(int(done.stdout))
    started.append(process)
    return process


def smi(folder: Path, *pids: int, memory: int = 500) -> Path:
    """An nvidia-smi that lists those of the processes that live."""
    script = folder / "nvidia-smi"
    script.write_text(
        f"""#!{sys.executable}
import os, sys
if any("memory.used" in a or "utilization" in a for a in sys.argv):
    print("{UUID}, {memory}")
else:
    for pid in {list(pids)}:
        path = f"/proc/{{pid}}/stat"
        if os.path.exists(path) and open(path).read().split()[2] != "Z":
            print(f"{{pid}}, {UUID}, train.py")
""",
        encoding="utf-8",
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def neighbours(folder: Path, *pids: int, memory: int = 500) -> Neighbours:
    """The watch, on real processes and that tool."""
    runner = LocalRunner("evict", NullJournal(), threading.Event(), Deadlines(kill_grace_s=0.2))
    tool = smi(folder, *pids, memory=memory)
    return Neighbours(runner, tool, UUID, cwd=folder, deadline_s=20.0)


def bench(folder: Path, watch: Neighbours, kill: str) -> CudaWorkbench:
    """A workbench whose device is the watched one."""
    made = cuda_workbench(folder)
    made._config = Config(contention=Contention(kill=kill, lease_dir=str(folder)))  # type: ignore[arg-type]
    made.__dict__["_neighbours"] = watch
    made.__dict__["_device"] = Device(key="sm90_test", name="test", uuid=UUID)
    return made


@pytest.fixture
def _all_use_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """No device is here to be opened."""
    default = eviction.end_own_users.__kwdefaults__ or {}
    monkeypatch.setitem(default, "uses_device", lambda _pid: True)


@pytest.mark.usefixtures("_all_use_the_device")
def test_nobody_is_ended_by_default(tmp_path: Path, strangers: list[psutil.Process]) -> None:
    """The measurement is postponed, and the process lives."""
    other = stranger(strangers)
    with pytest.raises(Contended, match=rf"train.py \(pid {other.pid}\)"):
        bench(tmp_path, neighbours(tmp_path, other.pid), "never")._must_be_alone()
    assert other.is_running()


@pytest.mark.usefixtures("_all_use_the_device")
@pytest.mark.parametrize(
    "code", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"]
)
def test_own_processes_are_ended_when_allowed(
    tmp_path: Path, strangers: list[psutil.Process], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Politely first; one that ignores that is killed."""
    monkeypatch.setattr(eviction, "_GRACE_S", 0.5)
    other = stranger(strangers, code)
    bench(tmp_path, neighbours(tmp_path, other.pid), "own-user")._must_be_alone()
    assert not other.is_running() or other.status() == psutil.STATUS_ZOMBIE


def test_who_has_no_device_open_is_another_process(
    tmp_path: Path, strangers: list[psutil.Process]
) -> None:
    """A process id of another namespace may name anybody here."""
    other = stranger(strangers)
    with pytest.raises(Contended):
        bench(tmp_path, neighbours(tmp_path, other.pid), "own-user")._must_be_alone()
    assert other.is_running()


@pytest.mark.usefixtures("_all_use_the_device")
def test_children_of_another_daemon_are_never_ended(
    tmp_path: Path, strangers: list[psutil.Process]
) -> None:
    """They carry the mark of a run, whichever it is."""
    other = stranger(strangers, **{RUN_MARKER: "another-run"})
    with pytest.raises(Contended):
        bench(tmp_path, neighbours(tmp_path, other.pid), "own-user")._must_be_alone()
    assert other.is_running()


@pytest.mark.usefixtures("_all_use_the_device")
def test_the_holder_of_the_lease_is_never_ended(
    tmp_path: Path, strangers: list[psutil.Process]
) -> None:
    """Not even when it computes on the device itself."""
    other = stranger(strangers)
    (tmp_path / f"{UUID}.lock").write_text(f'{{"pid": {other.pid}}}', encoding="utf-8")
    with pytest.raises(Contended):
        bench(tmp_path, neighbours(tmp_path, other.pid), "own-user")._must_be_alone()
    assert other.is_running()


def test_ancestors_and_ourselves_are_never_ended() -> None:
    """However they come to stand in the driver's list."""
    me = psutil.Process()
    listed = [Occupant(p.pid, "shell", visible=True) for p in (me, *me.parents())]
    assert eviction.end_own_users(listed, uses_device=lambda _pid: True) == []


def test_memory_shows_who_is_hidden(tmp_path: Path) -> None:
    """Where the driver names nobody, memory in use does."""
    quiet = bench(tmp_path, neighbours(tmp_path, memory=500), "never")
    quiet._must_be_alone()
    quiet.__dict__["_neighbours"] = neighbours(tmp_path, memory=900)
    with pytest.raises(Contended, match="900 MiB of device memory"):
        quiet._must_be_alone()
    quiet.__dict__["_neighbours"] = neighbours(tmp_path, memory=520)
    quiet._must_be_alone()
