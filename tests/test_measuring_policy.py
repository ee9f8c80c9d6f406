"""What is not believed, what is confirmed twice, and a noise floor that is of the hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from croq_fsm.config import Measure, load
from croq_fsm.domain.decision import Sight, rule
from croq_fsm.domain.device import Device
from croq_fsm.domain.measurement import Estimate
from croq_fsm.domain.plausible import SLACK, floor_seconds
from croq_fsm.domain.states import Decision, State
from croq_fsm.domain.task import Task
from croq_fsm.gpu.device import make_device
from croq_fsm.measure import stats
from croq_fsm.validation import validate
from support.bench import TASK, Bench
from support.scripted import ScriptedIdeator, ScriptedWorkbench

#: The bench writes its context pack there.
SUMMARY = {"storage.compaction_summary": "summary/{dsl}/summary.md"}
POLICY = Measure().decision_policy(0.002)
H200 = make_device(
    {"name": "NVIDIA H200", "capability": 90, "sms": 132, "max_sm_mhz": 1980}, {"name": "H200"}
)


def estimate(ratio: float, pairs: int = 18, reach: float = 0.002) -> Estimate:
    """An estimate with a narrow interval."""
    return Estimate(ratio=ratio, low=ratio * (1 - reach), high=ratio * (1 + reach), pairs=pairs)


def matmul(dtype: str, *shape: int) -> Task:
    """A task on a device."""
    return Task(dsl="cuda", operator="matmul", dtype=dtype, shape=shape, kernel="", model="test")


def test_the_floor_is_what_the_peaks_allow() -> None:
    """Operations for large products, traffic for thin ones, and no traffic when hot."""
    large = matmul("f16", 8192, 8192, 8192)
    assert H200.peak_flops is not None
    assert floor_seconds(large, H200, "cold") == pytest.approx(
        SLACK * large.flops / H200.peak_flops
    )
    thin = matmul("f16", 16384, 16, 16384)
    cold, hot = (floor_seconds(thin, H200, l2) for l2 in ("cold", "hot"))
    assert cold == pytest.approx(SLACK * thin.nbytes / 4.8e12)
    assert hot is not None
    assert cold is not None
    assert hot < cold


def test_what_was_only_measured_is_no_floor() -> None:
    """A peak without a named source bounds nothing: a quiet hour may exceed it."""
    assert "132 multiprocessors x 4096 FLOP x 1980 MHz" in H200.peak_source
    cpu = Device(key="cpu", name="cpu", uuid="1", peak_flops=1e9, peak_bandwidth=1e9)
    assert floor_seconds(matmul("f16", 1024, 1024, 1024), cpu, "cold") is None


@pytest.mark.parametrize("phase", ["screen", "pairs", "confirm"])
@pytest.mark.parametrize("greedy", [False, True])
def test_an_impossible_time_is_quarantined_in_each_phase(phase: str, greedy: bool) -> None:
    """Whatever the statistics say; a time just above the floor is judged as usual."""
    settings = Measure(policy="greedy" if greedy else "statistical")
    policy = settings.decision_policy(0.001).__class__(
        **{**settings.decision_policy(0.001).__dict__, "floor_s": 1e-5}
    )
    ruling = rule(phase, estimate(1.2), policy, Sight(seconds=9.9e-6))  # type: ignore[arg-type]
    assert (ruling.decision, ruling.kind) == (Decision.RUN_FAIL, "quarantined")
    assert "9.900 us is less than the 10.000 us" in ruling.reason
    honest = rule(phase, estimate(1.2), policy, Sight(seconds=1.01e-5))  # type: ignore[arg-type]
    assert honest.kind != "quarantined"


@pytest.mark.parametrize(("ratio", "again"), [(1.6, True), (1.4, False), (0.45, True)])
def test_an_incredible_screen_is_taken_twice(ratio: float, again: bool) -> None:
    """Half as much more, or half: looked at once more beside the best, then believed."""
    first = rule("screen", estimate(ratio, POLICY.screen_pairs), POLICY)
    assert (first.next_phase == "screen" and first.decision is None) is again
    second = rule("screen", estimate(ratio, 2 * POLICY.screen_pairs), POLICY)
    assert second.decision is Decision.DISCARD or second.next_phase == "pairs"


@pytest.mark.parametrize(
    ("ratio", "to_library", "twice"),
    [(2.1, None, True), (1.2, 1.11, True), (1.2, 1.09, False), (1.9, 0.9, False)],
)
def test_what_astonishes_is_confirmed_twice(
    ratio: float, to_library: float | None, twice: bool
) -> None:
    """More than twice the best, or a tenth above the library."""
    once = rule("confirm", estimate(ratio), POLICY, Sight(to_library=to_library))
    if not twice:
        assert once.decision is Decision.KEEP
        return
    assert (once.decision, once.next_phase) == (None, "confirm")
    assert once.next_pairs == POLICY.confirm_pairs
    both = Sight(to_library=to_library, windows=2, halves=(ratio, ratio))
    assert rule("confirm", estimate(ratio, 36), POLICY, both).decision is Decision.KEEP
    one = Sight(to_library=to_library, windows=2, halves=(2 * ratio, 0.99))
    assert rule("confirm", estimate(ratio, 36), POLICY, one).decision is Decision.DISCARD


def unsound(bench: Bench) -> set[str]:
    """What validate finds; commits are looked for elsewhere."""
    kinds = {e.kind for e in validate(bench.root, trailers=lambda _id: {}).errors}
    return {kind for kind in kinds if "commit" not in kind}


def phases(bench: Bench) -> list[str]:
    """Purposes of the measurements, in order."""
    return [call.removeprefix("time ") for call in bench.workbench.calls if "time" in call]


def test_a_session_confirms_twice_what_astonishes(tmp_path: Path) -> None:
    """A kernel that is three times as fast is kept, after two screens and two confirmations."""
    config = load(None, {"measure.final_pairs": 0, **SUMMARY})
    task = TASK.model_copy(update={"rounds": 1})
    bench = Bench(tmp_path, ScriptedIdeator([{"TIME_US": "300"}]), config=config, task=task)
    session = bench.run()
    assert session.counts == {Decision.KEEP: 1}
    confirmed = phases(bench).count("confirm") * config.measure.pairs_per_process
    assert phases(bench).count("screen") == 2
    assert confirmed == 2 * config.measure.confirm_pairs
    assert unsound(bench) == set()


def test_an_impossible_kernel_is_never_kept(tmp_path: Path) -> None:
    """It owns no iteration, is no base, and the record is sound."""

    class Bounded(ScriptedWorkbench):
        """On a device whose peaks have a source."""

        def device(self) -> Device:
            return (
                super()
                .device()
                .model_copy(update={"peak_flops": 2e11, "peak_source": "a data sheet"})
            )

    task = TASK.model_copy(update={"rounds": 2})
    ideator = ScriptedIdeator([{"TIME_US": "200"}, {"TIME_US": "900"}])
    bench = Bench(tmp_path, ideator, config=load(None, SUMMARY), task=task)
    bench.workbench = Bounded(bench.root.cache)
    session = bench.run()
    assert session.counts == {Decision.RUN_FAIL: 1, Decision.KEEP: 1}
    with bench.repository.read() as reader:
        rounds = reader.rounds(session.id)
        names = [it.name for it in reader.iterations(session.id)]
    assert rounds[0].reason.startswith("quarantined: ")
    assert rounds[0].iteration is None
    assert names == ["iter000_blas", "iter001_draft", "iter002_speed"]
    assert unsound(bench) == set()


def test_the_noise_floor_is_measured_again_every_so_many_rounds(tmp_path: Path) -> None:
    """In the window of a screen, by the best against itself; the session goes by the new one."""
    config = load(None, {"measure.noise_every": 2, "measure.final_pairs": 0})
    ideator = ScriptedIdeator([{"TIME_US": str(1100 + n)} for n in range(2)])
    bench = Bench(tmp_path, ideator, config=config, task=TASK.model_copy(update={"rounds": 2}))
    session = bench.run()
    assert session.state is State.DONE
    with bench.repository.read() as reader:
        taken = {round_: reader.measurements_of_round(session.id, round_) for round_ in (0, 1, 2)}
    noise = {round_: [m for m in found if m.kind == "noise"] for round_, found in taken.items()}
    assert [len(noise[round_]) for round_ in (0, 1, 2)] == [1, 0, 1]
    samples = noise[2][0].samples
    assert samples is not None
    assert {b.contestant for b in samples.blocks} == {"a", "b"}
    assert session.noise == stats.noise_floor(samples)
    assert session.noise != stats.noise_floor(noise[0][0].samples)  # type: ignore[arg-type]
