"""A device that stops answering is no bad candidate; benches that hold on are ended."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from croqtile_support import task

from croq_fsm.config import Deadlines
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateError,
    CandidateHung,
    CandidateRefused,
    DeviceWedged,
    EnvironmentMissing,
)
from croq_fsm.gpu.health import PAUSES_S, Health
from croq_fsm.toolchain.croqtile_bench import Programs
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.survivors import marked


class Device:
    """Fails so many probes, then answers."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.pauses: list[float] = []
        self.health = Health(self._probe, self.pauses.append)

    def _probe(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise EnvironmentMissing("our own device program failed: no answer in time")

    def fail(self, error: CandidateError) -> None:
        """Work that ends in an error."""
        with self.health.guarded():
            raise error


@pytest.mark.parametrize("error", [CandidateCrashed, CandidateHung])
def test_a_failure_is_the_candidates_while_the_device_answers(
    error: type[CandidateCrashed],
) -> None:
    """The device is asked once, and the failure goes on with its log."""
    device = Device(0)
    with pytest.raises(error, match="killed") as caught:
        device.fail(error("killed", log="the log"))
    assert (caught.value.log, device.health.probes, device.pauses) == ("the log", 1, [])


def test_a_device_that_recovers_is_waited_for() -> None:
    """Some failed probes cost pauses, and nobody is blamed but the candidate."""
    device = Device(2)
    with pytest.raises(CandidateHung):
        device.fail(CandidateHung("no answer"))
    assert device.pauses == list(PAUSES_S[:2])


def test_a_device_that_stays_silent_is_wedged() -> None:
    """Bounded; the message names what came before and what to do, the exit code is 7."""
    device = Device(99)
    with pytest.raises(DeviceWedged, match=r"no answer in time.*after: CandidateHung: spins") as it:
        device.fail(CandidateHung("spins"))
    assert device.pauses == list(PAUSES_S)
    assert it.value.exit_code == 7
    assert isinstance(it.value.__context__, CandidateHung | EnvironmentMissing)


def test_refusals_and_success_ask_nobody() -> None:
    """What cannot have hurt the device costs no probe."""
    device = Device(99)
    with pytest.raises(CandidateRefused):
        device.fail(CandidateRefused("flood"))
    with device.health.guarded():
        pass
    assert device.health.probes == 0


DEAF = """
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(void) {
  char line[256];
  signal(SIGTERM, SIG_IGN); signal(SIGINT, SIG_IGN); signal(SIGHUP, SIG_IGN);
  if (fork() == 0) { setsid(); sleep(600); }
  while (fgets(line, sizeof line, stdin)) {
    if (strstr(line, "hang")) sleep(600);
    if (write(3, "{\\"ok\\": true}\\n", 13) != 13) return 1;
  }
  sleep(600);
}
"""


@pytest.mark.parametrize("command", ["hang", "idle"])
def test_a_bench_that_ignores_sigterm_is_ended_with_its_tree(tmp_path: Path, command: str) -> None:
    """When it gives no answer, and when it will not end after its last one."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    binary, source = tmp_path / "bench", tmp_path / "bench.c"
    source.write_text(DEAF, encoding="utf-8")
    subprocess.run([compiler, "-o", str(binary), str(source)], check=True, timeout=60)
    run_id = f"deaf-{os.urandom(6).hex()}"
    quick = Deadlines(kill_grace_s=0.2, reap_s=5.0)
    runner = LocalRunner(run_id, NullJournal(), threading.Event(), quick)
    programs = Programs(runner, tmp_path / "judge", None, 5.0)
    cwd = tmp_path / "work"
    cwd.mkdir()
    with programs.bench(binary, task(), cwd, "deaf") as talk:
        if command == "hang":
            with pytest.raises(CandidateHung, match="no answer in time"):
                talk.ask({"cmd": "hang"}, 0.5)
        else:
            assert talk.ask({"cmd": "idle"}, 5.0) == {"ok": True}
            assert marked("CROQ_RUN_ID", run_id)
    assert marked("CROQ_RUN_ID", run_id) == []
