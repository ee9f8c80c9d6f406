"""DSL ``cuda`` on a real SM90 device: the start kernels are right and can be timed."""

from __future__ import annotations

import pytest
from croqtile_support import need_gpu, need_nvcc
from cuda_support import shipped, task, workbench

from croq_fsm.domain.build import Candidate
from croq_fsm.measure.stats import block_seconds
from croq_fsm.toolchain.cuda import CudaWorkbench
from croq_fsm.toolchain.workbench import TimingPlan

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> CudaWorkbench:
    """One workbench for all."""
    need_nvcc()
    need_gpu()
    return workbench(tmp_path_factory.mktemp("cuda"), verify_s=20.0)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("shape", [(4096, 8192, 4096), (1000, 1161, 520), (7, 130, 1032)])
def test_shipped_kernels_are_right(
    bench: CudaWorkbench, dtype: str, shape: tuple[int, ...]
) -> None:
    """Also with remainders in every dimension, each element, several seeds."""
    asked = task(dtype, shape)
    found = bench.verify(bench.build(bench.start_kernel(asked), asked), asked, (1, 2, 3))
    assert found.passed, found.first_failure


def test_a_race_is_found(bench: CudaWorkbench) -> None:
    """Without the wait for copies the result is wrong, and verification says so."""
    source = shipped().replace("await_copies<STAGES - 2>", "await_copies<STAGES - 1>")
    build = bench.build(Candidate(source=source), task())
    assert not bench.verify(build, task(), (1,)).passed


def test_times_are_taken(bench: CudaWorkbench) -> None:
    """A kernel and the library give positive times."""
    build = bench.build(bench.start_kernel(task()), task())
    plan = TimingPlan(purpose="pairs", pairs=4)
    samples = bench.time({"cand": build, "library": "library"}, task(), plan)
    for name in ("cand", "library"):
        assert block_seconds(samples, name) > 0
