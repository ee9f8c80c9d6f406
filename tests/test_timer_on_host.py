"""The timer of the CUDA harness on a simulated device queue: what is timed, kept and told.

No device is needed: the harness is compiled as it is and linked with a runtime whose kernels only
take their time (``support/cuda_timeline.cpp``). Each two events cost 0.8 us there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
from croqtile_support import need_nvcc

from croq_fsm.config import CroqtileOptions
from croq_fsm.toolchain.croqtile_tools import find_tools
from croq_fsm.toolchain.device_build import BASE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
BENCH = HERE.parent / "croq_fsm" / "measure" / "cuda" / "bench.cu"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The harness with the simulated runtime."""
    need_nvcc()
    made = tmp_path_factory.mktemp("timer") / "bench"
    argv = [str(find_tools(CroqtileOptions()).need("nvcc")), *BASE, "-cudart=none", str(BENCH)]
    argv += [str(HERE / "support" / "cuda_timeline.cpp"), "-o", str(made)]
    subprocess.run(argv, check=True, timeout=200, capture_output=True)
    return made


def ask(
    bench: Path, *requests: dict[str, object], kernel_us: float = 7.0, host_us: float = 1.0
) -> list[dict[str, Any]]:
    """Answers to requests, from one process."""
    reading, writing = os.pipe()
    script = f'exec 3>&{writing}; exec "$0" matmul f16 1024 1024 1024'
    done = subprocess.run(
        ["/bin/bash", "-c", script, str(bench)],
        input="".join(json.dumps(r) + "\n" for r in requests),
        text=True,
        check=True,
        timeout=100,
        pass_fds=(writing,),
        env={**os.environ, "KERNEL_US": str(kernel_us), "HOST_US": str(host_us)},
    )
    assert done.returncode == 0
    os.close(writing)
    with os.fdopen(reading) as answers:
        return [json.loads(line) for line in answers]


def time(**fields: object) -> dict[str, object]:
    """A timing request."""
    return {"cmd": "time", "launches": 20, "seed": 3, **fields}


def test_one_launch_between_two_events_carries_their_cost(bench: Path) -> None:
    """That is why short kernels are timed in trains."""
    (answer,) = ask(bench, time())
    assert statistics.median(answer["ns"]) == pytest.approx(7800, abs=1)
    assert len(answer["ns"]) == 20


def test_a_train_spreads_it_and_reports_times_of_a_launch(bench: Path) -> None:
    """Sixteen launches share the cost of two events."""
    (answer,) = ask(bench, time(batch=16))
    assert statistics.median(answer["ns"]) == pytest.approx(7050, abs=1)
    assert len(answer["ns"]) == 20


def test_the_hosts_part_is_told_and_what_comes_too_late(bench: Path) -> None:
    """A host that cannot queue a train ahead of the device is seen."""
    quick, slow = (ask(bench, time(batch=16), host_us=us)[0] for us in (1.0, 40.0))
    assert quick["host_ns"] < 20e3
    assert slow["host_ns"] > 39e3
    assert slow["late"] >= 20
    assert statistics.median(slow["ns"]) > 7200


@pytest.mark.parametrize("regime", ["burst", "sustained"])
@pytest.mark.parametrize("batch", [1, 16])
def test_launches_back_to_back(bench: Path, regime: str, batch: int) -> None:
    """As many times as asked for, each of one launch; an idle block launches nothing."""
    idle = {"cmd": "idle", "launches": 4, "regime": regime, "batch": batch}
    answers = ask(bench, idle, time(regime=regime, batch=batch))
    assert "ns" not in answers[0]
    assert answers[0]["host_ns"] is None
    assert len(answers[1]["ns"]) == 20
    assert statistics.median(answers[1]["ns"]) == pytest.approx(7000 + 800 / batch, abs=1)


@pytest.mark.parametrize("fields", [{}, {"batch": 16}, {"regime": "burst", "batch": 16}])
def test_a_timed_launch_is_kept_with_the_seed_of_its_inputs(
    bench: Path, tmp_path: Path, fields: dict[str, object]
) -> None:
    """The whole output of one of them, for a judge that makes the same inputs again."""
    out = tmp_path / "kept"
    _, kept = ask(bench, time(**fields), {"cmd": "kept", "out": str(out)})
    assert kept["ok"] is True
    assert (kept["seed"] - 3) % 1000003 == 0
    assert out.stat().st_size == 2 * 1024 * 1024
    assert any(out.read_bytes()[:8])
