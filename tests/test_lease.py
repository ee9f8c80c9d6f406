"""The device lease: one holder, freed by any death, named to whoever comes second."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from croq_fsm.errors import EnvironmentMissing, LockHeld
from croq_fsm.gpu import lease
from croq_fsm.gpu.lease import DeviceLease, lease_folder

HOLDER = """
import sys, time
from pathlib import Path
from croq_fsm.gpu.lease import DeviceLease
DeviceLease("GPU-1", Path(sys.argv[1]), "other").acquire()
print("held", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def holder(tmp_path: Path) -> object:
    """Another process that holds the device."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_second_process_is_told_the_first(tmp_path: Path, holder: subprocess.Popen[bytes]) -> None:
    """A taken device is refused at once, with pid, host and run of the holder."""
    with pytest.raises(LockHeld, match=rf"GPU-1 is taken by pid {holder.pid} on .* \(run other\)"):
        DeviceLease("GPU-1", tmp_path).acquire()
    with DeviceLease("GPU-2", tmp_path) as other:
        assert other.held


def test_killed_holder_leaves_nothing_stale(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    """After SIGKILL of the holder the device is free."""
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with DeviceLease("GPU-1", tmp_path, "mine") as mine:
        assert mine.holder()["run_id"] == "mine"


def test_release_frees_and_keeps_the_file(tmp_path: Path) -> None:
    """The file stays, so that there can never be two of them."""
    first, second = DeviceLease("GPU-1", tmp_path), DeviceLease("GPU-1", tmp_path)
    first.acquire()
    first.acquire()
    with pytest.raises(LockHeld):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    assert (first.held, second.held, second.path.exists()) == (False, True, True)
    second.release()


def test_children_do_not_inherit_the_lease(tmp_path: Path) -> None:
    """A child that outlives us does not keep the device."""
    mine = DeviceLease("GPU-1", tmp_path)
    mine.acquire()
    child = subprocess.Popen(["sleep", "1000"], close_fds=False)
    try:
        mine.release()
        with DeviceLease("GPU-1", tmp_path) as other:
            assert other.held
    finally:
        child.kill()
        child.wait()


def test_nonsense_in_the_file_is_no_problem(tmp_path: Path) -> None:
    """The content is for people; what cannot be read is not believed."""
    mine = DeviceLease("GPU-1", tmp_path)
    for text in (b"", b"\xff\xfe", b"[]", b"{"):
        mine.path.write_bytes(text)
        assert mine.holder() == {}
    mine.acquire()
    mine.path.write_bytes(b"")
    with pytest.raises(LockHeld, match="another process"):
        DeviceLease("GPU-1", tmp_path).acquire()
    mine.release()


def test_strange_identities_stay_in_the_folder(tmp_path: Path) -> None:
    """An identity cannot be a path."""
    assert DeviceLease("../../x y", tmp_path).path.parent == tmp_path


def test_link_is_not_followed(tmp_path: Path) -> None:
    """A planted link cannot make us lock or overwrite another file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    mine = DeviceLease("GPU-1", tmp_path)
    mine.path.symlink_to(victim)
    with pytest.raises(EnvironmentMissing):
        mine.acquire()
    assert victim.read_text() == "precious"


def test_folder_is_shared_where_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All users meet in one folder, and it is sticky."""
    monkeypatch.setattr(lease, "_SHARED", tmp_path)
    folder = lease_folder()
    assert folder == tmp_path / "croq_fsm"
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert lease_folder() == folder
    monkeypatch.setattr(lease, "_SHARED", tmp_path / "absent")
    assert lease_folder() == Path("/tmp") / f"croq_fsm-{os.getuid()}"  # noqa: S108 - the promise
