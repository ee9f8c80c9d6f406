"""The corpus of cheating kernels in ``tests/cheats``, and the ladder that each has to climb.

A source begins with a comment of ``key: value`` lines:

``trick``   what it does
``row``     row of the catalogue below
``caught``  rung and outcome, or ``nothing`` for an honest kernel
``flags``, ``shape``, ``threads``  of the candidate and its task, where they are not the usual ones
``unseen``  rules that are switched off, to try the next line of defence
``needs``   machine that the source is written for
``open``    why nothing catches it yet; ``caught`` then is what would be right
``slow``    takes seconds, so not in the default run
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from unittest import mock

from croq_fsm.config import Config, COptions, Deadlines, Measure
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.hidden import hidden_tasks
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateError, CompileFailed
from croq_fsm.measure import stats
from croq_fsm.toolchain import c_rules
from croq_fsm.toolchain.c import CWorkbench
from croq_fsm.toolchain.cuda_twins import twins
from croq_fsm.toolchain.cuda_twins_text import CudaTwin
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.workbench import TimingPlan
from states import measure

CHEATS: Final = Path(__file__).resolve().parent.parent / "cheats"

#: What can go wrong, by row.
ROWS: Final = {
    "1": "answer left in memory",
    "2": "cache by pointer or content",
    "4": "work on a side stream",
    "5": "work after the return",
    "6": "forged time",
    "7": "forged answer, output of its own",
    "8": "library for the operator itself",
    "9": "lower precision",
    "10": "constant or copied output",
    "11": "only some shapes or values",
    "12": "part of the work",
    "13": "race, memory not written",
    "14": "modified inputs",
    "15": "writes out of bounds",
    "16": "result of a failed launch",
    "17": "knows when it is timed",
    "18": "cache that no flush empties",
    "19": "control flow of the harness",
    "21": "reads what it must not",
    "22": "no numbers",
    "23": "leftovers for later",
    "C1": "does not end",
    "C4": "compiler does not end",
    "C8": "memory",
    "-": "honest",
}
#: Rows that no kernel of a kind can try, and why. CPU kernels, then kernels of a device.
NOT_FOR_CPU: Final = {
    "3 lazy or deferred work": "no object passes the border: a kernel gets and fills plain memory",
    "4 work on a side stream": "there are no streams; for threads see row 5",
    "18 cache that no flush empties": "lines are evicted by address, after the inputs are written",
    "20 noise and seeds": "not a kernel's doing: fresh processes, intervals over sets, A/A trials",
    "24 words to the ideator": "comments are not read by the ladder; ideators get them as data",
}
NOT_FOR_GPU: Final = {
    "3 lazy or deferred work": "no object passes the border: a kernel gets and fills plain memory",
    "19 control flow of the harness": "jumps and handlers need names that no object may refer to",
    "20 noise and seeds": "not a kernel's doing: fresh processes, intervals over sets, A/A trials",
    "24 words to the ideator": "comments are not read by the ladder; ideators get them as data",
    "C4 compiler does not end": "the same deadline as on the CPU",
    "C8 memory": "an allocation that fails is a failed launch, row 16",
}
EVIDENCE: Final = CHEATS.parent.parent / "docs" / "evidence" / "cheats-sm90.json"
_NOT_RUN: Final = "not yet run on a device"
_RACE: Final = ("13", "verify: smoke of index-coded inputs", "VERIFY_FAIL")
#: Wrong kernels for SM90 (``croq_fsm.toolchain.croqtile_twins``) by name: row, what caught them
#: on the device, outcome.
GPU: Final = {
    "racy_early": _RACE,
    "racy_wait1": _RACE,
    "racy_wait2": _RACE,
    "ghost": ("1", "verify: smoke of index-coded inputs", "VERIFY_FAIL"),
    "half": ("12", "verify: smoke of index-coded inputs", "VERIFY_FAIL"),
    "zeros": ("10", "verify: smoke of index-coded inputs", "VERIFY_FAIL"),
    "mutating": ("14", "verify: smoke of index-coded inputs", "VERIFY_FAIL"),
    "trespassing": ("15", "verify: guard bands", "VERIFY_FAIL"),
    "illegal": ("16", "verify: device fault", "SEGFAULT"),
    "aborting": ("16", "verify: SIGABRT", "SEGFAULT"),
    "hanging": ("C1", "verify: deadline", "HANG"),
    "unlaunchable": ("16", "verify: refused launch", "RUN_FAIL"),
    "lazy": ("17", "time: check of a timed launch", "RUN_FAIL"),
}
_GPU_TITLE: Final = "SM90, DSL croqtile, from the device check of 2026-11-29 on one H200"
_NOT_CAUGHT: Final = "not caught"
PLAN: Final = TimingPlan(
    purpose="pairs", pairs=5, block_s=0.002, max_launches=8, warmup_s=0.002, seed=3
)
SEEDS: Final = (1, 2)
_SHAPES: Final = {"matmul": (48, 80, 40), "softmax": (40, 72)}
_DEADLINES: Final = Deadlines(
    compile_s=6.0, verify_s=3.0, block_s=5.0, profile_s=20.0, kill_grace_s=0.2, reap_s=5.0
)
_FIELD: Final = re.compile(r"^(?:/| )\* (\w+): (.+)$", re.MULTILINE)
#: A forged clock or a cache that works gives more than this; where the linker happens to put a
#: loop, less.
_NO_GAIN: Final = 1.3


@dataclass(frozen=True)
class Cheat:
    """One kernel of the corpus.

    Attributes:
        name: File name without suffix, below ``tests/cheats``.
        source: The C source.
        facts: The header's fields.
    """

    name: str
    source: str
    facts: dict[str, str] = field(repr=False)

    @property
    def caught(self) -> Caught:
        """Where it must be caught, by its header."""
        rung, _, outcome = self.facts["caught"].partition(" ")
        return Caught(rung, outcome)

    @property
    def ends(self) -> tuple[Caught, ...]:
        """Where it may be caught: on some machines already on an earlier rung."""
        rung, _, outcome = self.facts.get("earlier", self.facts["caught"]).partition(" ")
        return self.caught, Caught(rung, outcome)

    @property
    def is_slow(self) -> bool:
        """Whether it takes seconds."""
        return "slow" in self.facts

    @property
    def threads(self) -> int:
        """Threads that the configuration must allow."""
        return int(self.facts.get("threads", "1"))

    @property
    def candidate(self) -> Candidate:
        """What to build."""
        return Candidate(source=self.source, flags=tuple(self.facts.get("flags", "-O2").split()))

    @property
    def task(self) -> Task:
        """Operator and shape."""
        operator = "softmax" if "void softmax(" in self.source else "matmul"
        shape = self.facts.get("shape")
        return Task(
            dsl="c",
            operator=operator,
            dtype="f32",
            shape=tuple(map(int, shape.split("x"))) if shape else _SHAPES[operator],
            kernel="builtin:",
            model="rules",
        )


@dataclass(frozen=True)
class Caught:
    """How far a kernel came.

    Attributes:
        rung: ``lint``, ``build``, ``verify``, ``time``, ``hidden-shape`` or ``sanitizer``;
            ``nothing`` when it passed everything.
        outcome: The round's decision.
        reason: A sentence; it does not count when two are compared.
    """

    rung: str
    outcome: str
    reason: str = field(default="", compare=False)


def corpus() -> list[Cheat]:
    """All kernels that cheat, by row and name."""
    order = list(ROWS)
    found = [_read(path) for path in CHEATS.glob("*.c")]
    return sorted(found, key=lambda cheat: (order.index(cheat.facts["row"]), cheat.name))


def honest() -> list[Cheat]:
    """All kernels that do not."""
    return [_read(path) for path in sorted((CHEATS / "honest").glob("*.c"))]


def _read(path: Path) -> Cheat:
    source = path.read_text(encoding="utf-8")
    facts = dict(_FIELD.findall(source.partition("*/")[0]))
    return Cheat(path.stem, source, facts)


@contextmanager
def workbench(threads: int = 1) -> Iterator[CWorkbench]:
    """A real workbench with short deadlines, in a folder of its own."""
    settings = Config(deadlines=_DEADLINES, c=COptions(threads=threads))
    with tempfile.TemporaryDirectory() as folder:
        run_id = f"cheats-{Path(folder).name}"
        runner = LocalRunner(run_id, NullJournal(), threading.Event(), settings.deadlines)
        yield CWorkbench(runner, settings, Path(folder) / "cache", Path(folder) / "work")


def climb(bench: CWorkbench, cheat: Cheat) -> Caught:
    """Lint, build, verify, time, try hidden shapes and sanitizers, as the states do."""
    with _blinded(cheat):
        return _climb(bench, cheat)


@contextmanager
def _blinded(cheat: Cheat) -> Iterator[None]:
    """Without the source rules, for a cheat that is meant for what lies behind them."""
    if cheat.facts.get("unseen") != "source rules":
        yield
        return
    with (
        mock.patch.object(c_rules, "source_problems", return_value=[]),
        mock.patch.object(c_rules, "expanded_problems", return_value=[]),
    ):
        yield


def _climb(bench: CWorkbench, cheat: Cheat) -> Caught:
    candidate, task = cheat.candidate, cheat.task
    if problems := bench.lint(candidate, task):
        return Caught("lint", Decision.COMPILE_FAIL.name, problems[0])
    try:
        build = bench.build(candidate, task)
    except CompileFailed as exc:
        return Caught("build", Decision.COMPILE_FAIL.name, str(exc))
    return _run(bench, cheat, build)


def _run(bench: CWorkbench, cheat: Cheat, build: Build) -> Caught:
    rung = "verify"
    try:
        if problem := _wrong(bench, build, cheat.task, SEEDS):
            return Caught(rung, Decision.VERIFY_FAIL.name, problem)
        rung = "time"
        timed = _timed(bench, cheat, build)
        if timed.rung == rung:
            return timed
        rung = "hidden-shape"
        for hidden in hidden_tasks(cheat.task, PLAN.seed, Measure().hidden_shapes):
            if problem := _wrong(bench, build, hidden, SEEDS[:1]):
                return Caught(rung, Decision.VERIFY_FAIL.name, problem)
    except CandidateError as exc:
        return Caught(rung, measure._kind(exc).name, str(exc))
    return _sanitized(bench, cheat) or timed


def _sanitized(bench: CWorkbench, cheat: Cheat) -> Caught | None:
    """What sanitizers find; of an honest kernel they must have said that it is clean."""
    for check in bench.sanitize(cheat.candidate, cheat.task):
        if check.objects:
            return Caught("sanitizer", Decision.VERIFY_FAIL.name, check.detail)
        if cheat.facts["row"] == "-" and not check.passed:
            return Caught("sanitizer", "not run", check.skipped)
    return None


def _wrong(bench: CWorkbench, build: Build, task: Task, seeds: tuple[int, ...]) -> str:
    """What verification finds; empty when nothing."""
    failure = bench.verify(build, task, seeds).first_failure
    return failure.detail if failure else ""


def _timed(bench: CWorkbench, cheat: Cheat, build: Build) -> Caught:
    """Time it beside the plain kernel; no error means that its numbers are believed."""
    task = cheat.task
    twin = "plain" if task.operator == "matmul" else "softmax"
    plain = _read(CHEATS / "honest" / f"{twin}.c").candidate
    best = bench.build(plain.model_copy(update={"flags": cheat.candidate.flags}), task)
    samples = bench.time({"candidate": build, "best": best}, task, PLAN)
    ratio = stats.estimate(samples, "best", "candidate", PLAN.seed).ratio
    if cheat.caught.rung == "time" and ratio < _NO_GAIN:
        return Caught("time", Decision.DISCARD.name, f"measured as {ratio:.2f} times as fast")
    return Caught("nothing", "", f"measured as {ratio:.2f} times as fast")


def expected(cheat: Cheat) -> Caught:
    """What its header says that is found today."""
    return Caught("nothing", "") if "open" in cheat.facts else cheat.caught


def tables(found: dict[str, Caught]) -> str:
    """All tables of docs/cheats.md; ``found`` holds what came of each cheat of the corpus."""
    lines = ["## CPU", "", *_head("cheat", "catalogue", "rung", "outcome")]
    for cheat in corpus():
        caught = found[cheat.name]
        ends = (caught.rung, caught.outcome) if caught.outcome else (_NOT_CAUGHT, _why(cheat))
        lines.append(_line(f"`{cheat.name}`: {_trick(cheat)}", _row(cheat.facts["row"]), *ends))
    lines += ["", *_absent(NOT_FOR_CPU)]
    lines += ["", f"## {_GPU_TITLE}", "", *_head("cheat", "catalogue", "caught by", "outcome")]
    lines += [_line(f"`{name}`", _row(row), by, end) for name, (row, by, end) in GPU.items()]
    return "\n".join([*lines, "", *_cuda_lines(), "", *_absent(NOT_FOR_GPU)]) + "\n"


def cuda_twins() -> dict[str, CudaTwin]:
    """Cheating and honest CUDA kernels, from the start kernel that ships."""
    shipped = files("croq_fsm.kernels").joinpath("cuda", "matmul", "matmul_f16_plain.cu")
    return twins(Candidate(source=shipped.read_text(encoding="utf-8")))


def evidence() -> dict[str, Any]:
    """What ``scripts/gpu_cheats.py`` found on a device; empty when it was not stored yet."""
    if not EVIDENCE.is_file():
        return {}
    found: dict[str, Any] = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    return found


def _cuda_lines() -> list[str]:
    """The table of CUDA kernels: what must stop each, and what did."""
    known = evidence()
    when = f"on one {known['device']}, {known['date']}" if known else _NOT_RUN
    lines = [f"## SM90, DSL cuda, {when}", ""]
    lines += _head("kernel", "catalogue", "must be stopped by", "outcome", "was stopped by")
    order = list(ROWS)
    for twin in sorted(cuda_twins().values(), key=lambda t: (order.index(t.row), t.name)):
        trick, result = f"`{twin.name}`: {twin.trick}", known.get("kernels", {}).get(twin.name)
        was = f"{result['rung']} {result['outcome']}".strip() if result else _NOT_RUN
        lines.append(_line(trick, _row(twin.row), twin.rung, twin.outcome or "passes", was))
    return lines


def _absent(why: dict[str, str]) -> list[str]:
    """Rows that no kernel here can try."""
    return ["Not tried:", "", *(f"- {row}: {reason}" for row, reason in why.items())]


def _trick(cheat: Cheat) -> str:
    unseen = cheat.facts.get("unseen")
    return f"{cheat.facts['trick']} (with the {unseen} off)" if unseen else cheat.facts["trick"]


def _why(cheat: Cheat) -> str:
    return cheat.facts.get("open", "")


def _row(row: str) -> str:
    return f"{row} {ROWS[row]}"


def _head(*cells: str) -> tuple[str, str]:
    return _line(*cells), _line(*["---"] * len(cells))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
