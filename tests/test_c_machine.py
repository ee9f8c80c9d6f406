"""The CPU as a device, what doctor finds, and the structure of kernels."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from c_dsl_support import GOOD, config, workbench

from croq_fsm.errors import EnvironmentMissing
from croq_fsm.toolchain.c_machine import CpuMachine, Peaks, measure_peaks
from croq_fsm.toolchain.c_structure import structure_of
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner

X86 = "processor : 0\nmodel name\t: Some CPU @ 2.0GHz (x)\nflags\t\t: fpu sse2 avx avx2 avx512f\n"
ARM = "processor : 0\nFeatures : fp asimd evtstrm\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


def folder_of_cpus(tmp_path: Path, speeds: dict[int, int]) -> Path:
    """A sysfs with caches of cpu0 and the given highest clocks."""
    caches = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K")]
    for number, (level, kind, size) in enumerate([*caches, ("3", "Unified", "32M")]):
        index = tmp_path / f"cpu0/cache/index{number}"
        index.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (index / name).write_text(f"{text}\n")
    for cpu, speed in speeds.items():
        (tmp_path / f"cpu{cpu}/cpufreq").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"cpu{cpu}/cpufreq/cpuinfo_max_freq").write_text(f"{speed}\n")
    return tmp_path


def test_x86_is_read(tmp_path: Path) -> None:
    """Name, key, caches and vectors come from the system's own words."""
    machine = CpuMachine(X86, folder_of_cpus(tmp_path, {}))
    assert machine.name == "Some CPU @ 2.0GHz (x)"
    assert machine.key.endswith("_Some_CPU_@_2.0GHz_x")
    assert machine.key.startswith("cpu_")
    limits = machine.limits
    assert limits["l1d_bytes"] == 48 << 10
    assert limits["l2_bytes"] == 1 << 20
    assert limits["l3_bytes"] == 32 << 20
    assert (limits["vector_bytes"], limits["vector_registers"]) == (64, 32)


def test_arm_without_a_name_is_read(tmp_path: Path) -> None:
    """Where there is no model name, implementer and part name the CPU."""
    machine = CpuMachine(ARM, tmp_path)
    assert machine.name == "0x41 0xd0c"
    assert machine.limits["vector_bytes"] == 16
    assert "l3_bytes" not in machine.limits


def test_unknown_limits_are_absent(tmp_path: Path) -> None:
    """What the system does not tell is not guessed."""
    limits = CpuMachine("", tmp_path).limits
    assert set(limits) == {"cores"}


def test_identity_is_stable_and_unique() -> None:
    """The same CPU of the same machine has one identity, another CPU another."""
    assert CpuMachine(X86).uuid == CpuMachine(X86).uuid
    assert CpuMachine(X86).uuid != CpuMachine(ARM).uuid
    assert CpuMachine(X86).uuid.startswith("CPU-")


def test_slow_cores_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with two kinds of cores everything stays on the faster kind."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    machine = CpuMachine(X86, folder_of_cpus(tmp_path, {0: 5, 1: 5, 2: 3, 3: 3}))
    assert machine.fast_cpus == (0, 1)
    assert machine.cpus_for(1) == (1,)
    assert machine.cpus_for(2) == (0, 1)
    assert machine.limits["cores"] == 2


def test_peaks_are_measured_once(tmp_path: Path) -> None:
    """The measured peaks are remembered; nonsense in the file is measured again."""
    program = tmp_path / "peaks"
    program.write_text('#!/bin/sh\necho run >> runs\necho \'{"flops": 2e9, "bandwidth": 1e9}\'\n')
    program.chmod(0o755)
    settings = config()
    runner = LocalRunner("peaks", NullJournal(), threading.Event(), settings.deadlines)
    machine = CpuMachine(X86)

    def measure(*, again: bool = False) -> Peaks:
        return measure_peaks(runner, program, machine, settings, tmp_path, again=again)

    assert measure() == measure() == Peaks(2e9, 1e9)
    assert (tmp_path / "runs").read_text() == "run\n"
    remembered = next(tmp_path.glob("peaks-*.json"))
    remembered.write_text("{}")
    measure()
    assert (tmp_path / "runs").read_text() == "run\nrun\n"
    remembered.write_text('{"flops": 3e9, "bandwidth": 1e8}')
    assert measure(again=True) == measure() == Peaks(3e9, 1e9)


def test_failing_peaks_are_told(tmp_path: Path) -> None:
    """Peaks that cannot be measured are an error, never a guess."""
    program = tmp_path / "peaks"
    program.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    program.chmod(0o755)
    settings = config()
    runner = LocalRunner("peaks", NullJournal(), threading.Event(), settings.deadlines)
    with pytest.raises(EnvironmentMissing, match="broken"):
        measure_peaks(runner, program, CpuMachine(X86), settings, tmp_path)


def test_this_machine_has_plausible_peaks() -> None:
    """The real measurement gives rates that any machine of this century has."""
    with workbench() as bench:
        device = bench.device()
        assert device.peak_flops is not None
        assert device.peak_bandwidth is not None
        assert 1e9 < device.peak_flops < 1e14
        assert 1e8 < device.peak_bandwidth < 1e13
        assert device.key.startswith("cpu_")
        assert not device.simulated
        assert bench.device() == device


def test_doctor_reports_without_raising() -> None:
    """Each finding names what it is; what is missing names what it forbids and a cure."""
    with workbench() as bench:
        findings = bench.doctor()
    names = {finding.name for finding in findings}
    assert {"C compiler", "objcopy", "git", "BLAS", "counters", "seccomp", "Landlock"} <= names
    for finding in findings:
        assert finding.ok or (finding.forbids and finding.cure), finding


TILED = """
#define TILE_M 32
#define KC 256  // depth
#define NR (16)
static float packed_b[KC * NR];
typedef float vec __attribute__((vector_size(64)));
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int kk = 0; kk < k; kk += KC)
        for (int i = 0; i < m; i += TILE_M)
            for (int j = 0; j < NR; ++j)
                for (int u = 0; u < 8; ++u) {}
}
"""


def test_structure_of_kernels() -> None:
    """Loop order, sizes, packing, vectors and passes are read from the text."""
    plain = structure_of(GOOD["matmul"].source)
    assert (plain["loops"], plain["tile"], plain["packing"]) == ("m n k", "none", "no")
    tiled = structure_of(TILED)
    assert tiled["loops"] == "k m n-tile 8"
    assert tiled["tile"] == "KC=256 NR=(16) TILE_M=32"
    assert (tiled["packing"], tiled["vectors"]) == ("yes", "extensions")
    softmax = structure_of(GOOD["softmax"].source)
    assert (softmax["passes"], softmax["exponential"]) == ("3", "library")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TILE_M 32", "TILE_M 64"),
        ("vec __attribute__((vector_size(64)))", "vec"),
        ("packed_b", "store"),
        ("kk < k; kk += KC", "kk < n; kk += KC"),
        ("{}", "c[0] = _mm_cvtss_f32(x);"),
    ],
)
def test_structural_changes_show(old: str, new: str) -> None:
    """A change of design changes the features."""
    assert structure_of(TILED.replace(old, new)) != structure_of(TILED)


def test_comments_and_names_are_no_structure() -> None:
    """Features do not depend on words for people."""
    text = f"// pack vector_size for (i = 0; i < m; )\n{TILED}"
    assert structure_of(text) == structure_of(TILED)
