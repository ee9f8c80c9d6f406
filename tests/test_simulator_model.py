"""The model: what it reads of a kernel, what it takes for true, and how well it ranks."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from croq_fsm.config import Simulation
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.states import Bottleneck
from croq_fsm.errors import CompileFailed, CompilerCrashed, CompileTimeout, UsageError
from croq_fsm.ideators.rules.croqtile_config import Gemm, Shape
from croq_fsm.ideators.rules.croqtile_limits import Machine, is_feasible, settled
from croq_fsm.ideators.rules.croqtile_render import render
from croq_fsm.profiling import ncu_metrics
from croq_fsm.profiling.classify import classify
from croq_fsm.toolchain.simulated import report
from croq_fsm.toolchain.simulated.clock import SimulatedClock
from croq_fsm.toolchain.simulated.compiler import compile_candidate
from croq_fsm.toolchain.simulated.faults import Fault, Faults, Script, read_script
from croq_fsm.toolchain.simulated.features import Features, features
from croq_fsm.toolchain.simulated.model import truth
from support.simulated import CALM, TASK

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SHAPE = (4096, 8192, 4096)
PLAIN = Gemm()
WALK = replace(PLAIN, tile_n=200, stages=4, ctas=132, registers=(40, 232))


def found(config: Gemm) -> Features:
    """What is read of a rendered member of the family."""
    read = features(Candidate(source=render(config)))
    assert read is not None
    return read


def quiet(tmp_path: Path, *scripted: Fault, **settings: float) -> Faults:
    """Faults of a calm night, with some."""
    calm = {name.partition(".")[2]: value for name, value in CALM.items()}
    return Faults(
        Simulation.model_validate(calm | settings),
        Script(fault=scripted),
        seed=1,
        clock=SimulatedClock(),
        markers=tmp_path / "markers",
    )


members = st.builds(
    Gemm,
    tile_m=st.sampled_from([64, 128, 256]),
    tile_n=st.sampled_from([64, 128, 160, 192, 200, 256]),
    stages=st.integers(2, 6),
    consumers=st.sampled_from([1, 2]),
    ctas=st.sampled_from([0, 132]),
    registers=st.sampled_from([None, (40, 232)]),
    order=st.sampled_from(["m", "n"]),
    elected=st.booleans(),
    release=st.sampled_from(["thread", "warp", "group"]),
    uniform=st.booleans(),
    layout=st.sampled_from(["rows", "panels"]),
    keep=st.sampled_from(["none", "lhs", "rhs"]),
    unroll=st.sampled_from([1, 2, 4]),
).map(lambda config: settled(config, Shape(*SHAPE)))


@given(members)
@settings(max_examples=60, deadline=None)
def test_what_the_rules_write_is_read_back(config: Gemm) -> None:
    """Tile, ring, schedule, registers, order, output: the model sees what the ideator chose."""
    if not is_feasible(config, Shape(*SHAPE), Machine()):
        return
    read = found(config)
    assert (read.tile_m, read.tile_n, read.tile_k) == (config.tile_m, config.tile_n, config.tile_k)
    assert (read.stages, read.consumers, read.ctas) == (
        config.stages,
        config.consumers,
        config.ctas,
    )
    assert (read.registers, read.order) == (config.registers, config.order)
    assert (read.elected, read.uniform) == (config.elected, config.uniform)
    assert read.epilogue == config.layout
    assert read.shared_bytes == config.shared_bytes
    assert read.unroll == config.unroll
    arrivals = {"thread": "all", "warp": "warp", "group": "group"}
    assert read.arrivals == arrivals[config.release]


@pytest.mark.parametrize(
    ("better", "worse", "shape"),
    [
        (WALK, PLAIN, SHAPE),
        (replace(PLAIN, tile_n=200, stages=4), PLAIN, (8192, 8192, 8192)),
        (replace(PLAIN, layout="panels"), PLAIN, SHAPE),
        (replace(WALK, uniform=True), WALK, SHAPE),
        (PLAIN, replace(PLAIN, tile_n=128, stages=4), SHAPE),
        (PLAIN, replace(PLAIN, order="n"), SHAPE),
        (replace(PLAIN, order="n"), PLAIN, (16384, 512, 16384)),
        (replace(PLAIN, tile_m=64, tile_n=128, consumers=1, stages=8), PLAIN, (1024, 1024, 1024)),
    ],
)
def test_the_model_knows_what_was_measured(
    better: Gemm, worse: Gemm, shape: tuple[int, int, int]
) -> None:
    """Edits whose effect on a device is known have that effect on the model."""
    assert truth(found(better), shape).seconds < 0.998 * truth(found(worse), shape).seconds


def test_the_truth_is_a_pure_function() -> None:
    """Comments change nothing; the same text on the same shape has one time."""
    commented = features(Candidate(source=render(WALK) + "// nothing\n"))
    assert commented is not None
    assert truth(commented, SHAPE) == truth(found(WALK), SHAPE)


@pytest.mark.skipif(
    not os.environ.get("CROQ_GEMM_TIMINGS"),
    reason="CROQ_GEMM_TIMINGS names no folder of recorded timings",
)
def test_the_model_ranks_recorded_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """On each shape with enough kernels, ranks correlate; also on kernels that no fit has seen."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    calibrate = importlib.import_module("calibrate_simulator")
    data = calibrate.rows(Path(os.environ["CROQ_GEMM_TIMINGS"]))
    by_shape: dict[tuple[int, int, int], list[Any]] = {}
    for row in data:
        by_shape.setdefault(row.shape, []).append(row)
    for rows in by_shape.values():
        if len(rows) >= 30:
            assert calibrate.correlation(rows, calibrate.FITTED) > 0.55
            unseen = [row for row in rows if not row.is_fitted]
            assert calibrate.correlation(unseen, calibrate.FITTED) > 0.5
    assert len(by_shape) >= 6


@pytest.mark.parametrize(
    ("config", "flags", "says"),
    [
        (replace(PLAIN, stages=6), (), "shared memory OUT OF BOUND!"),
        (replace(PLAIN, tile_n=252), (), "unsupported MMA shape: 64x252x16"),
        (PLAIN, ("nvcc:-maxrregcount=104",), "C7602"),
        (PLAIN, ("choreo:--no-such-flag",), "not on the list"),
    ],
)
def test_the_modelled_compilers_refuse_what_real_ones_refuse(
    tmp_path: Path, config: Gemm, flags: tuple[str, ...], says: str
) -> None:
    """Static limits, with the words of the compilers in message or log."""
    candidate = Candidate(source=render(config), flags=flags)
    with pytest.raises(CompileFailed) as caught:
        compile_candidate("0" * 64, candidate, TASK, quiet(tmp_path), 180.0)
    assert says in str(caught.value) + caught.value.log


def test_a_broken_text_is_counted_like_choreo_does(tmp_path: Path) -> None:
    """``file:line.column: error:`` and a closing count."""
    candidate = Candidate(source=render(PLAIN).replace("{", "", 1))
    with pytest.raises(CompileFailed, match=r"kernel\.co:\d+\.1: error: ") as caught:
        compile_candidate("0" * 64, candidate, TASK, quiet(tmp_path), 180.0)
    assert "Totally 1 errors have been detected." in caught.value.log


def test_injected_failures_of_compilers_are_told_apart(tmp_path: Path) -> None:
    """An abort and a hang are what the real reader of endings calls them; time passes."""
    candidate = Candidate(source=render(PLAIN))
    abort = quiet(tmp_path, compiler_abort=0.999999)
    with pytest.raises(CompilerCrashed, match="134"):
        compile_candidate("0" * 64, candidate, TASK, abort, 180.0)
    hang = quiet(tmp_path, compiler_hang=0.999999)
    with pytest.raises(CompileTimeout, match="180 s"):
        compile_candidate("0" * 64, candidate, TASK, hang, 180.0)
    assert hang.clock.elapsed == 180.0


def test_a_build_reports_registers_and_shared_memory(tmp_path: Path) -> None:
    """The log goes through the real readers; comments leave the machine code alone."""
    made = compile_candidate("0" * 64, Candidate(source=render(WALK)), TASK, quiet(tmp_path), 180.0)
    assert made.build.resources["registers"] == 168
    assert made.build.resources["smem_dynamic"] == WALK.shared_bytes
    again = Candidate(source=render(WALK) + "// nothing\n")
    same = compile_candidate("1" * 64, again, TASK, quiet(tmp_path), 180.0)
    other = Candidate(source=render(PLAIN))
    differs = compile_candidate("2" * 64, other, TASK, quiet(tmp_path), 180.0)
    assert same.build.device_code == made.build.device_code
    assert differs.build.device_code != made.build.device_code


@pytest.mark.parametrize(
    ("config", "shape", "kind"),
    [
        (replace(WALK, layout="rows"), SHAPE, Bottleneck.COMPUTE),
        (replace(PLAIN, tile_m=64, tile_n=64, consumers=1), (512, 512, 256), Bottleneck.LAUNCH),
        (PLAIN, (1024, 1024, 1024), Bottleneck.LATENCY),
    ],
)
def test_reports_are_read_and_classified(
    config: Gemm, shape: tuple[int, int, int], kind: Bottleneck
) -> None:
    """The CSV has the profiler's shape, and what it says leads to the right class."""
    read = found(config)
    text = report.raw_csv("kernel", read, truth(read, shape))
    assert text.startswith("==PROF== SIMULATED")
    (name, metrics), *more = ncu_metrics.read_raw_csv(text)
    assert (name, more) == ("kernel", [])
    counters = {metric.name: metric.value for metric in metrics}
    assert classify(counters).bottleneck in (kind, Bottleneck.MIXED)
    assert counters[ncu_metrics.DURATION] == pytest.approx(
        truth(read, shape).seconds * 1e9, rel=1e-4
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[fault]]\nkind = "nonsense"\nprobability = 1', "kind"),
        ('[[fault]]\nkind = "crash"', "say probability"),
        ('[[fault]]\nkind = "kill"\nprobability = 1', "fault point"),
        ('[[fault]]\nkind = "crash"\nmatching = "("', "regular expression"),
        ("[[fault", "cannot be read"),
    ],
)
def test_bad_scripts_say_what_is_wrong(tmp_path: Path, text: str, says: str) -> None:
    """A script with a mistake is refused before the night."""
    path = tmp_path / "faults.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        read_script(path)
    with pytest.raises(UsageError, match="does not exist"):
        read_script(tmp_path / "nothing.toml")


def test_faults_strike_the_same_candidates_again(tmp_path: Path) -> None:
    """A probability picks candidates, not asks: about its share of them, always the same."""
    faults = quiet(tmp_path, crash=0.2)
    struck = [faults.hits("crash", str(i)) for i in range(1000)]
    assert 150 < sum(struck) < 250
    assert struck == [faults.hits("crash", str(i)) for i in range(1000)]
    first = str(struck.index(True))
    faults.spared = first
    assert not faults.hits("crash", first)


def test_windows_open_and_close(tmp_path: Path) -> None:
    """A window is a time, and a fault that happens once happens once, in any process."""
    window = Fault(kind="disk_full", from_s=10, until_s=20)
    faults = quiet(tmp_path, window)
    seen = []
    for _ in range(30):
        seen.append(faults.now("disk_full"))
        faults.clock.advance(1.0)
    assert seen == [10 <= second < 20 for second in range(30)]
    faults.clock.start(0, 15_000_000)
    assert faults.once("disk_full")
    assert not faults.once("disk_full")
    later = quiet(tmp_path, window)
    later.clock.start(0, 15_000_000)
    assert not later.once("disk_full")
