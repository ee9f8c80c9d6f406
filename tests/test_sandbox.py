"""The sandbox: what each role may do, on this kernel and on older ones, and what a level means."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_support import (
    TOP,
    local_runner,
    needs_landlock,
    python_in,
    worked_on_kernel,
)

from croq_fsm.config import Config, Sandbox
from croq_fsm.errors import EnvironmentMissing, SandboxTooWeak
from croq_fsm.sandbox import attempts, landlock, policy, probe, quota, seccomp, syscalls
from croq_fsm.sandbox.levels import Level
from croq_fsm.sandbox.policy import Policy
from croq_fsm.toolchain.process import Command, Ending, Role

_FILES = set(probe._STOPPED_BY[Level.FULL])
_OTHERS = set(probe._STOPPED_BY[Level.NO_NETWORK]) - {"starts_programs", "reaches_socket_file"}

needs_files = pytest.mark.skipif(bool(needs_landlock()), reason=needs_landlock() or "-")


@pytest.mark.parametrize("use", list(Level))
def test_each_level_is_reached_when_it_is_asked_for(tmp_path: Path, use: Level) -> None:
    """The probe finds exactly what was laid on; weaker levels leave more open."""
    if use is Level.FULL and needs_landlock():
        pytest.skip(needs_landlock())
    report = probe.probe(local_runner(use), use, tmp_path, 30.0, device=False)
    assert report.level is use
    gaps = set(report.open["run"])
    assert gaps == {
        n for level, names in probe._STOPPED_BY.items() if level > use for n in names
    } - (
        # A process of root without root's capabilities cannot look into one that has them.
        {"opens_raw_socket", "reads_environment_of_starter"} - gaps
    )


@needs_files
def test_programs_on_devices_are_confined_as_well(tmp_path: Path) -> None:
    """The wider rights of CUDA programs and profilers open none of the tried ways."""
    report = probe.probe(local_runner(), Level.FULL, tmp_path, 30.0, device=True)
    assert report.open == {
        "compile": (),
        "run": (),
        "run on a device": (),
        "profile on a device": (),
    }


def test_nothing_is_left_of_a_probe(tmp_path: Path) -> None:
    """The folders that a probe makes are gone afterwards."""
    probe.probe(local_runner(), Level.FULL, tmp_path, 30.0, device=False)
    assert list(tmp_path.iterdir()) == []


@needs_files
@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5])
def test_older_landlock_leaves_no_way_open(tmp_path: Path, abi: int) -> None:
    """What an older ABI does not know is stopped by the filter of system calls instead."""
    worked = worked_on_kernel(tmp_path, Role.COMPILE, abi=abi)
    assert worked == {"starts_programs"}


def test_a_kernel_without_landlock_keeps_everybody_off_the_network(tmp_path: Path) -> None:
    """Files are open there, and nothing else is."""
    worked = worked_on_kernel(tmp_path, Role.RUN, abi=0)
    assert not worked & (_OTHERS | {"gains_privileges", "starts_programs"})
    assert worked == _FILES


@needs_files
def test_a_kernel_without_filters_still_guards_files(tmp_path: Path) -> None:
    """Landlock alone keeps files, TCP, names of sockets and other processes out of reach."""
    worked = worked_on_kernel(tmp_path, Role.RUN, seccomp=True)
    assert not worked & _FILES
    assert not worked & {"connects", "reaches_abstract_socket", "gains_privileges"}


@needs_files
def test_profilers_without_namespaces_reach_no_network(tmp_path: Path) -> None:
    """Where namespaces are not permitted, Landlock and the filter have to do."""
    worked = worked_on_kernel(tmp_path, Role.PROFILE, device=True, namespaces=True)
    assert worked == {"starts_programs"}


@needs_files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_other_users_reach_the_same(tmp_path: Path) -> None:
    """No right of root's is needed for the strongest level."""
    top = tmp_path
    while top != top.parent and not top.stat().st_mode & 0o001:
        top.chmod(0o711)
        top = top.parent
    home = tmp_path / "home"
    home.mkdir()
    nobody = pwd.getpwnam("nobody")
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    # A Python that others may run; that of the tests may lie in a private folder.
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("no Python of the system")
    code = _AS_ANOTHER_USER.format(uid=nobody.pw_uid, gid=nobody.pw_gid, top=str(TOP))
    done = subprocess.run(
        [str(python), "-c", code, str(home)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "No module named" in done.stderr or "SyntaxError" in done.stderr:
        pytest.skip("the Python of the system is too old")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


_AS_ANOTHER_USER = """
import json, os, sys
sys.path.insert(0, {top!r})
from croq_fsm.sandbox import attempts, confine, landlock, seccomp, namespaces, capabilities
home = sys.argv[1]
os.makedirs(home + "/outside")
open(home + "/outside/canary", "w").close()
open(home + "/outside/doomed", "w").close()
os.makedirs(home + "/own")
os.chown(home + "/own", {uid}, {gid})
os.chown(home + "/outside", {uid}, {gid})
os.chown(home + "/outside/canary", {uid}, {gid})
os.chdir(home + "/own")
starter = os.getpid()
pid = os.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os.setgroups([])
os.setresgid({gid}, {gid}, {gid})
os.setresuid({uid}, {uid}, {uid})
confine.confine(dict(separate=True, covers=[], keep_admin=False, calls=True, sockets="none",
    fork=False, share=False, attributes=False, watches=True,
    files=[("/usr", "exec"), ("/lib", "exec"), (home + "/own", "own"), ("/proc/self", "change")]))
sys.argv = ["x", json.dumps(dict(outside=home + "/outside", starter=starter, port=1, name="x",
    path="/x"))]
attempts.main()
"""


def test_too_weak_a_sandbox_ends_with_its_own_code(tmp_path: Path) -> None:
    """On a kernel without Landlock a demanded full sandbox ends the start with exit code 9."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "croq_fsm.toml").write_text('[sandbox]\ndemand = "full"\n', encoding="utf-8")
    without = _without_landlock_calls()
    arguments = ["-m", "croq_fsm", "start", "c", "f32", "64x64x64", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-c", without, *arguments, "--root", str(tmp_path)],
        cwd=TOP,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == SandboxTooWeak.exit_code == 9, done.stderr
    assert 'sandbox.demand = "no-network"' in " ".join(done.stderr.split())


def _without_landlock_calls() -> str:
    """A program that makes the kernel forget Landlock and becomes another program."""
    return """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, ctypes.c_ulong(1), 0, 0, 0)
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x00050000 | 38), (0x06, 0, 0, 0x7FFF0000)]
packed = b"".join(struct.pack("=HBBI", *each) for each in code)
buffer = ctypes.create_string_buffer(packed, len(packed))
program = struct.pack("@HP", len(code), ctypes.addressof(buffer))
assert libc.prctl(22, ctypes.c_ulong(2), program, ctypes.c_ulong(0), ctypes.c_ulong(0)) == 0
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_the_demand_names_the_way_out() -> None:
    """The message tells the level, what is open, how to get more, and how to do with less."""
    report = probe.Report(Level.LIMITS, {"run": ("connects",)}, 0, Level.FULL)
    assert probe.demand(report, Level.LIMITS) is Level.LIMITS
    with pytest.raises(SandboxTooWeak) as told:
        probe.demand(report, Level.FULL)
    for part in ("limits (no Landlock)", "connects", "kernel 5.13", 'sandbox.demand = "limits"'):
        assert part in str(told.value)


def test_what_is_demanded_must_be_allowed() -> None:
    """A configuration that forbids what it demands is refused at once."""
    with pytest.raises(ValueError, match="above what use"):
        Sandbox(use="limits", demand="full")


@needs_files
def test_a_child_is_not_started_when_its_jail_fails(tmp_path: Path) -> None:
    """A restriction that the kernel has and refuses is an error, and nothing runs without it."""
    runner = local_runner()
    jail = Policy().jail

    def broken(command: Command, tmp: Path) -> dict[str, object] | None:
        made = jail(command, tmp)
        assert made is not None
        return made | {"files": [(str(tmp_path), "no-such-grant")]}

    runner.policy = _Broken(broken)  # type: ignore[assignment]
    touch = Command(("touch", "ran"), tmp_path, 20.0, "x", untrusted=True)
    with pytest.raises(EnvironmentMissing, match="cannot start x"):
        runner.run(touch)
    assert not (tmp_path / "ran").exists()


class _Broken:
    """A policy whose jail cannot be laid."""

    def __init__(self, jail: object) -> None:
        self.jail = jail

    def processes(self, _command: Command) -> None:
        """No count."""


def test_no_descriptor_is_inherited(tmp_path: Path) -> None:
    """An untrusted child holds its three streams and nothing else, whatever we leave open."""
    secret = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(secret, True)
    try:
        code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
        done = python_in(tmp_path, code, Role.RUN)
    finally:
        os.close(secret)
    # The third is the open list itself.
    assert done.stdout.strip() == "[0, 1, 2, 3]"


def test_a_fork_bomb_is_ended_and_named(tmp_path: Path) -> None:
    """Five hundred processes are not reached, root or not, and the breach is told."""
    code = (
        "import os, time\n"
        "for _ in range(500):\n"
        "    if os.fork() == 0: time.sleep(60)\n"
        "time.sleep(60)"
    )
    done = python_in(tmp_path, code, Role.COMPILE)
    assert (done.ending, done.returncode) == (Ending.SIGNALLED, -9)
    assert done.breach == "more than 128 processes at a time"
    assert "stopped by the sandbox: more than 128 processes" in done.output


def test_a_program_with_a_candidate_starts_none(tmp_path: Path) -> None:
    """Not by any call that makes processes; threads are still possible."""
    code = (
        "import os, threading\n"
        "try: os.fork()\n"
        "except BlockingIOError: print('no fork')\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()"
    )
    done = python_in(tmp_path, code, Role.RUN)
    assert done.stdout.split("\n")[:2] == ["no fork", "thread"]


def test_a_child_that_fills_the_disk_is_ended(tmp_path: Path) -> None:
    """Many files together are bounded, which no limit of the system does."""
    code = (
        "import time\n"
        "while True:\n"
        "    with open(str(time.time_ns()), 'wb') as file: file.write(b'x' * (1 << 20))"
    )
    done = python_in(tmp_path, code, Role.RUN, disk_cap=32 << 20)
    assert done.ending is Ending.FLOODED
    assert done.breach == "more than 32 MiB in its folder"


def test_usage_follows_no_link(tmp_path: Path) -> None:
    """A link to a large folder counts as a link."""
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "file").write_bytes(b"x" * (1 << 20))
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "link").symlink_to(tmp_path / "large")
    used, files = quota.usage(tmp_path / "small")
    assert used < 1 << 16
    assert files == 1


@needs_files
def test_a_file_mode_outside_cannot_be_changed(tmp_path: Path) -> None:
    """No right of Landlock's covers modes; the filter does, for programs with a candidate."""
    outside, own = tmp_path / "outside", tmp_path / "own"
    outside.touch(mode=0o600)
    own.mkdir()
    done = python_in(own, f"import os; os.chmod({str(outside)!r}, 0o666)", Role.RUN)
    assert "PermissionError" in done.stderr
    assert outside.stat().st_mode & 0o777 == 0o600


def test_homes_are_no_toolchains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A toolchain named carelessly does not open the home, nor a folder above it."""
    home = tmp_path / "home" / "me"
    (home / "cuda").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for name in ("CUDA_HOME", "CHOREO_HOME", "CUTE_HOME"):
        monkeypatch.delenv(name, raising=False)
    before = set(Policy.of(Config()).tools)
    for careless in (home, home.parent, Path("/")):
        monkeypatch.setenv("CUDA_HOME", str(careless))
        assert set(Policy.of(Config()).tools) == before
    monkeypatch.setenv("CUDA_HOME", str(home / "cuda"))
    assert set(Policy.of(Config()).tools) == before | {home / "cuda"}


def test_covers_spare_what_is_needed(tmp_path: Path) -> None:
    """A folder that holds something of the child's stays in sight; others are covered."""
    monkeyed = policy._covers([Path("/run/x/root/work"), tmp_path])
    assert "/run" not in monkeyed
    assert "/dev/shm" in monkeyed or not Path("/dev/shm").is_dir()  # noqa: S108 - a name only


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
@pytest.mark.parametrize("sockets", ["none", "listen", "unix", "all"])
@pytest.mark.parametrize("strict", [False, True])
def test_filters_jump_inside_themselves(machine: str, sockets: str, *, strict: bool) -> None:
    """Each jump of each filter lands on an instruction, and the last one is a verdict."""
    loose = dict.fromkeys(("fork", "share", "attributes", "signals", "truncate"), not strict)
    code = seccomp.build(machine, {"sockets": sockets, **loose}, 4711)
    assert 0 < len(code) < 4096
    for place, (kind, yes, no, _) in enumerate(code):
        if kind & 0x07 == 0x05:
            assert place + 1 + max(yes, no) < len(code)
    assert code[-1][0] == 0x06


def test_an_unknown_machine_has_no_filter() -> None:
    """Numbers of another machine would refuse the wrong calls; there is none then."""
    assert seccomp.build("pdp11", {"sockets": "none"}, 1) == []


def test_call_numbers_are_those_of_this_machine() -> None:
    """Where headers of the kernel are here, every number agrees with them."""
    known = syscalls.table(os.uname().machine)
    headers = list(Path("/usr/include").glob("*/asm/unistd_64.h"))
    if known is None or os.uname().machine != "x86_64" or not headers:
        pytest.skip("no headers of the kernel")
    lines = headers[0].read_text(encoding="ascii").splitlines()
    defined = {
        parts[1].removeprefix("__NR_"): int(parts[2])
        for line in lines
        if len(parts := line.split()) == 3 and parts[1].startswith("__NR_")
    }
    wrong = {n: v for n, v in known[1].items() if n in defined and defined[n] != v}
    assert wrong == {}
    assert len(set(known[1]) & set(defined)) > 60


def test_every_attempt_belongs_to_a_level() -> None:
    """No attempt is made whose success would lower nothing."""
    levelled = {name for names in probe._STOPPED_BY.values() for name in names}
    assert {attempt.__name__ for attempt in attempts.ATTEMPTS} == levelled


def test_landlock_says_its_version() -> None:
    """The version is the kernel's own answer."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert landlock.abi() == max(0, libc.syscall(444, None, ctypes.c_size_t(0), 1))


@needs_files
def test_profiled_programs_see_no_shared_memory_of_others(tmp_path: Path) -> None:
    """Where namespaces are permitted, shared memory and settings of the system are apart."""
    if subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode:
        pytest.skip("namespaces are not permitted here")
    shared = Path("/dev/shm") / f"croq-test-{os.urandom(6).hex()}"  # noqa: S108 - what is tested
    shared.write_text("of somebody else", encoding="ascii")
    setting = "/proc/sys/kernel/core_pattern"
    code = f"import os; print(os.listdir('/dev/shm'), os.access({setting!r}, os.W_OK))"
    try:
        done = python_in(tmp_path, code, Role.PROFILE, device=True)
    finally:
        shared.unlink()
    assert done.output.strip() == "[] False"
