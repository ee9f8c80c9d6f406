"""Client of the judge child: inputs, verdicts and the library reference of the CPU kernels."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import croq_fsm
from croq_fsm.domain.measurement import Check
from croq_fsm.domain.shapes import format_shape
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateError, EnvironmentMissing
from croq_fsm.toolchain.process import Command, Conversation, Runner

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Judge:
    """One running judge.

    Args:
        talk: The child.
        deadline_s: Seconds that one request may take.
    """

    def __init__(self, talk: Conversation, deadline_s: float) -> None:
        self.talk = talk
        self._deadline_s = deadline_s

    def make(self, kind: str, seed: int) -> Path:
        """Inputs of a case, one behind the other in a file."""
        return Path(str(self._ask({"cmd": "make", "kind": kind, "seed": seed})["inputs"]))

    def load(self, content: int) -> None:
        """Get ready to time the library, which has to be right on some content."""
        self._ask({"cmd": "load", "content": content})

    def check(self, name: str, output: Path, kind: str, seed: int, shift: tuple[int, int]) -> Check:
        """Compare an output file with the reference of a case."""
        case: dict[str, object] = {"kind": kind, "seed": seed, "down": shift[0], "right": shift[1]}
        return self._check(name, case | {"output": str(output)})

    def check_fresh(self, name: str, output: Path, content: int) -> Check:
        """Compare the output of a timed launch with a reference made for it."""
        return self._check(name, {"content": content, "output": str(output)})

    def problem(self, proofs: Path, contents: list[int], vectors: list[int]) -> str:
        """What the proofs of a block say against its launches; empty when nothing."""
        request: dict[str, object] = {"cmd": "prove", "contents": contents, "vectors": vectors}
        return str(self._ask(request | {"proofs": str(proofs)})["problem"])

    def _check(self, name: str, request: dict[str, object]) -> Check:
        answer = self._ask({"cmd": "check", **request})
        return Check(
            name=name,
            rung="verify",
            passed=answer["passed"] is True,
            rel_error=_number(answer["rel_error"]),
            max_error=_number(answer["max_error"]),
            wrong=_count(answer["wrong"]),
            total=_count(answer["total"]),
            detail=str(answer["detail"]),
        )

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        try:
            answer = self.talk.ask(request, self._deadline_s)
        except CandidateError as exc:
            # The judge is ours: whatever happens to it is not the candidate's doing.
            raise EnvironmentMissing(f"the judge failed: {exc}") from exc
        if answer.get("ok") is not True:
            raise EnvironmentMissing(f"the judge cannot go on: {answer.get('error')}")
        return answer


class Judges:
    """Starts judges.

    Args:
        runner: Starts children.
        folder: Where cases are kept.
    """

    def __init__(self, runner: Runner, folder: Path) -> None:
        self._runner = runner
        self._folder = folder

    @contextmanager
    def start(
        self,
        task: Task,
        cwd: Path,
        deadline_s: float,
        *,
        threads: int,
        helper: Path | None = None,
        cpus: tuple[int, ...] = (),
    ) -> Iterator[Judge]:
        """A judge for a task, ended afterwards.

        Args:
            task: Operator and shape.
            cwd: Working folder.
            deadline_s: Seconds for one request; its life is bounded by twenty times that.
            threads: Threads of the numeric library.
            helper: The harness's own code as a shared object; needed for all that is timed.
            cpus: CPUs to stay on.
        """
        argv = [
            *(sys.executable, "-P", "-m", "croq_fsm.measure.judge_cpu"),
            *(task.operator, format_shape(task.shape), str(self._folder.absolute())),
            *("--threads", str(threads)),
        ]
        if helper is not None:
            argv += ["--helper", str(helper)]
        if cpus:
            argv += ["--cpus", ",".join(map(str, cpus))]
        root = str(Path(croq_fsm.__file__).parent.parent)
        env = {"PYTHONPATH": root, **dict.fromkeys(_THREAD_VARIABLES, str(threads))}
        command = Command(tuple(argv), cwd, 20 * deadline_s, "judge", env=env)
        talk = self._runner.converse(command)
        try:
            yield Judge(talk, deadline_s)
        finally:
            talk.close()


def all_cores() -> int:
    """Threads for work that is not timed."""
    return len(os.sched_getaffinity(0))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None
