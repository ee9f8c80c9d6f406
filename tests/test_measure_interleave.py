"""The interleaver, on children that live in simulated time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from croq_fsm.domain.measurement import Reading
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateHung,
    CandidateRefused,
    Contended,
    EnvironmentMissing,
)
from croq_fsm.measure import stats
from croq_fsm.measure.interleave import Interleaver, Trains, Verdict
from croq_fsm.toolchain.workbench import TimingPlan


class Clock:
    """Simulated time, seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Seconds now."""
        return self.now


@dataclass
class FakeChild:
    """A contestant whose launches advance the clock.

    Attributes:
        kernel_s: Real time of a launch.
        claim: Share of the real time that it reports.
        overhead_s: Harness time per launch.
        noise: Relative noise of a launch.
        answer: Replaces the answer to ``time``.
        hiccup: Chance that the host loses 30 ms outside the kernel.
        host_ns: What it says about the host's part of a launch.
        per_event_s: What two events add to each time that is taken with them.
    """

    clock: Clock
    kernel_s: float = 1e-3
    claim: float = 1.0
    overhead_s: float = 2e-4
    noise: float = 0.005
    answer: Callable[[int], dict[str, object]] | None = None
    hiccup: float = 0.0
    host_ns: float | None = None
    per_event_s: float = 0.0
    drift: Callable[[float], float] = lambda _now: 1.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(5))

    def ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, object]:
        """Serve a request."""
        assert deadline_s > 0
        self.requests.append(request)
        launches = request["launches"]
        self.clock.now += 1e-4 + launches * self.overhead_s
        if self.rng.random() < self.hiccup:
            self.clock.now += 0.03
        if request["cmd"] == "idle":
            return {"ok": True}
        if self.answer is not None:
            return self.answer(launches)
        batch = request.get("batch", 1)
        times = [
            self.kernel_s * self.drift(self.clock.now) * self.rng.lognormvariate(0, self.noise)
            + self.per_event_s / batch
            for _ in range(launches)
        ]
        self.clock.now += sum(times) * batch
        told = {} if self.host_ns is None else {"host_ns": self.host_ns}
        return {"ok": True, **told, "ns": [value * 1e9 * self.claim for value in times]}

    def close(self) -> None:
        """Nothing to end."""


@pytest.fixture
def clock() -> Clock:
    """Simulated time."""
    return Clock()


def take(clock: Clock, children: dict[str, Any], **more: Any) -> Any:
    """One measurement of the children."""
    plan = more.pop("plan", TimingPlan(purpose="pairs", pairs=12))
    return Interleaver(children, plan, deadline_s=10.0, clock=clock, **more).run()


def test_each_pair_holds_one_block_of_each(clock: Clock) -> None:
    """Blocks are interleaved in balanced random order, and carry their pair."""
    children = {name: FakeChild(clock) for name in ("best", "candidate", "library")}
    samples = take(clock, children, process="p1")
    assert len(samples.blocks) == 36
    for pair in range(12):
        trio = samples.blocks[3 * pair : 3 * pair + 3]
        assert {block.contestant for block in trio} == set(children)
        assert {block.pair for block in trio} == {pair}
    orders = [tuple(b.contestant for b in samples.blocks[i : i + 3]) for i in range(0, 36, 3)]
    assert all(orders[i] == orders[i + 1][::-1] for i in range(0, 12, 2))
    assert len(set(orders)) > 2
    assert (samples.process, samples.regime) == ("p1", "isolated cold")


def test_order_depends_on_the_seed_alone(clock: Clock) -> None:
    """The same seed gives the same order, another seed another one."""

    def order(seed: int) -> list[str]:
        children = {name: FakeChild(clock) for name in ("best", "candidate")}
        plan = TimingPlan(purpose="pairs", pairs=12, seed=seed)
        return [block.contestant for block in take(clock, children, plan=plan).blocks]

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize(
    ("kernel_s", "launches"), [(1e-6, 50), (1e-3, 50), (5e-3, 10), (0.02, 3), (0.5, 1)]
)
def test_launches_fit_the_wanted_block(clock: Clock, kernel_s: float, launches: int) -> None:
    """A block lasts about block_s, within one launch and the upper bound."""
    child = FakeChild(clock, kernel_s=kernel_s, noise=0.0)
    samples = take(clock, {"a": child})
    assert {len(block.seconds) for block in samples.blocks} == {launches}


def test_warm_up_lasts_and_is_dropped(clock: Clock) -> None:
    """Each contestant runs for warmup_s before its first counted block."""
    child = FakeChild(clock, kernel_s=1e-3, noise=0.0)
    samples = take(clock, {"a": child}, plan=TimingPlan(purpose="pairs", pairs=5, warmup_s=0.2))
    timed = [request["launches"] for request in child.requests if request["cmd"] == "time"]
    counted = len(samples.blocks) * 51
    assert sum(timed) - counted > 0.2 / 1.3e-3


def test_drift_of_the_machine_cancels(clock: Clock) -> None:
    """5 % slow-down during the measurement leaves the ratio of 3 % visible."""

    def drift(now: float) -> float:
        return 1.0 + min(0.05, now / 60)

    children = {
        "best": FakeChild(clock, kernel_s=1.03e-3, drift=drift, rng=random.Random(1)),
        "candidate": FakeChild(clock, kernel_s=1e-3, drift=drift, rng=random.Random(2)),
    }
    result = stats.estimate(take(clock, children), "best", "candidate", 1)
    assert result.low > 1.02
    assert result.high < 1.04


@pytest.mark.parametrize("claim", [0.0001, 0.5, 0.8])
@pytest.mark.parametrize("alone", [True, False])
def test_forged_timer_is_refused(clock: Clock, claim: float, alone: bool) -> None:
    """A contestant that reports clearly less than our clock saw is refused by name."""
    children = {"candidate": FakeChild(clock, claim=claim)}
    if not alone:
        children["best"] = FakeChild(clock)
    with pytest.raises(CandidateRefused, match=r"^candidate: reports .* cannot be believed"):
        take(clock, children)


@pytest.mark.parametrize("kernel_s", [2e-6, 1e-3, 0.2])
def test_honest_contestants_pass_on_a_busy_host(clock: Clock, kernel_s: float) -> None:
    """Hiccups of the host in some blocks, and different overheads, are no forgery."""
    children = {
        "candidate": FakeChild(clock, kernel_s=kernel_s, hiccup=0.2, overhead_s=3e-4),
        "library": FakeChild(clock, kernel_s=kernel_s, hiccup=0.2, overhead_s=6e-4),
    }
    assert len(take(clock, children).blocks) == 24


@pytest.mark.parametrize(
    "answer",
    [
        lambda _n: {"ok": True},
        lambda _n: {"ok": True, "ns": [1.0]},
        lambda n: {"ok": True, "ns": [0] * n},
        lambda n: {"ok": True, "ns": [-5] * n},
        lambda n: {"ok": True, "ns": [True] * n},
        lambda n: {"ok": True, "ns": ["7"] * n},
        lambda n: {"ok": True, "ns": [1e400] * n},
        lambda _n: {"ok": False, "error": "launch failed"},
        lambda _n: {"ns": [1.0]},
    ],
)
def test_impossible_answers_are_refused(
    clock: Clock, answer: Callable[[int], dict[str, object]]
) -> None:
    """Times that cannot be, wrong counts and refusals name the contestant."""
    fake = FakeChild(clock, answer=lambda n: answer(n) if n > 1 else {"ok": True, "ns": [9.0]})
    with pytest.raises(CandidateRefused, match=r"^candidate: the harness"):
        take(clock, {"candidate": fake, "best": FakeChild(clock)})


@pytest.mark.parametrize("error", [CandidateCrashed, CandidateHung, CandidateRefused])
def test_errors_name_the_contestant_and_keep_their_type(
    clock: Clock, error: type[CandidateCrashed]
) -> None:
    """A crash of one contestant is told with its name and log."""

    def fail(_launches: int) -> dict[str, object]:
        raise error("bench was killed by SIGSEGV", log="the log")

    with pytest.raises(error, match=r"^best: bench was killed") as caught:
        take(clock, {"candidate": FakeChild(clock), "best": FakeChild(clock, answer=fail)})
    assert caught.value.log == "the log"


def test_failing_library_is_the_environments_fault(clock: Clock) -> None:
    """No candidate is blamed when the reference does not work."""

    def fail(_launches: int) -> dict[str, object]:
        raise CandidateCrashed("judge ended")

    with pytest.raises(EnvironmentMissing, match="library reference failed"):
        take(clock, {"candidate": FakeChild(clock), "library": FakeChild(clock, answer=fail)})


class Watch:
    """Finds fault with some blocks."""

    def __init__(self, bad: Callable[[int], bool]) -> None:
        self.count = 0
        self._bad = bad

    def before(self, contestant: str) -> Verdict:
        """Never finds fault; reads a clock."""
        assert contestant
        return Verdict(clock=1980.0)

    def after(self, contestant: str) -> Verdict:
        """Finds fault as told."""
        assert contestant
        self.count += 1
        return Verdict(problem="pid 7 came" if self._bad(self.count) else "", clock=1975.0)


def test_disturbed_blocks_are_dropped_and_repeated(clock: Clock) -> None:
    """A bad verdict costs a repetition, is recorded, and never enters the samples."""
    children = {name: FakeChild(clock) for name in ("best", "candidate")}
    samples = take(clock, children, watch=Watch(lambda count: count in (3, 4, 9)))
    assert len(samples.blocks) == 24
    assert len(samples.dropped) == 3
    assert "pid 7 came" in samples.dropped[0]
    assert all(block.clocks == (1980.0, 1975.0) for block in samples.blocks)


def test_lasting_disturbance_is_contention(clock: Clock) -> None:
    """Repetition is bounded; then the measurement is postponed, and nobody is blamed."""
    with pytest.raises(Contended, match="pid 7 came"):
        take(clock, {"best": FakeChild(clock)}, watch=Watch(lambda count: count > 4))


def test_options_reach_the_child(clock: Clock) -> None:
    """A workbench can add fields for each request."""
    child = FakeChild(clock)
    take(clock, {"best": child}, options=lambda name, n: {"who": name, "shifts": [0] * n})
    assert all(r["who"] == "best" and len(r["shifts"]) == r["launches"] for r in child.requests)
    assert {r["l2"] for r in child.requests} == {"cold"}


@dataclass
class MeteredChild(FakeChild):
    """A child on a crowded CPU: half of the wall time goes to others."""

    forged: float = 1.0
    cpu: float = 0.0

    def ask(self, request: dict[str, Any], deadline_s: float) -> dict[str, object]:
        """Answer as the plain child does, late, with the times made smaller."""
        before = self.clock.now
        answer = super().ask(request, deadline_s)
        took = self.clock.now - before
        self.cpu += took
        self.clock.now += took
        if isinstance(answer.get("ns"), list):
            answer["ns"] = [ns * self.forged for ns in answer["ns"]]  # type: ignore[attr-defined]
        return answer

    def cpu_seconds(self) -> float:
        """What the scheduler counted."""
        return self.cpu


def test_a_crowded_cpu_is_no_forgery(clock: Clock) -> None:
    """Time that other processes took is not held against an honest kernel."""
    child = MeteredChild(clock, kernel_s=1e-3, noise=0.0)
    plan = TimingPlan(purpose="pairs", pairs=5)
    samples = Interleaver(
        {"candidate": child}, plan, deadline_s=1.0, on_cpu=True, clock=clock
    ).run()
    assert len(samples.blocks) == 5


def test_a_forged_timer_is_found_on_a_crowded_cpu(clock: Clock) -> None:
    """CPU time that is not reported is held against it."""
    child = MeteredChild(clock, kernel_s=1e-3, noise=0.0, forged=0.7)
    plan = TimingPlan(purpose="pairs", pairs=5)
    with pytest.raises(CandidateRefused, match="timer cannot be believed"):
        Interleaver({"candidate": child}, plan, deadline_s=1.0, on_cpu=True, clock=clock).run()


def test_short_kernels_are_timed_in_trains(clock: Clock) -> None:
    """What two events cost is spread over a train, and the times are still those of a launch."""
    children = {
        name: FakeChild(clock, kernel_s=kernel_s, per_event_s=1.6e-6, noise=0.0)
        for name, kernel_s in (("candidate", 6e-6), ("library", 7e-6))
    }
    alone = take(clock, children)
    trains = take(clock, children, trains=Trains())
    assert (alone.method, trains.method) == ("", "16 launches between two events")
    assert stats.block_seconds(alone, "library") == pytest.approx(8.6e-6)
    assert stats.block_seconds(trains, "library") == pytest.approx(7.1e-6)
    assert stats.block_seconds(trains, "candidate") == pytest.approx(6.1e-6)


@pytest.mark.parametrize(("other_s", "batch"), [(6e-6, 16), (19e-6, 16), (1e-3, 16)])
def test_all_contestants_are_timed_in_the_same_way(
    clock: Clock, other_s: float, batch: int
) -> None:
    """One short contestant is enough, and then no block of any is timed otherwise."""
    children = {
        "candidate": FakeChild(clock, kernel_s=7e-6),
        "library": FakeChild(clock, kernel_s=other_s),
    }
    samples = take(clock, children, trains=Trains())
    assert len(samples.blocks) == 24
    for child in children.values():
        counted = [r for r in child.requests if r["cmd"] == "time"][-12:]
        assert {r["batch"] for r in counted} == {batch}


def test_long_kernels_and_slow_hosts_are_timed_one_by_one(clock: Clock) -> None:
    """A train needs short kernels, and a host that can queue it ahead of the device."""
    long = take(clock, {"a": FakeChild(clock, kernel_s=25e-6)}, trains=Trains())
    assert long.method == "one launch between two events"
    slow = FakeChild(clock, kernel_s=6e-6, host_ns=31e3)
    samples = take(clock, {"a": slow}, trains=Trains())
    assert samples.method.startswith("one launch between two events; the host's part")
    assert {r["batch"] for r in slow.requests if r["cmd"] == "time"} == {1}


def test_hot_launches_make_no_train(clock: Clock) -> None:
    """In a train on one set of operands each launch but the first finds its answer there."""
    child = FakeChild(clock, kernel_s=6e-6)
    plan = TimingPlan(purpose="pairs", pairs=5, l2="hot")
    samples = take(clock, {"a": child}, trains=Trains(), plan=plan)
    assert {request["batch"] for request in child.requests} == {1}
    assert samples.method == "one launch between two events"


def test_a_timer_forged_in_trains_is_refused(clock: Clock) -> None:
    """All launches of a train are held against the wall time, not one of them."""
    children = {"candidate": FakeChild(clock, kernel_s=15e-6, claim=0.1, overhead_s=2e-5)}
    with pytest.raises(CandidateRefused, match=r"for 816 launches, .* cannot be believed"):
        take(clock, children, trains=Trains())


def test_readings_stay_with_their_block(clock: Clock) -> None:
    """What the sensors said around a block is stored with it."""

    class Sensors(Watch):
        def after(self, contestant: str) -> Verdict:
            assert contestant
            self.count += 1
            return Verdict(readings=(Reading(at_s=0.0, power_w=float(self.count)),))

    children = {"best": FakeChild(clock)}
    samples = take(clock, children, watch=Sensors(lambda _count: False))
    assert [b.readings[0].power_w for b in samples.blocks] == list(range(1, 13))
