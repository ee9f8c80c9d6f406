"""Interleaved timing of several contestants, the same for every DSL.

Each contestant is a started child that answers requests (``process.Conversation``):

``{"cmd": "idle", "launches": n, …}`` → ``{"ok": true}``
    Does everything that ``time`` does except launching the kernel.
``{"cmd": "time", "launches": n, …}`` → ``{"ok": true, "ns": [n times in nanoseconds]}``
    Launches n times; whatever keeps launches comparable (flushing a cache, renewing an input)
    happens between them, outside the reported times. With ``batch`` in a request each time is the
    mean over a train of so many launches, and ``host_ns`` in the answer the host's part of one.
``{"ok": false, "error": "…"}``
    Refuses; the text says why.

What a contestant reports about its own time is checked with our clock. The wall time of a
block that it does not report must be explained by the overhead of its harness, which is known
from idle requests, made before the kernel first ran, and from the other contestants. A timer
that was tampered with leaves time unexplained, and it does so in block after block. The check is
as sharp as the harness is lean: what hides in half of the overhead stays unseen.

Where kernels run on the CPU, time that other processes took from the contestant is no sign of
forgery: there the CPU time of the contestant counts instead, if it is less than the wall time.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from croq_fsm.domain.measurement import Block, Reading, Samples
from croq_fsm.errors import CandidateError, CandidateRefused, Contended, EnvironmentMissing
from croq_fsm.measure import answers
from croq_fsm.toolchain.process import Conversation
from croq_fsm.toolchain.workbench import TimingPlan

#: Contestant whose failure is never a candidate's fault.
LIBRARY: Final = "library"

_IDLE_LAUNCHES: Final = 8
_FEWEST_WARMUPS: Final = 2
#: From this many launches on, one more is made first and dropped.
_LEAD_FROM: Final = 4
_REPEATS: Final = 5

_T = TypeVar("_T")


@dataclass(frozen=True)
class Verdict:
    """What was seen on the device beside a block.

    Attributes:
        problem: Why the block must not count, or "".
        clock: Clock of the device now, MHz, where it can be read.
        readings: What the device's sensors said before, in the middle of and after the block.
    """

    problem: str = ""
    clock: float | None = None
    readings: tuple[Reading, ...] = ()


class BlockWatch(Protocol):
    """Looks at the device before and after each block: others on it, clocks, throttling."""

    def before(self, contestant: str) -> Verdict:
        """Called just before a block."""

    def after(self, contestant: str) -> Verdict:
        """Called just after a block."""


class NoWatch:
    """Sees nothing, for devices that have nothing to look at."""

    def before(self, contestant: str) -> Verdict:  # noqa: ARG002 - a null object
        """Nothing to report."""
        return Verdict()

    def after(self, contestant: str) -> Verdict:  # noqa: ARG002 - a null object
        """Nothing to report."""
        return Verdict()


@dataclass(frozen=True)
class Tolerance:
    """Unexplained wall time that an honest contestant may show.

    Attributes:
        factor: Times the known overhead.
        per_block_s: Plus this for each block, seconds.
        per_launch_s: Plus this for each launch, seconds.
        share: Unexplained share of the reported time that is still let pass.
    """

    factor: float = 1.5
    per_block_s: float = 0.5e-3
    per_launch_s: float = 5e-6
    share: float = 0.05


@dataclass(frozen=True)
class Trains:
    """When several launches are timed together, for all contestants of a measurement or for none.

    Attributes:
        launches: Launches of a train.
        below_s: Time of a launch below which events would distort it, seconds.
        host_s: The host's part of a launch above which a train cannot be queued ahead, seconds.
    """

    launches: int = 16
    below_s: float = 20e-6
    host_s: float = 10e-6


#: No trains, for a harness that could time them.
ONE_BY_ONE: Final = Trains(launches=1, below_s=0.0)

#: More fields of a request, from contestant and number of launches.
Options = Callable[[str, int], Mapping[str, object]]


@dataclass(frozen=True)
class _Spent:
    """What a request took.

    Attributes:
        wall: Wall time, seconds.
        cost: The part of it that the contestant must answer for, seconds.
        seconds: Reported launch times.
        host: The host's part of a launch, seconds, where the contestant tells it.
    """

    wall: float
    cost: float
    seconds: list[float]
    host: float | None = None


@dataclass(frozen=True)
class _Idle:
    """What a harness costs without its kernel, seconds.

    Attributes:
        block: A request.
        launch: Each launch, or train of launches.
    """

    block: float = 0.0
    launch: float = 0.0


@dataclass
class _Contestant:
    """One child and what is known about its harness.

    Attributes:
        name: Name in the samples.
        talk: The child.
        launches: Counted launches per block.
        idle: Overhead by launches of a train.
        seconds: Time of a launch, from the warm-up.
        host: The host's part of it, where it is known.
        gaps: Unreported time per launch, of each block.
        reported: Sum of the reported times of each block.
    """

    name: str
    talk: Conversation
    launches: int = 1
    idle: dict[int, _Idle] = field(default_factory=dict)
    seconds: float = 0.0
    host: float | None = None
    gaps: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)

    @property
    def lead(self) -> int:
        """Launches at the head of a block that are not counted."""
        return 1 if self.launches >= _LEAD_FROM else 0

    @property
    def all_launches(self) -> int:
        """Launches of a block."""
        return self.launches + self.lead


def orders(contestants: Sequence[_T], pairs: int, seed: int) -> Iterator[list[_T]]:
    """Random orders, each followed by its mirror image, so that positions balance."""
    rng = random.Random(seed)  # noqa: S311 - an order, no secret
    order = list(contestants)
    for pair in range(pairs):
        if pair % 2:
            order.reverse()
        else:
            rng.shuffle(order)
        yield list(order)


class Interleaver:
    """Takes one interleaved measurement.

    Args:
        conversations: Name → started child.
        plan: What to take.
        deadline_s: Seconds that one request may take.
        process: Identity of this set of fresh processes, recorded with the samples.
        options: More fields for ``idle`` and ``time`` requests.
        watch: Looks at the device around each block.
        tolerance: Unexplained time that is let pass.
        on_cpu: Whether the kernels run on the CPU, so that CPU time tells what they took.
        trains: When launches are timed together; None where the harness times one at a time.
        clock: Our clock, seconds.
    """

    def __init__(
        self,
        conversations: Mapping[str, Conversation],
        plan: TimingPlan,
        *,
        deadline_s: float,
        process: str = "",
        options: Options = lambda _name, _launches: {},
        watch: BlockWatch | None = None,
        tolerance: Tolerance | None = None,
        on_cpu: bool = False,
        trains: Trains | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._contestants = [_Contestant(name, talk) for name, talk in conversations.items()]
        self._plan = plan
        self._deadline_s = deadline_s
        self._process = process
        self._options = options
        self._watch = watch or NoWatch()
        self._tolerance = tolerance or Tolerance()
        self._on_cpu = on_cpu
        self._clock = clock
        # A train of hot launches could not be told from one launch whose answer is found again.
        self._trains = ONE_BY_ONE if trains and plan.l2 != "cold" else trains
        self._batch = 1
        self._dropped: list[str] = []

    def run(self) -> Samples:
        """Calibrate, warm up, take all pairs, check the reported times.

        Raises:
            CandidateCrashed, CandidateHung: See errors; the text names the contestant.
            CandidateRefused: A contestant refuses, answers nonsense, or forges its times.
            Contended: A block stayed disturbed however often it was repeated.
            EnvironmentMissing: The library reference failed.
            DeviceWedged, Drained: See ``process.Conversation``.
        """
        for contestant in self._contestants:
            self._measure_overhead(contestant)
        for contestant in self._contestants:
            self._warm_up(contestant)
        self._choose_method()
        plan = self._plan
        blocks = tuple(
            self._undisturbed_block(contestant, pair)
            for pair, order in enumerate(orders(self._contestants, plan.pairs, plan.seed))
            for contestant in order
        )
        for contestant in self._contestants:
            self._check_honesty(contestant)
        return Samples(
            purpose=self._plan.purpose,
            regime=f"{self._plan.regime} {self._plan.l2}",
            blocks=blocks,
            dropped=tuple(self._dropped),
            process=self._process,
            method=self._method(),
        )

    def _measure_overhead(self, contestant: _Contestant) -> None:
        """Wall time of requests without a kernel, before any kernel has run in the child."""
        for batch in dict.fromkeys((1, self._trains.launches if self._trains else 1)):
            self._batch = batch
            self._timed(contestant, "idle", 1)  # pages and buffers are touched for the first time
            one = min(self._timed(contestant, "idle", 1).cost for _ in range(2))
            many = self._timed(contestant, "idle", _IDLE_LAUNCHES).cost
            launch = max(0.0, (many - one) / (_IDLE_LAUNCHES - 1))
            contestant.idle[batch] = _Idle(max(0.0, one - launch), launch)
        self._batch = 1

    def _warm_up(self, contestant: _Contestant) -> None:
        """Launch for some time, then fit the number of launches to the wanted block."""
        until = self._clock() + self._plan.warmup_s
        done = 0
        for step in itertools.count():
            launches = min(1 << max(0, step - 1), self._plan.max_launches)
            spent = self._timed(contestant, "time", launches)
            done += launches
            if self._clock() >= until and done >= _FEWEST_WARMUPS:
                self._fit(contestant, spent)
                return

    def _fit(self, contestant: _Contestant, spent: _Spent) -> None:
        contestant.seconds, contestant.host = statistics.median(spent.seconds), spent.host
        wanted = math.ceil(self._plan.block_s / (contestant.seconds * self._batch))
        contestant.launches = max(1, min(wanted, self._plan.max_launches))

    def _choose_method(self) -> None:
        """Trains if any contestant is short, and all can be queued ahead of the device."""
        if self._trains is None or self._is_host_slow():
            return
        if min(c.seconds for c in self._contestants) >= self._trains.below_s:
            return
        self._batch = self._trains.launches
        for contestant in self._contestants:
            self._fit(contestant, self._timed(contestant, "time", _LEAD_FROM))

    def _is_host_slow(self) -> bool:
        hosts = [c.host for c in self._contestants if c.host is not None]
        return self._trains is not None and max(hosts, default=0.0) > self._trains.host_s

    def _method(self) -> str:
        """How launches were timed, in words; "" where there is only one way."""
        if self._trains is None:
            return ""
        if self._batch > 1:
            return f"{self._batch} launches between two events"
        short = min(c.seconds for c in self._contestants) < self._trains.below_s
        why = "; the host's part of a launch is too long for more" if short else ""
        return f"one launch between two events{why}"

    def _undisturbed_block(self, contestant: _Contestant, pair: int) -> Block:
        """A block with nobody else on the device; disturbed ones are dropped and repeated."""
        for _ in range(_REPEATS):
            before = self._watch.before(contestant.name)
            problem = before.problem
            if not problem:
                spent = self._timed(contestant, "time", contestant.all_launches)
                after = self._watch.after(contestant.name)
                problem = after.problem
                if not problem:
                    return self._block(contestant, pair, spent, (before, after))
            self._dropped.append(f"pair {pair}, {contestant.name}: {problem}")
        raise Contended(f"disturbed {_REPEATS} times in a row; the last time {self._dropped[-1]}")

    def _block(
        self,
        contestant: _Contestant,
        pair: int,
        spent: _Spent,
        verdicts: tuple[Verdict, Verdict],
    ) -> Block:
        seconds = spent.seconds
        reported = sum(seconds) * self._batch
        contestant.gaps.append((spent.cost - reported) / len(seconds))
        contestant.reported.append(reported)
        return Block(
            contestant=contestant.name,
            pair=pair,
            seconds=tuple(seconds[contestant.lead :]),
            host_seconds=spent.wall,
            clocks=tuple(v.clock for v in verdicts if v.clock is not None),
            readings=verdicts[1].readings,
        )

    def _check_honesty(self, contestant: _Contestant) -> None:
        """Refuse a contestant whose wall time stays unexplained in most of its blocks."""
        launches = contestant.all_launches
        others = [
            statistics.median(other.gaps)
            for other in self._contestants
            if other is not contestant and other.gaps
        ]
        idle = contestant.idle[self._batch]
        own = idle.launch + idle.block / launches
        allowed = self._tolerance.factor * max([own, *others])
        allowed += self._tolerance.per_launch_s + self._tolerance.per_block_s / launches
        unexplained = (statistics.median(contestant.gaps) - allowed) * launches
        reported = statistics.median(contestant.reported)
        if unexplained > self._tolerance.share * reported:
            raise self._blame(
                contestant,
                CandidateRefused(
                    f"reports {reported * 1e3:.3f} ms for {launches * self._batch} launches, but "
                    f"{unexplained * 1e3:.3f} ms more passed than its harness can need; "
                    "its timer cannot be believed"
                ),
            )

    def _timed(self, contestant: _Contestant, command: str, launches: int) -> _Spent:
        """Send one request and see what it takes."""
        request: dict[str, object] = {
            "cmd": command,
            "launches": launches,
            "l2": self._plan.l2,
            "regime": self._plan.regime,
            **({"batch": self._batch} if self._trains else {}),
            **self._options(contestant.name, launches),
        }
        cpu_before = self._cpu(contestant)
        began = self._clock()
        try:
            answer = contestant.talk.ask(request, self._deadline_s)
            wall = self._clock() - began
            cpu_after = self._cpu(contestant)
            seconds = (
                answers.times(answer, launches) if command == "time" else answers.nothing(answer)
            )
        except CandidateError as exc:
            raise self._blame(contestant, exc) from exc
        cost = wall
        if cpu_before is not None and cpu_after is not None:
            cost = min(wall, cpu_after - cpu_before)
        return _Spent(wall, cost, seconds, answers.host_part(answer))

    def _cpu(self, contestant: _Contestant) -> float | None:
        return contestant.talk.cpu_seconds() if self._on_cpu else None

    @staticmethod
    def _blame(contestant: _Contestant, exc: CandidateError) -> Exception:
        """The same error with the contestant's name; the library is never a candidate."""
        if contestant.name == LIBRARY:
            return EnvironmentMissing(f"the library reference failed: {exc}")
        return type(exc)(f"{contestant.name}: {exc}", log=exc.log)
