"""Hostile kernels get nothing, are recorded as what they are, and the session goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import hostile
import pytest
from croqtile_support import need_nvcc
from sandbox_support import local_runner, needs_landlock

from croq_fsm.config import Config
from croq_fsm.sandbox.levels import Level
from croq_fsm.sandbox.policy import Policy
from croq_fsm.toolchain.croqtile_tools import find_tools
from croq_fsm.toolchain.process import Command, Completed, Ending, Role

pytestmark = pytest.mark.skipif(bool(needs_landlock()), reason=needs_landlock() or "-")

_ATTACKS = tuple(hostile.attacks(Path("/root-of-a-session")))
#: Would do harm where nothing holds them.
_HARMFUL = {"parent", "forks", "harness"}
_NOTHING = "attack got nothing"


def _attack(path: Path, name: str, use: Level) -> Completed:
    """Run one attack as a program with a candidate would be run."""
    root = hostile.plant(path)
    (root / ".croq_fsm" / "cache").mkdir(parents=True)
    for file in (root / ".croq_fsm" / "croq.sqlite3", root / "croq_fsm.toml"):
        file.touch()
    own = path / "own"
    own.mkdir()
    source = hostile.early(hostile.attacks(root)[name]) + "int main(void) { return 0; }\n"
    (path / "attack.c").write_text(source, encoding="utf-8")
    subprocess.run(["cc", "-w", "attack.c", "-o", "attack"], cwd=path, check=True)
    command = Command((str(path / "attack"),), own, 20.0, "attack", untrusted=True)
    return local_runner(use).run(command)


@pytest.mark.parametrize("name", _ATTACKS)
def test_an_attack_from_within_gets_nothing(tmp_path: Path, name: str) -> None:
    """Code that no rule saw runs before ``main``, and every way out is closed."""
    done = _attack(tmp_path, name, Level.FULL)
    assert done.stderr.strip() == _NOTHING
    assert (tmp_path / "root" / "croq_fsm.toml").exists()


@pytest.mark.parametrize("name", sorted(set(_ATTACKS) - _HARMFUL))
def test_the_same_attacks_work_outside(tmp_path: Path, name: str) -> None:
    """Without the sandbox each of them gets through, so each is a real one."""
    if name == "trace" and Path("/proc/sys/kernel/yama/ptrace_scope").exists():
        pytest.skip("this kernel forbids tracing of parents to everybody")
    assert "attack got through" in _attack(tmp_path, name, Level.NONE).stderr


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_night_of_attacks_that_no_rule_sees(tmp_path: Path) -> None:
    """With the rules off, the sandbox alone: each attempt is recorded, nothing is got, no harm."""
    root = hostile.plant(tmp_path)
    key = tmp_path / "home" / ".ssh" / "id_key"
    sources = {name: hostile.early(body) for name, body in hostile.attacks(root).items()}
    sources |= {
        "users": hostile.kernel('#include "/etc/passwd"'),
        "keys": hostile.kernel(f'#include "{key}"'),
        "embedded": hostile.kernel(f'__asm__(".incbin \\"{key}\\"");'),
        "flood": hostile.early('for (;;) puts("flood");'),
        "filling": hostile.early(
            'int file = open("big", O_WRONLY | O_CREAT, 0600); static char text[1 << 20];'
            "while (write(file, text, sizeof text) > 0) got = 0;"
        ),
    }
    night = hostile.night(tmp_path, sources, ruled=False)
    assert night.done.returncode == 0, night.done.stderr
    found = night.attempts()
    assert set(found) == set(sources)
    kinds = {name: kind for name, (kind, _, _) in found.items()}
    expected = dict.fromkeys(_ATTACKS, "SEGFAULT")
    expected |= dict.fromkeys(("users", "keys", "embedded"), "COMPILE_FAIL")
    assert kinds == expected | {"flood": "RUN_FAIL", "filling": "SEGFAULT"}
    assert all(found[name][1].endswith(_NOTHING) for name in _ATTACKS)
    assert "flooded its output" in found["flood"][1]
    assert "SIGXFSZ" in found["filling"][1]
    assert night.places_of(hostile.CANARY) == []
    assert night.places_of("root:x:0:0") == []
    assert night.rows("SELECT state FROM sessions") == [("DONE",)]
    assert night.orphans() == []
    audit = [sys.executable, "-m", "croq_fsm", "validate", "--root", str(night.root)]
    assert subprocess.run(audit, capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_night_of_attacks_that_the_rules_see(tmp_path: Path) -> None:
    """With the rules on, every attack is refused before it is compiled, and says why."""
    root = hostile.plant(tmp_path)
    sources = {name: hostile.early(body) for name, body in hostile.attacks(root).items()}
    sources["users"] = hostile.kernel('#include "/etc/passwd"')
    night = hostile.night(tmp_path, sources)
    assert night.done.returncode == 0, night.done.stderr
    found = night.attempts()
    assert set(found) == set(sources)
    assert {kind for kind, _, _ in found.values()} == {"COMPILE_FAIL"}
    assert all("refused before compiling" in text for _, text, _ in found.values())
    assert night.places_of(hostile.CANARY) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "text",
    [
        '#include "{key}"\n__global__ void k() {{}}\n',
        '__global__ void k() {{}}\n__asm__(".incbin \\"{key}\\"");\n',
        '__asm__(".include \\"{key}\\"");\n__global__ void k() {{}}\n',
        "#define QUOTED(x) #x\n#include QUOTED({key})\n__global__ void k() {{}}\n",
    ],
)
def test_device_compilers_read_nothing_of_others(tmp_path: Path, text: str) -> None:
    """A file of the user gets neither into an object of nvcc nor into its messages."""
    need_nvcc()
    hostile.plant(tmp_path)
    key = tmp_path / "home" / ".ssh" / "id_key"
    own = tmp_path / "own"
    own.mkdir()
    (own / "kernel.cu").write_text(text.format(key=key), encoding="utf-8")
    nvcc = str(find_tools(Config().croqtile).need("nvcc"))
    argv = (nvcc, "-arch=sm_90a", "-c", "kernel.cu", "-o", "kernel.o")
    done = _compile(argv, own)
    assert done.ending is Ending.EXITED
    assert not done.ok
    assert hostile.CANARY not in done.output
    assert not (own / "kernel.o").exists()
    assert "id_key" in done.output


def _compile(argv: tuple[str, ...], own: Path) -> Completed:
    """As builds do it, with the toolchains of the configuration."""
    runner = local_runner()
    runner.policy = Policy.of(Config())
    return runner.run(Command(argv, own, 100.0, "nvcc", untrusted=True, role=Role.COMPILE))


def test_an_honest_device_kernel_still_compiles(tmp_path: Path) -> None:
    """The confinement that the hostile ones meet lets nvcc work; else they would prove nothing."""
    need_nvcc()
    (tmp_path / "kernel.cu").write_text("__global__ void k() {}\n", encoding="utf-8")
    nvcc = str(find_tools(Config().croqtile).need("nvcc"))
    done = _compile((nvcc, "-arch=sm_90a", "-c", "kernel.cu", "-o", "kernel.o"), tmp_path)
    assert done.ok, done.output
