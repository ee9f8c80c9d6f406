"""DSL ``croqtile`` on a real SM90 device: right kernels pass, wrong ones fail, times are sane."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from croqtile_support import need_choreo, need_gpu, need_nvcc, real_runner, shipped, task

from croq_fsm.config import Config, Deadlines
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.states import Bottleneck
from croq_fsm.errors import CandidateError
from croq_fsm.measure.stats import block_seconds, estimate
from croq_fsm.toolchain.croqtile import CroqtileWorkbench
from croq_fsm.toolchain.croqtile_twins import Twin, twins
from croq_fsm.toolchain.workbench import TimingPlan

pytestmark = [pytest.mark.gpu, pytest.mark.choreo, pytest.mark.timeout(300)]

TWINS = twins(Candidate(source=shipped("f16_plain")))


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> CroqtileWorkbench:
    """One workbench for all; CROQ_FSM_TEST_CACHE names a build cache to start from."""
    need_choreo()
    need_nvcc()
    need_gpu()
    folder = tmp_path_factory.mktemp("croqtile")
    cache = Path(os.environ.get("CROQ_FSM_TEST_CACHE", folder / "cache"))
    config = Config(deadlines=Deadlines(verify_s=20.0))
    return CroqtileWorkbench(real_runner(), config, cache, folder / "work")


def test_the_device_is_known(bench: CroqtileWorkbench) -> None:
    """Key, identity, limits and peaks."""
    device = bench.device()
    assert device.key.startswith("sm90_NVIDIA_")
    assert device.uuid.startswith("GPU-")
    assert device.limits["smem_per_block"] == 232448
    assert device.peak_flops
    assert device.facts["driver_version"]


@pytest.mark.parametrize("name", ["f16_plain", "f16_warpspec", "bf16_plain", "bf16_warpspec"])
@pytest.mark.parametrize("shape", [(4096, 8192, 4096), (1000, 1160, 520), (200, 8200, 1032)])
def test_shipped_kernels_are_right(
    bench: CroqtileWorkbench, name: str, shape: tuple[int, ...]
) -> None:
    """Also with remainders in every dimension, each element, several seeds."""
    asked = task(name.partition("_")[0], shape)
    build = bench.build(Candidate(source=shipped(name)), asked)
    found = bench.verify(build, asked, (1, 2, 3))
    assert found.passed, found.first_failure
    assert all(check.total == shape[0] * shape[1] for check in found.checks)


@pytest.mark.parametrize(("name", "twin"), TWINS.items(), ids=TWINS)
def test_wrong_kernels_fail_each_in_its_way(
    bench: CroqtileWorkbench, name: str, twin: Twin
) -> None:
    """Races, unwritten and zero outputs, trespass, faults, hangs, laziness."""
    build = bench.build(twin.candidate, task())
    try:
        found = bench.verify(build, task(), (1, 2))
        how, text = ("passed" if found.passed else "wrong"), str(found.first_failure)
        if twin.fails == "timed":
            assert found.passed
            plan = TimingPlan(purpose="confirm", pairs=2)
            bench.time({"candidate": build, "library": "library"}, task(), plan)
    except CandidateError as exc:
        how, text = type(exc).__name__, str(exc)
        how = "timed" if twin.fails == "timed" else how
    assert how == twin.fails, name
    assert twin.says in text


def test_interleaved_times_are_sane(bench: CroqtileWorkbench) -> None:
    """The plain kernel is somewhat slower than the library and below the device's peak."""
    build = bench.build(Candidate(source=shipped("f16_plain")), task())
    plan = TimingPlan(purpose="pairs", pairs=6)
    samples = bench.time({"candidate": build, "library": "library"}, task(), plan)
    ratio = estimate(samples, "library", "candidate", 1).ratio
    assert 0.75 < ratio < 1.05
    assert task().flops / block_seconds(samples, "candidate") < (bench.device().peak_flops or 0)
    assert all(block.clocks for block in samples.blocks)


def test_a_profile_names_the_tensor_pipe(bench: CroqtileWorkbench) -> None:
    """Counters of the candidate's own kernel, with report and CSV in the cache."""
    build = bench.build(Candidate(source=shipped("f16_plain")), task())
    found = bench.profile(build, task(), full=False)
    assert found.bottleneck in {Bottleneck.COMPUTE, Bottleneck.MIXED, Bottleneck.LATENCY}
    assert found.metric("sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed")
    assert set(found.files) == {"ncu-rep", "csv"}
    assert bench.read(found.files["csv"]).startswith(b'"ID"')


def test_the_environment_report_is_clean(bench: CroqtileWorkbench) -> None:
    """On a machine that runs these tests nothing required is missing."""
    assert [f for f in bench.doctor() if f.required and not f.ok] == []
