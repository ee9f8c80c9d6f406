"""Reading profiler reports, classification, and what a failed profiler run means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from croq_fsm.domain.profile import Metric
from croq_fsm.domain.states import Bottleneck
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateHung,
    Contended,
    CroqError,
    EnvironmentMissing,
)
from croq_fsm.profiling import ncu_metrics as names
from croq_fsm.profiling import ncu_read
from croq_fsm.profiling.classify import classify
from croq_fsm.profiling.ncu import Ncu, failure, kernel_filter
from croq_fsm.toolchain.process import Command, Completed, Ending

FIXTURE = (
    Path(__file__).resolve().parents[2] / "shared/fixtures/ncu/h200_matmul_f16_1p2c_wn128_full"
)


def fixture(suffix: str) -> Path:
    """A real report of an H200, where present."""
    path = FIXTURE.with_name(FIXTURE.name + suffix)
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    return path


def from_csv() -> dict[str, Metric]:
    """Counters of the raw CSV."""
    [(kernel, metrics)] = names.read_raw_csv(fixture(".raw.csv").read_text(encoding="utf-8"))
    assert kernel.startswith("__choreo_device_matmul(")
    return {metric.name: metric for metric in metrics}


def from_report() -> dict[str, tuple[float, str]]:
    """Counters of the report, read in a child as the product does."""
    pytest.importorskip("ncu_report")
    argv = [sys.executable, ncu_read.__file__, str(fixture(".ncu-rep"))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    [launch] = json.loads(done.stdout)
    assert launch["kernel"] == "__choreo_device_matmul"
    return {name: (value, unit) for name, value, unit in launch["metrics"]}


def test_report_and_csv_agree() -> None:
    """Two thousand counters have the same value and unit by either way."""
    report, csv = from_report(), from_csv()
    common = [name for name in csv if name in report]
    assert len(common) > 2000
    for name in common:
        value, unit = report[name]
        # The CSV rounds to a few digits; percent per byte and requests lose their unit there.
        if unit not in {"%/byte", "request"}:
            assert csv[name].unit == unit, name
            assert csv[name].value == pytest.approx(value, rel=1e-5, abs=5e-3), name


def test_the_small_set_exists_on_hopper() -> None:
    """Every counter that is asked for by default is in a real full report."""
    report = from_report()
    assert [name for name in names.SMALL_SET if name not in report] == []
    assert all(map(names.is_interesting, names.SMALL_SET))


def test_the_golden_report_is_classified_with_its_evidence() -> None:
    """Tensor pipe and L2 are both near two thirds; conflicts and stalls are named."""
    found = classify({name: m.value for name, m in from_csv().items()}, ("C7519 x3: injected",))
    assert found.bottleneck is Bottleneck.MIXED
    text = "\n".join(found.evidence)
    for word in (names.TENSOR, "62.7", names.L2, "63.9", names.STORE_CONFLICTS, "C7519"):
        assert word in text


@pytest.mark.parametrize(
    ("text", "unit", "value", "base"),
    [
        ("603.035904", "Mbyte", 603035904.0, "byte"),
        ("1,980", "Mhz", 1.98e9, "hz"),
        ("486.944", "us", 486944.0, "ns"),
        ("1.376151", "Tbyte/s", 1.376151e12, "byte/s"),
        ("2.5", "sector/us", 2.5e6, "sector/s"),
        ("165.055", "Kbyte/block", 165055.0, "byte/block"),
        ("12", "inst", 12.0, "inst"),
    ],
)
def test_units_become_base_units(text: str, unit: str, value: float, base: str) -> None:
    """Prefixes and thousands separators of the CSV are undone."""
    made = names.metric("m", text, unit)
    assert made is not None
    assert (made.value, made.unit) == (pytest.approx(value), base)


def test_a_counter_without_a_number_is_absent() -> None:
    """``no data`` is no zero."""
    assert names.metric("m", "no data", "inst") is None


@pytest.mark.parametrize("text", ["nan", "-nan", "inf", "-inf", "NaN"])
def test_a_counter_that_is_no_number_is_absent(text: str) -> None:
    """A ratio over nothing is neither stored nor read as zero."""
    assert names.metric("a.ratio", text, "") is None


def counters(**percent: float) -> dict[str, float]:
    """Counters by short names."""
    long = {
        "tensor": names.TENSOR,
        "dram": names.DRAM,
        "l2": names.L2,
        "time": names.DURATION,
        "waves": names.WAVES,
    }
    return {names.DURATION: 4e5} | {long[name]: value for name, value in percent.items()}


@pytest.mark.parametrize(
    ("given_", "bottleneck", "confidence"),
    [
        (counters(tensor=93, dram=25, l2=60), Bottleneck.COMPUTE, "high"),
        (counters(tensor=80, dram=25, l2=50), Bottleneck.COMPUTE, "medium"),
        (counters(tensor=30, dram=92, l2=60), Bottleneck.MEMORY, "high"),
        (counters(tensor=40, dram=30, l2=85), Bottleneck.MEMORY, "medium"),
        (counters(tensor=80, dram=78, l2=60), Bottleneck.MIXED, "high"),
        (counters(tensor=35, dram=13, l2=38), Bottleneck.LATENCY, "high"),
        (counters(tensor=68, dram=20, l2=40), Bottleneck.LATENCY, "medium"),
        (counters(tensor=35, dram=13, l2=38, time=4e3), Bottleneck.LAUNCH, "high"),
        (counters(tensor=35, dram=13, l2=38, time=8e3), Bottleneck.LAUNCH, "medium"),
        (counters(tensor=80), Bottleneck.COMPUTE, "low"),
        (counters(dram=30), Bottleneck.LATENCY, "low"),
    ],
)
def test_classes(given_: dict[str, float], bottleneck: Bottleneck, confidence: str) -> None:
    """Each rule, and the confidence that it deserves."""
    found = classify(given_)
    assert (found.bottleneck, found.confidence) == (bottleneck, confidence)


def test_an_absent_counter_is_said_to_be_absent() -> None:
    """It is never taken for zero."""
    text = "\n".join(classify(counters(tensor=93)).evidence)
    assert f"{names.DRAM} is absent" in text
    assert f"{names.DRAM} is 0" not in text
    with pytest.raises(ValueError, match="no counter"):
        classify({names.DURATION: 4e5})


def test_serialised_wgmma_is_evidence() -> None:
    """The compiler's remark is explained and makes latency certain."""
    remark = "C7520 x1: Potential Performance Loss: wgmma is serialized"
    found = classify(counters(tensor=65, dram=20, l2=30), (remark,))
    assert found.confidence == "high"
    assert "registers are touched while they run" in "\n".join(found.evidence)


def test_a_bad_tail_is_named() -> None:
    """The share of the last wave that stays empty is computed."""
    text = "\n".join(classify(counters(tensor=93, dram=2, l2=3, waves=1.25)).evidence)
    assert "the last wave leaves 37.5 % unused" in text


@given(
    st.dictionaries(
        st.sampled_from(
            [names.TENSOR, names.SM, names.DRAM, names.L2, names.DURATION, names.WAVES]
        ),
        st.floats(0, 1e9),
        min_size=1,
    )
)
def test_classification_never_breaks(some: dict[str, float]) -> None:
    """Any counters give a class, or the one error that says why not."""
    try:
        assert classify(some).evidence
    except ValueError as exc:
        assert "no counter" in str(exc)  # noqa: PT017 - only this text is allowed


def run(text: str, status: int | None = 1, ending: Ending = Ending.EXITED) -> Completed:
    """A profiler run without a report."""
    return Completed(ending, status, text, "", 3.0)


@pytest.mark.parametrize(
    ("completed", "error", "says"),
    [
        (
            run("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"),
            EnvironmentMissing,
            "NVreg",
        ),
        (run("==ERROR== Failed to open lock file /tmp/nsight-compute-lock"), Contended, "profiler"),
        (run("", None, Ending.DEADLINE), CandidateHung, "under the profiler"),
        (run("==ERROR== The application returned an error code (11)."), CandidateCrashed, "failed"),
        (run("==WARNING== No kernels were profiled.", 0), EnvironmentMissing, "no launch"),
        (run("==ERROR== LibraryNotLoaded"), EnvironmentMissing, "LibraryNotLoaded"),
    ],
)
def test_failed_runs_are_told_apart(
    completed: Completed, error: type[CroqError], says: str
) -> None:
    """Permission, another profiler, a hang, a crash, nothing launched."""
    made = failure(completed)
    assert type(made) is error
    assert says in str(made)


def test_the_filter_names_exactly_the_kernels() -> None:
    """The library's or the harness's kernels are never profiled in the candidate's place."""
    assert kernel_filter(("a_kernel", "b")) == "regex:^(a_kernel|b)$"
    with pytest.raises(ValueError, match="no kernel"):
        kernel_filter(())


class FakeNcu:
    """Writes the golden report where it is told to; fails to be read in a child if asked."""

    def __init__(self, *, readable: bool) -> None:
        self.readable = readable
        self.sandbox = ""

    def run(self, command: Command) -> Completed:
        """Serve the three steps of a profile."""
        argv = list(command.argv)
        if "--export" in argv:
            Path(argv[argv.index("--export") + 1]).write_bytes(fixture(".ncu-rep").read_bytes())
            return run("", 0)
        if "--import" in argv:
            return run(fixture(".raw.csv").read_text(encoding="utf-8"), 0)
        if not self.readable:
            return run("no module named ncu_report")
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        return run(done.stdout, 0)


@pytest.mark.parametrize("readable", [True, False])
def test_a_profile_is_read_by_either_way(tmp_path: Path, readable: bool) -> None:
    """The CSV stands in for a report that cannot be read."""
    if readable:
        pytest.importorskip("ncu_report")
    tool = Ncu(FakeNcu(readable=readable), Path("/usr/bin/ncu"), 10.0)  # type: ignore[arg-type]
    launch = tool.profile(("bench",), ("__choreo_device_matmul",), tmp_path, full=True)
    values = {metric.name: metric.value for metric in launch.metrics}
    assert values[names.TENSOR] == pytest.approx(62.735, abs=1e-3)
    assert launch.csv is not None
    assert 100 < len(values) < 1500


def test_another_kernels_profile_is_refused(tmp_path: Path) -> None:
    """A report that holds no launch of the candidate is no profile of it."""
    tool = Ncu(FakeNcu(readable=False), Path("/usr/bin/ncu"), 10.0)  # type: ignore[arg-type]
    with pytest.raises(EnvironmentMissing, match="holds no launch of mine"):
        tool.profile(("bench",), ("mine",), tmp_path, full=True)
