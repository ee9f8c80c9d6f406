"""Timing of candidates and the library: watch over the device, new inputs, and a last check.

After the last block the output of a launch that was timed is judged: a kernel that computes
only while it is verified is found here.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from croq_fsm.config import Config
from croq_fsm.domain.build import Build
from croq_fsm.domain.measurement import Samples
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateRefused
from croq_fsm.gpu.contention import Neighbours
from croq_fsm.gpu.sensors import Sensors
from croq_fsm.gpu.stability import Steadiness, before_middle_after
from croq_fsm.measure.interleave import ONE_BY_ONE, Interleaver, Trains, Verdict
from croq_fsm.toolchain import croqtile_bench as benches
from croq_fsm.toolchain.process import Conversation
from croq_fsm.toolchain.workbench import Contestant, TimingPlan

#: Bits of the seed of a block. It is drawn when the block begins, so that nobody can have computed
#: beforehand what its launches will be asked.
_SEED_BITS: Final = 48
#: Work and traffic above which no launch is short on any device that we know.
_SHORT_FLOPS: Final = 4e10
_SHORT_BYTES: Final = 96e6
#: Pauses after disturbed blocks, seconds: the first, doubled each time, and the longest.
_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


class Listener:
    """A conversation that remembers the SM clock which the answers report.

    Args:
        talk: The child.

    Attributes:
        halves: Clock in the first and in the second half of the latest block, MHz.
    """

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self.halves: tuple[float, ...] = ()

    def ask(self, request: dict[str, object], deadline_s: float) -> dict[str, object]:
        """See ``process.Conversation.ask``."""
        answer = benches.candid(self._talk.ask(request, deadline_s))
        clocks = answer.get("mhz")
        listed = clocks if isinstance(clocks, list) else []
        self.halves = tuple(float(c) for c in listed if isinstance(c, float | int))
        return answer

    @property
    def clock(self) -> float | None:
        """Mean clock in the latest block, MHz."""
        return statistics.fmean(self.halves) if self.halves else None

    def cpu_seconds(self) -> float | None:
        """See ``process.Conversation.cpu_seconds``."""
        return self._talk.cpu_seconds()

    def close(self) -> None:
        """See ``process.Conversation.close``."""
        self._talk.close()


class DeviceWatch:
    """Looks for other users and for unsteady clocks after each block; pauses when it finds some.

    Args:
        neighbours: Who else is there; None when the driver cannot be asked.
        listeners: Contestant → its conversation.
        sensors: Sensors of the device.
        regime: In which regime blocks are taken.
        pause: Waits so many seconds.
    """

    def __init__(
        self,
        neighbours: Neighbours | None,
        listeners: Mapping[str, Listener],
        sensors: Sensors,
        regime: str,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._neighbours = neighbours
        self._listeners = listeners
        self._sensors = sensors
        self._regime = regime
        self._pause = pause
        self._steady = Steadiness()
        self._first = True
        self._bad = 0

    def before(self, contestant: str) -> Verdict:  # noqa: ARG002 - the device is one for all
        """The look after a block is the look before the next one."""
        problem = self._look() if self._first else ""
        self._first = bool(problem)
        self._rest(problem)
        self._sensors.begin()
        return Verdict(problem=problem)

    def after(self, contestant: str) -> Verdict:
        """Others on the device, and what its sensors and the contestant's own spins have shown."""
        readings = self._sensors.end()
        listener = self._listeners[contestant]
        problem = self._look()
        # Elsewhere the spins stand before the load, or at a random place in it.
        halves = listener.halves if self._regime == "isolated" else ()
        problem = problem or self._steady.judge(contestant, readings, halves)
        self._rest(problem)
        return Verdict(problem, listener.clock, before_middle_after(readings))

    def _look(self) -> str:
        return self._neighbours.foreign(len(self._listeners)) if self._neighbours else ""

    def _rest(self, problem: str) -> None:
        """What disturbs may pass: wait some time, longer each time in a row."""
        self._bad = self._bad + 1 if problem else 0
        if problem:
            self._pause(min(_PAUSE_S * 2 ** (self._bad - 1), _LONGEST_PAUSE_S))


class Timing:
    """One interleaved measurement.

    Args:
        programs: Starts the two programs.
        config: Deadlines.
        cache: Folder that the builds' paths are relative to.
        neighbours: Watch over the device, or None.
        sensors: Sensors of the device.
    """

    def __init__(
        self,
        programs: benches.Programs,
        config: Config,
        cache: Path,
        neighbours: Neighbours | None,
        sensors: Sensors,
    ) -> None:
        self._programs = programs
        self._config = config
        self._cache = cache
        self._neighbours = neighbours
        self._sensors = sensors

    def run(
        self, contestants: Mapping[str, Contestant], task: Task, plan: TimingPlan, folder: Path
    ) -> Samples:
        """See ``Workbench.time``."""
        with contextlib.ExitStack() as stack:
            listeners = {
                name: Listener(stack.enter_context(self._start(name, contestant, task, folder)))
                for name, contestant in contestants.items()
            }
            samples = self._interleave(listeners, plan, task)
            for name, contestant in contestants.items():
                if isinstance(contestant, Build):
                    self._check_kept(name, listeners[name], task, folder)
        return samples

    def _start(
        self, name: str, contestant: Contestant, task: Task, folder: Path
    ) -> contextlib.AbstractContextManager[Conversation]:
        if isinstance(contestant, Build):
            own = folder / f"bench-{name}"
            own.mkdir()
            return self._programs.bench(self._cache / contestant.binary, task, own, name)
        return self._programs.trusted(task, folder)

    def _interleave(
        self, listeners: Mapping[str, Listener], plan: TimingPlan, task: Task
    ) -> Samples:
        def options(name: str, launches: int) -> Mapping[str, object]:  # noqa: ARG001 - port
            return {"seed": secrets.randbits(_SEED_BITS)}

        samples = Interleaver(
            listeners,
            plan,
            deadline_s=self._config.deadlines.block_s,
            process=secrets.token_hex(8),
            options=options,
            watch=DeviceWatch(self._neighbours, listeners, self._sensors, plan.regime),
            trains=Trains() if may_be_short(task) else ONE_BY_ONE,
        ).run()
        return samples.model_copy(update={"telemetry": self._sensors.problem})

    def _check_kept(self, name: str, talk: Listener, task: Task, folder: Path) -> None:
        """Judge the whole output of a timed launch."""
        path = folder / f"bench-{name}" / "kept.bin"
        seconds = self._config.deadlines.verify_s
        kept = talk.ask({"cmd": "kept", "out": str(path)}, seconds)
        seed = kept.get("seed")
        if not isinstance(seed, int):
            raise CandidateRefused(f"{name}: the harness kept no output of a timed launch")
        if kept.get("guard_damage") != 0:
            raise CandidateRefused(f"{name}: a timed launch wrote outside of its buffers")
        case = benches.cases(task, (seed,))[-1]
        with self._programs.trusted(task, folder) as judge:
            judged = benches.judge_output(case, judge, path, seconds)
        benches.discard(path)
        check = benches.verdict(case, {}, judged, task.shape[1], may_differ=False)
        if not check.passed:
            raise CandidateRefused(
                f"{name}: a timed launch computed a wrong result: {check.detail}"
            )


def may_be_short(task: Task) -> bool:
    """Whether a launch may be so short that events distort it; decided before any is timed."""
    return task.flops < _SHORT_FLOPS and task.nbytes < _SHORT_BYTES
