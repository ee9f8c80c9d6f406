"""Talking to our two CUDA programs: ``bench`` holds a candidate, ``judge`` never does."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from croq_fsm.domain.measurement import Check
from croq_fsm.domain.operators import Tolerance
from croq_fsm.domain.task import Task
from croq_fsm.errors import (
    CandidateCrashed,
    CandidateError,
    CandidateRefused,
    CroqError,
    DiskFull,
    EnvironmentMissing,
)
from croq_fsm.sandbox import files
from croq_fsm.toolchain.process import Command, Conversation, Runner

#: A device fault; the context is lost with it, whoever is told first.
_FAULT: Final = re.compile(
    r"cudaError(?:IllegalAddress|LaunchFailure|MisalignedAddress|IllegalInstruction|InvalidPc"
    r"|InvalidAddressSpace|HardwareStackError|Assert|LaunchTimeout|ECCUncorrectable"
    r"|TensorMemoryLeak|ExternalDevice|Unknown)\b"
)
_NO_MEMORY: Final = "cudaErrorMemoryAllocation in allocate"
_NO_SPACE: Final = "cannot write the output file"
_NO_DEVICE: Final = re.compile(
    r"cudaError(?:NoDevice|InsufficientDriver|InitializationError|StubLibrary|SystemNotReady"
    r"|SystemDriverMismatch|NoKernelImageForDevice|DevicesUnavailable)\b"
)
_REPEATS: Final = 3
_LIFE_FACTOR: Final = 60.0


@dataclass(frozen=True)
class Programs:
    """Starts the two programs for one task.

    Attributes:
        runner: Starts children.
        judge: The trusted program.
        cublas: The library for the judge to load, or None to let the loader search.
        answer_s: Seconds that one answer may take.
    """

    runner: Runner
    judge: Path
    cublas: Path | None
    answer_s: float

    def problem(self, task: Task) -> tuple[str, ...]:
        """Arguments of either program: operator, element type, sizes."""
        return (task.operator, task.dtype, *map(str, task.shape))

    @contextlib.contextmanager
    def bench(self, binary: Path, task: Task, folder: Path, name: str) -> Iterator[Conversation]:
        """A fresh process with a candidate in it."""
        argv = (str(binary), *self.problem(task))
        command = Command(
            argv=argv,
            cwd=folder,
            deadline_s=self.answer_s * _LIFE_FACTOR,
            label=f"bench {name}",
            untrusted=True,
            device=True,
        )
        with _closing(self.runner.converse(command)) as talk:
            yield talk

    @contextlib.contextmanager
    def trusted(self, task: Task, folder: Path) -> Iterator[Conversation]:
        """A fresh process of the judge. Its failures are the environment's, never a candidate's."""
        command = Command(
            argv=(str(self.judge), *self.problem(task)),
            cwd=folder,
            deadline_s=self.answer_s * _LIFE_FACTOR,
            label="judge",
            env={"CROQ_CUBLAS": str(self.cublas)} if self.cublas else {},
        )
        with _closing(self.runner.converse(command)) as talk:
            yield Trusted(talk)


class Trusted:
    """A conversation whose errors speak of the environment.

    Args:
        talk: The child.
    """

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk

    def ask(self, request: dict[str, object], deadline_s: float) -> dict[str, object]:
        """See ``process.Conversation.ask``; a failure is EnvironmentMissing."""
        try:
            answer = self._talk.ask(request, deadline_s)
        except CandidateError as exc:
            raise EnvironmentMissing(f"our own device program failed: {exc}") from exc
        if answer.get("ok") is not True:
            raise EnvironmentMissing(f"our own device program failed: {answer.get('error')}")
        return answer

    def cpu_seconds(self) -> float | None:
        """See ``process.Conversation.cpu_seconds``."""
        return self._talk.cpu_seconds()

    def close(self) -> None:
        """See ``process.Conversation.close``."""
        self._talk.close()


@dataclass(frozen=True)
class Case:
    """One set of inputs on which a candidate is verified.

    Attributes:
        name: Name of the check.
        rung: Rung of the verification ladder.
        dist: Distribution of the inputs.
        seed: Their seed.
        relative: Bound of the relative Frobenius error, and of each element relative to itself.
        absolute: Slack of each element, absolute.
        table: The protocol's element-wise tolerance, which must hold as well; None for none.
        honest: Relative error up to which the library's own error is not asked for: rounding of
            sums and of the output alone may come to it.
    """

    name: str
    rung: str
    dist: str
    seed: int
    relative: float
    absolute: float
    table: Tolerance | None = None
    honest: float = 0.0


@dataclass(frozen=True)
class LibraryError:
    """What a candidate's error is held against.

    Attributes:
        relative: The library's own relative error on the same inputs.
        factor: How many times that a candidate may show.
    """

    relative: float
    factor: float

    def problem(self, case: Case, error: float) -> str:
        """Why an error is too large; "" when it is not. Rounding alone is never held against."""
        if error <= max(case.honest, self.factor * self.relative):
            return ""
        return (
            f"relative error {error:.3g} is more than {self.factor:g} times the library's "
            f"({self.relative:.3g})"
        )


def cases(task: Task, seeds: tuple[int, ...]) -> list[Case]:
    """The ladder for one task.

    First index-coded inputs, on which each output element is exactly one input element: any
    error is an error of addressing. Then zero-mean normal inputs, on which sums are small
    against their terms, so that no mix-up of tiles can hide.

    The bound of the whole output is the operator's. An element may be off by the same share of
    its own size and of the typical size of an element: an honest kernel stays four times below
    it, while a single wrong tile step exceeds it by far. The protocol's table holds as well.
    """
    bound = task.op.error_bound(task.shape, task.dtype)
    slack = bound * task.op.typical(task.shape, task.dtype)
    honest = task.op.honest_error(task.shape, task.dtype)
    table = task.precision.tolerance
    first = seeds[0] if seeds else 1
    ladder = [Case("index-coded", "smoke", "index", first, 0.0, 0.0)]
    ladder += [
        Case(f"normal-seed-{seed}", "verify", "normal", seed, bound, slack, table, honest)
        for seed in seeds
    ]
    return ladder


def library_error(case: Case, judge: Conversation, deadline_s: float) -> float | None:
    """The library's own relative error on a case's inputs; None when that cannot be told."""
    request: dict[str, object] = {"cmd": "library_error", "seed": case.seed, "dist": case.dist}
    return _real(judge.ask(request, deadline_s), "rel_error")


def run_case(case: Case, bench: Conversation, path: Path, deadline_s: float) -> dict[str, object]:
    """Let the candidate compute a case into a file; what the bench saw.

    Raises:
        CandidateCrashed, CandidateHung, CandidateRefused: See errors.
    """
    request: dict[str, object] = {"cmd": "verify", "seed": case.seed, "dist": case.dist}
    request |= {"out": str(path), "repeats": _REPEATS}
    return candid(bench.ask(request, deadline_s))


def judge_output(
    case: Case, judge: Conversation, path: Path, deadline_s: float
) -> dict[str, object]:
    """Let the judge compare the whole output in a file with its reference."""
    files.must_be_plain(path)
    request: dict[str, object] = {"cmd": "judge", "seed": case.seed, "dist": case.dist}
    request |= {"out": str(path), "relative": case.relative, "absolute": case.absolute}
    if case.table:
        request |= {"table_relative": case.table.relative, "table_absolute": case.table.absolute}
    return judge.ask(request, deadline_s)


def candid(answer: dict[str, object]) -> dict[str, object]:
    """The answer of a bench, or the error that it reports."""
    if answer.get("ok") is True:
        return answer
    raise bench_error(str(answer.get("error", "no reason given"))[:500])


def bench_error(text: str) -> CroqError:
    """What a failure that the bench reports means."""
    if _NO_SPACE in text:
        return DiskFull(f"no space for the output of a kernel: {text}")
    if _NO_DEVICE.search(text) or _NO_MEMORY in text:
        return EnvironmentMissing(f"the device cannot run the task: {text}")
    if _FAULT.search(text):
        return CandidateCrashed(f"the kernel faulted on the device: {text}", log=text)
    return CandidateRefused(f"the harness refused: {text}", log=text)


def verdict(
    case: Case,
    seen: Mapping[str, object],
    judged: Mapping[str, object],
    width: int,
    *,
    may_differ: bool,
    library: LibraryError | None = None,
) -> Check:
    """The check that a case comes to.

    Args:
        case: What was tried.
        seen: The bench's answer; empty for an output that was kept while timing.
        judged: The judge's answer.
        width: Length of an output row, to name the first wrong element.
        may_differ: Whether repeated launches may differ in their last bits (atomics).
        library: The library's own error on the same inputs, where it is known.
    """
    problems = [*_numeric(case, judged, width), *_behaviour(seen, judged, may_differ=may_differ)]
    error = _real(judged, "rel_error")
    if library is not None and error is not None:
        problems += filter(None, [library.problem(case, error)])
    return Check(
        name=case.name,
        rung=case.rung,
        passed=not problems,
        rel_error=_real(judged, "rel_error"),
        max_error=_real(judged, "max_error"),
        wrong=_count(judged, "wrong"),
        total=_count(judged, "total"),
        detail="; ".join(problems),
    )


def _numeric(case: Case, judged: Mapping[str, object], width: int) -> Iterator[str]:
    error, wrong, nan = (_real(judged, k) for k in ("rel_error", "wrong", "nan"))
    if error is None or wrong is None or nan is None or not _count(judged, "total"):
        yield "the judge gave no numbers"
        return
    if nan:
        yield f"{nan:.0f} elements were not written or are no numbers"
    if error > case.relative:
        yield f"relative error {error:.3g} exceeds {case.relative:.3g}"
    beyond = _count(judged, "beyond_table")
    if beyond and case.table:
        limit = f"{case.table.absolute:g} + {case.table.relative:g} |x|"
        yield f"{beyond} elements are off by more than {limit}"
    if wrong:
        first = _count(judged, "first_wrong")
        row, column = divmod(first, width)
        yield (
            f"{wrong:.0f} of {_count(judged, 'total')} elements are wrong, the first at "
            f"[{row}, {column}]: {judged.get('got')} instead of {judged.get('want')}"
        )


def _behaviour(
    seen: Mapping[str, object], judged: Mapping[str, object], *, may_differ: bool
) -> Iterator[str]:
    """What the bench saw beside the numbers."""
    if not seen:
        return
    if seen.get("inputs") != judged.get("inputs"):
        yield "the inputs of the two programs differ"
    if seen.get("inputs_intact") is not True:
        yield "the kernel changed its inputs"
    if seen.get("guard_damage") != 0:
        yield f"the kernel wrote outside of its buffers ({seen.get('guard_damage')} bytes seen)"
    if seen.get("repeatable") is not True and not may_differ:
        yield "repeated launches on equal inputs differ bit by bit: a race"
    if _count(seen, "threads_added") > 0:
        yield "the host part of the kernel started a thread"


def _real(answer: Mapping[str, object], key: str) -> float | None:
    value = answer.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _count(answer: Mapping[str, object], key: str) -> int:
    value = answer.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


@contextlib.contextmanager
def _closing(talk: Conversation) -> Iterator[Conversation]:
    try:
        yield talk
    finally:
        talk.close()


def discard(path: Path) -> None:
    """Remove an output file; it may be large."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - never follows a link
