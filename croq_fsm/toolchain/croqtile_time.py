"""Timing of candidates and the library: watch over the device, new inputs, and a last check.

After the last block the output of a launch that was timed is judged: a kernel that computes
only while it is verified is found here.
"""

from __future__ import annotations

import contextlib
import secrets
import statistics
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from croq_fsm.config import Config
from croq_fsm.domain.build import Build
from croq_fsm.domain.measurement import Samples
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateRefused
from croq_fsm.gpu.contention import Neighbours
from croq_fsm.measure.interleave import Interleaver, Verdict
from croq_fsm.toolchain import croqtile_bench as benches
from croq_fsm.toolchain.process import Conversation
from croq_fsm.toolchain.workbench import Contestant, TimingPlan

#: Distance of the input seeds of two blocks.
_SEED_STEP: Final = 7919


class Listener:
    """A conversation that remembers the SM clock which the answers report.

    Args:
        talk: The child.
    """

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self.clock: float | None = None

    def ask(self, request: dict[str, object], deadline_s: float) -> dict[str, object]:
        """See ``process.Conversation.ask``."""
        answer = benches.candid(self._talk.ask(request, deadline_s))
        clocks = answer.get("mhz")
        numbers = (
            [c for c in clocks if isinstance(c, float | int)] if isinstance(clocks, list) else []
        )
        self.clock = statistics.fmean(numbers) if numbers else None
        return answer

    def cpu_seconds(self) -> float | None:
        """See ``process.Conversation.cpu_seconds``."""
        return self._talk.cpu_seconds()

    def close(self) -> None:
        """See ``process.Conversation.close``."""
        self._talk.close()


class DeviceWatch:
    """Looks for other users of the device after each block, and before the first.

    Args:
        neighbours: Who else is there; None when the driver cannot be asked.
        listeners: Contestant → its conversation.
    """

    def __init__(self, neighbours: Neighbours | None, listeners: Mapping[str, Listener]) -> None:
        self._neighbours = neighbours
        self._listeners = listeners
        self._first = True

    def before(self, contestant: str) -> Verdict:  # noqa: ARG002 - the device is one for all
        """The look after a block is the look before the next one."""
        problem = self._look() if self._first else ""
        self._first = False
        return Verdict(problem=problem)

    def after(self, contestant: str) -> Verdict:
        """Others on the device, and the clock that the contestant's own spins have shown."""
        return Verdict(problem=self._look(), clock=self._listeners[contestant].clock)

    def _look(self) -> str:
        return self._neighbours.foreign() if self._neighbours else ""


class Timing:
    """One interleaved measurement.

    Args:
        programs: Starts the two programs.
        config: Deadlines.
        cache: Folder that the builds' paths are relative to.
        neighbours: Watch over the device, or None.
    """

    def __init__(
        self,
        programs: benches.Programs,
        config: Config,
        cache: Path,
        neighbours: Neighbours | None,
    ) -> None:
        self._programs = programs
        self._config = config
        self._cache = cache
        self._neighbours = neighbours

    def run(
        self, contestants: Mapping[str, Contestant], task: Task, plan: TimingPlan, folder: Path
    ) -> Samples:
        """See ``Workbench.time``."""
        with contextlib.ExitStack() as stack:
            listeners = {
                name: Listener(stack.enter_context(self._start(name, contestant, task, folder)))
                for name, contestant in contestants.items()
            }
            samples = self._interleave(listeners, plan)
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

    def _interleave(self, listeners: Mapping[str, Listener], plan: TimingPlan) -> Samples:
        blocks: Counter[str] = Counter()

        def options(name: str, launches: int) -> Mapping[str, object]:  # noqa: ARG001 - port
            blocks[name] += 1
            return {"seed": plan.seed + _SEED_STEP * blocks[name]}

        return Interleaver(
            listeners,
            plan,
            deadline_s=self._config.deadlines.block_s,
            process=secrets.token_hex(8),
            options=options,
            watch=DeviceWatch(self._neighbours, listeners),
        ).run()

    def _check_kept(self, name: str, talk: Listener, task: Task, folder: Path) -> None:
        """Judge the whole output of a timed launch."""
        path = folder / f"bench-{name}" / "kept.bin"
        seconds = self._config.deadlines.verify_s
        kept = talk.ask({"cmd": "kept", "out": str(path)}, seconds)
        seed = kept.get("seed")
        if not isinstance(seed, int):
            raise CandidateRefused(f"{name}: the harness kept no output of a timed launch")
        case = benches.cases(task, (seed,))[-1]
        with self._programs.trusted(task, folder) as judge:
            judged = benches.judge_output(case, judge, path, seconds)
        benches.discard(path)
        check = benches.verdict(case, {}, judged, task.shape[1], may_differ=False)
        if not check.passed:
            raise CandidateRefused(
                f"{name}: a timed launch computed a wrong result: {check.detail}"
            )
