"""Sensors through a real child and a real library, and what makes a block unsteady."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from croqtile_support import ScriptedTalk

from croq_fsm.config import Deadlines
from croq_fsm.domain.measurement import Reading
from croq_fsm.gpu.sensors import Sensors, open_sensors
from croq_fsm.gpu.stability import Steadiness, before_middle_after
from croq_fsm.toolchain.croqtile_time import DeviceWatch, Listener
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner

#: A library with NVIDIA's names. It reads what it shall say from a file beside it: the UUID that
#: it knows, clock, power in mW, reasons.
FAKE = """
#include <stdio.h>
#include <string.h>
static char uuid[64]; static unsigned mhz, milliwatts; static unsigned long long reasons;
static void look(void) {
  FILE *file = fopen("STATE", "r");
  if (!file || fscanf(file, "%63s %u %u %llu", uuid, &mhz, &milliwatts, &reasons) != 4) mhz = 0;
  if (file) fclose(file);
}
int nvmlInit_v2(void) { look(); return 0; }
int nvmlDeviceGetHandleByUUID(const char *wanted, void **device) {
  *device = uuid;
  return strcmp(wanted, uuid) ? 6 : 0;
}
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *value) {
  look();
  *value = kind == 1 ? mhz : 3201;
  return device == uuid ? 0 : 2;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *value) {
  *value = 41;
  return device == uuid && sensor == 0 ? 0 : 2;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *value) {
  *value = milliwatts;
  return device == uuid ? 0 : 2;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *value) {
  *value = reasons;
  return device == uuid ? 0 : 2;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
  memory[0] = 1ull << 37; memory[1] = 1ull << 36; memory[2] = 600ull << 20;
  return device == uuid ? 0 : 2;
}
"""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("nvml")
    state, source = folder / "state", folder / "nvml.c"
    source.write_text(FAKE.replace("STATE", str(state)), encoding="utf-8")
    library = folder / "libnvidia-ml.so.1"
    argv = [compiler, "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(argv, check=True, timeout=60)
    state.write_text("GPU-1 1980 120000 0\n", encoding="ascii")
    return library


@pytest.fixture
def runner() -> LocalRunner:
    """The real runner."""
    return LocalRunner("sensors", NullJournal(), threading.Event(), Deadlines(kill_grace_s=0.2))


def test_a_child_reads_all_sensors(nvml: Path, runner: LocalRunner, tmp_path: Path) -> None:
    """Clocks, temperature, power, reasons and memory come back with their units."""
    with open_sensors(runner, "GPU-1", tmp_path, 10.0, library=str(nvml)) as sensors:
        seen = sensors.look()
    assert seen == Reading(
        at_s=0.0,
        sm_mhz=1980,
        memory_mhz=3201,
        temperature_c=41,
        power_w=120.0,
        reasons=0,
        memory_mb=600,
    )
    assert sensors.problem == ""


def test_the_child_reads_by_itself_while_a_block_runs(
    nvml: Path, runner: LocalRunner, tmp_path: Path
) -> None:
    """What happens between begin and end is seen, though nobody asks meanwhile."""
    state = nvml.with_name("state")
    with open_sensors(runner, "GPU-1", tmp_path, 10.0, library=str(nvml)) as sensors:
        sensors.begin()
        state.write_text("GPU-1 1410 700000 4\n", encoding="ascii")
        time.sleep(0.2)
        state.write_text("GPU-1 1980 120000 0\n", encoding="ascii")
        readings = sensors.end()
    assert 1410.0 in {r.sm_mhz for r in readings[1:-1]}
    assert [r.at_s for r in readings] == sorted(r.at_s for r in readings)
    kept = before_middle_after(readings)
    assert (kept[0], kept[-1]) == (readings[0], readings[-1])
    assert len(kept) == 3


@pytest.mark.parametrize("uuid", ["GPU-1", "GPU-2"])
def test_without_sensors_it_says_so_and_goes_on(
    nvml: Path, runner: LocalRunner, tmp_path: Path, uuid: str
) -> None:
    """No library, or none that knows the device: no readings, a reason, and no error."""
    library = str(nvml) if uuid == "GPU-2" else "/nowhere/libnvidia-ml.so.1"
    with open_sensors(runner, uuid, tmp_path, 10.0, library=library) as sensors:
        sensors.begin()
        assert sensors.end() == ()
        assert sensors.look() is None
    assert sensors.problem.startswith("the sensors cannot be read: NVML: ")


def test_a_child_that_dies_is_left_alone(runner: LocalRunner, tmp_path: Path) -> None:
    """Nonsense instead of an answer ends it, and is remembered as the reason."""
    sensors = Sensors(ScriptedTalk({"ok": True, "readings": [{"at": "x"}, 7, {"at": 1.5}]}), 1.0)
    assert sensors.end() == (Reading(at_s=0.0),)
    del runner, tmp_path
    broken = Sensors(ScriptedTalk({"ok": False, "error": "gone"}), 1.0)
    assert broken.look() is None
    assert broken.look() is None
    assert "gone" in broken.problem


def run_of(mhz: list[float], *, reasons: int = 0, memory: float = 600.0) -> list[Reading]:
    """Readings of a block of a second."""
    last = len(mhz) - 1
    return [
        Reading(at_s=i / last, sm_mhz=value, reasons=reasons, memory_mb=memory)
        for i, value in enumerate(mhz)
    ]


def settled(mhz: float = 1500.0) -> Steadiness:
    """A measurement with four usual blocks."""
    steady = Steadiness()
    for _ in range(4):
        assert steady.judge("a", run_of([1980.0, *[mhz] * 20, 1980.0], reasons=4)) == ""
    return steady


def test_a_chip_at_its_power_limit_is_steady() -> None:
    """A low clock and the bit for the power cap are normal as long as they stay."""
    steady = settled(1200.0)
    assert steady.judge("a", run_of([1980.0, *[1150.0, 1250.0] * 10, 1980.0], reasons=4)) == ""


def test_a_clock_far_below_the_usual_one_is_not() -> None:
    """Below three quarters of what this kernel's other blocks had."""
    steady = settled()
    problem = steady.judge("a", run_of([1500.0, *[1100.0] * 20, 1500.0]))
    assert problem == "the clock was 1100 MHz, 1500 MHz is usual"
    assert steady.judge("b", run_of([1500.0, *[1100.0] * 20, 1500.0])) == ""


def test_hardware_slowdown_is_judged_more_strictly() -> None:
    """The same small drop passes without the bit and does not with it."""
    readings = [1500.0, *[1350.0] * 20, 1500.0]
    assert settled().judge("a", run_of(readings, reasons=4)) == ""
    assert "hardware slows" in settled().judge("a", run_of(readings, reasons=0x40))


def test_a_clock_that_changes_within_a_block_is_not_steady() -> None:
    """Unless it does so in each block, as a burst on a cool chip does."""
    falling = [1500.0] * 16 + [1250.0] * 8
    assert "not steady" in settled().judge("a", run_of(falling))
    steady = Steadiness()
    for _ in range(5):
        assert steady.judge("a", run_of(falling)) == ""
    assert "not steady" in settled().judge("a", (), (1980.0, 1500.0))


def test_memory_that_comes_with_somebody_is_seen() -> None:
    """As long as it is there, and whoever is blamed by the driver."""
    steady = settled()
    for _ in range(2):
        assert "from 600 to 1100 MiB" in steady.judge("a", run_of([1500.0] * 9, memory=1100.0))
    assert steady.judge("a", run_of([1500.0] * 9)) == ""


def test_a_block_thrown_away_is_no_part_of_the_usual() -> None:
    """However often it is repeated."""
    steady = settled()
    for _ in range(9):
        assert steady.judge("a", run_of([1100.0] * 22)) != ""


class Flat(Sensors):
    """Sensors that say one thing."""

    def __init__(self) -> None:
        super().__init__(None, 1.0)
        self.mhz = 1500.0

    def end(self) -> tuple[Reading, ...]:
        """A steady block."""
        return tuple(run_of([self.mhz] * 10))


def test_the_watch_rests_longer_each_time_in_a_row() -> None:
    """Unsteady blocks are followed by growing pauses, steady ones by none."""
    rests: list[float] = []
    sensors = Flat()
    watch = DeviceWatch(None, {"a": Listener(ScriptedTalk())}, sensors, "burst", rests.append)
    for _ in range(4):
        assert watch.after("a").problem == ""
    sensors.mhz = 900.0
    for _ in range(7):
        assert "900 MHz" in watch.after("a").problem
    sensors.mhz = 1500.0
    verdict = watch.after("a")
    assert (verdict.problem, len(verdict.readings)) == ("", 3)
    assert rests == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
