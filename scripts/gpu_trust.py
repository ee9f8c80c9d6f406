"""Can the timing of an SM90 machine be trusted? Asked of the machine itself, in four minutes.

Usage: ``PYTHONPATH=. python3 scripts/gpu_trust.py --out DIR [--cache DIR] [--build-only]``

(a) cuBLAS by our harness and by PyTorch's own events, in the same run: within 3 %.
(b) Somebody else's load that starts in the middle of a measurement changes no decision.
(c) After a kernel that hangs, one that faults, and a bench that ignores SIGTERM, the next
    measurement is as before.

Needs the CUDA toolkit and one H100 or H200; for (a) a ``python3`` with PyTorch. ``--build-only``
needs no device: with the same ``--cache`` the run that follows compiles nothing. Prints a table,
writes ``trust.json``; exit status 1 when anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psutil

from croq_fsm.config import Config, Deadlines, Measure
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.measurement import Samples
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateCrashed, CandidateError, CandidateHung, Contended
from croq_fsm.measure import stats, telemetry
from croq_fsm.measure.trial import Trial
from croq_fsm.toolchain import croqtile_bench as benches
from croq_fsm.toolchain.croqtile_time import may_be_short
from croq_fsm.toolchain.cuda import CudaWorkbench
from croq_fsm.toolchain.process import Command, Conversation, NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.workbench import Contestant, TimingPlan

Shape = tuple[int, int, int]

_SHAPES: Final[tuple[Shape, ...]] = ((4096, 8192, 4096), (16384, 512, 16384), (1024, 1024, 1024))
_SMALL: Final[Shape] = (2048, 2048, 2048)
_AGREEMENT: Final = 0.03
_AFTERWARDS: Final = 0.015
_OPINIONS: Final = 2
_SHORT_TRAIN: Final = 16
_LOAD_S, _LOAD_DELAY_S, _WAIT_S, _WAITS = 7.0, 1.5, 2.0, 20

#: In the kernel, before any work.
_ANCHOR: Final = "  const int warp_m = warp / WARPS_N * kWarpM"
_CHANGED: Final = {
    "slow": "  for (const long long began = clock64(); clock64() - began < 30000;) {\n  }\n",
    "hang": "  while (m > 0) __nanosleep(1000);\n",
    "fault": "  *reinterpret_cast<volatile int *>(static_cast<size_t>(m)) = 1;\n",
}
#: Ignored signals stay ignored in the program that takes the process over.
_DEAF: Final = (
    "import os, signal, sys\n"
    "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
    "    signal.signal(number, signal.SIG_IGN)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)
#: Starts a program that is nobody's child any more, as somebody else's would be.
_ORPHAN: Final = (
    "import subprocess, sys\n"
    "null = subprocess.DEVNULL\n"
    "child = subprocess.Popen(sys.argv[1:], stdin=null, stdout=null, stderr=null,"
    " start_new_session=True)\n"
    "print(child.pid)\n"
)


def task(shape: Shape = _SMALL) -> Task:
    """The matmul of this script."""
    return Task(dsl="cuda", operator="matmul", dtype="f16", shape=shape, kernel="", model="trust")


@dataclass
class Trust:
    """Collects the lines of the table.

    Attributes:
        bench: The workbench.
        out: Folder for what is left.
        builds: Kernels by name.
        rows: What, whether it held, what was seen.
        facts: For the JSON file.
    """

    bench: CudaWorkbench
    out: Path
    builds: dict[str, Build] = field(default_factory=dict)
    rows: list[tuple[str, bool, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def line(self, what: str, holds: bool, text: str) -> None:
        """One line of the table."""
        self.rows.append((what, holds, text))
        print(f"{'ok  ' if holds else 'FAIL'} {what}: {text}", flush=True)

    def attempt(self, what: str, action: Callable[[], None]) -> None:
        """Run a part; a failure of it is a line, not the end."""
        began = time.monotonic()
        try:
            action()
        except Exception as exc:  # noqa: BLE001 - every failure belongs in the table
            self.line(what, False, f"{type(exc).__name__}: {exc}")
            print(traceback.format_exc(), flush=True)
        print(f"     ({what}: {time.monotonic() - began:.1f} s)", flush=True)

    def table(self) -> int:
        """Print and write everything; the exit status."""
        holds = bool(self.rows) and all(held for _, held, _ in self.rows)
        width = max((len(what) for what, _, _ in self.rows), default=0)
        print("\n".join(f"{'ok  ' if h else 'FAIL'} {w:<{width}}  {t}" for w, h, t in self.rows))
        rows = [{"what": w, "holds": h, "seen": t} for w, h, t in self.rows]
        text = json.dumps({"holds": holds, "rows": rows, **self.facts}, indent=1)
        (self.out / "trust.json").write_text(text + "\n", encoding="utf-8")
        return 0 if holds else 1


def build_all(trust: Trust) -> None:
    """The start kernel, a slower one, and two that break."""
    plain = trust.bench.start_kernel(task()).source
    sources = {"plain": plain}
    for name, text in _CHANGED.items():
        sources[name] = _replaced(plain, _ANCHOR, text + _ANCHOR)
    for name, source in sources.items():
        trust.builds[name] = trust.bench.build(Candidate(source=source), task())
        print(f"     built {name}: {trust.builds[name].seconds:.1f} s", flush=True)


def _replaced(source: str, old: str, new: str) -> str:
    if source.count(old) != 1:
        raise SystemExit(f"the start kernel does not hold {old!r} exactly once; mend this script")
    return source.replace(old, new)


# -- (a) a second opinion -----------------------------------------------------------------------


def second_opinion(trust: Trust, python: str) -> None:
    """The library by us and by PyTorch, alternating; the same library file, as far as it loads."""
    here = Path(__file__).with_name("_torch_timing.py")
    arguments = [
        "x".join(map(str, s)) + (f":{_SHORT_TRAIN}" if may_be_short(task(s)) else "")
        for s in _SHAPES
    ]
    ours: dict[Shape, list[Samples]] = {shape: [] for shape in _SHAPES}
    theirs: dict[Shape, list[float]] = {shape: [] for shape in _SHAPES}
    for _ in range(_OPINIONS):
        done = subprocess.run(
            [python, str(here), *arguments],
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        if done.returncode != 0:
            trust.line("PyTorch", False, done.stderr.strip()[-400:])
            return
        told = json.loads(done.stdout.splitlines()[-1])
        _use_library(trust, told["cublas"])
        for shape in _SHAPES:
            theirs[shape] += told["ns"]["x".join(map(str, shape))]
            plan = TimingPlan(purpose="pairs", pairs=6, max_launches=30)
            ours[shape].append(trust.bench.time({"library": "library"}, task(shape), plan))
    for shape in _SHAPES:
        _compare(trust, shape, ours[shape], theirs[shape])


def _use_library(trust: Trust, path: str) -> None:
    """Times of two versions of a library would say nothing about who measures right."""
    if path and Path(path).is_file():
        trust.bench._tools = replace(trust.bench._tools, cublas=Path(path))  # noqa: SLF001 - evidence looks inside
        trust.facts["library"] = path


def _compare(trust: Trust, shape: Shape, ours: list[Samples], theirs: list[float]) -> None:
    mine = statistics.median(stats.block_seconds(s, "library") for s in ours)
    other = statistics.median(theirs) * 1e-9
    ratio, name = mine / other, "x".join(map(str, shape))
    text = (
        f"ours {mine * 1e6:.2f} us ({task(shape).tflops(mine):.0f} TFLOPS), PyTorch "
        f"{other * 1e6:.2f} us, ratio {ratio:.4f}; {ours[-1].method}; "
        f"{telemetry.summary(ours[-1], 'library') or ours[-1].telemetry}"
    )
    trust.line(f"a second opinion {name}", abs(ratio - 1.0) <= _AGREEMENT, text)
    trust.facts[f"opinion {name}"] = {
        "ours": [stats.block_medians(s, "library") for s in ours],
        "theirs_ns": theirs,
    }


# -- (b) somebody else's load -------------------------------------------------------------------


class Load:
    """A program of another process tree that keeps the device busy for some seconds.

    Args:
        argv: What it runs.
    """

    def __init__(self, argv: list[str]) -> None:
        self._argv = argv
        self.started = False

    def later(self) -> None:
        """Start it in a while, and end it some seconds after that."""
        thread = threading.Timer(_LOAD_DELAY_S, self._run)
        thread.daemon = True
        thread.start()

    def _run(self) -> None:
        done = subprocess.run(
            [sys.executable, "-c", _ORPHAN, *self._argv],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        process = psutil.Process(int(done.stdout))
        self.started = True
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(_LOAD_S)
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


class Disturbed:
    """Takes times as MEASURE does: when the device is in use it waits and tries again.

    Args:
        bench: The workbench.
        load: Starts during the first measurement; None for a quiet device.
    """

    def __init__(self, bench: CudaWorkbench, load: Load | None) -> None:
        self._bench = bench
        self._load = load
        self.seen: list[str] = []
        self.waits = 0

    def time(self, contestants: dict[str, Contestant], what: Task, plan: TimingPlan) -> Samples:
        """See ``sets.Timer``."""
        if self._load is not None:
            self._load.later()
            self._load = None
        for _ in range(_WAITS):
            try:
                samples = self._bench.time(contestants, what, plan)
            except Contended as exc:
                self.waits += 1
                self.seen.append(str(exc))
                time.sleep(_WAIT_S)
            else:
                self.seen += samples.dropped
                return samples
        raise Contended("the device never became quiet")


def load_changes_nothing(trust: Trust) -> None:
    """A/A, a clearly slower and a clearly faster candidate, quiet and with a load coming."""
    pairs = (
        ("the same", "plain", "plain", Decision.DISCARD),
        ("slower", "slow", "plain", Decision.DISCARD),
        ("faster", "plain", "slow", Decision.KEEP),
    )
    for number, (name, candidate, best, wanted) in enumerate(pairs):
        for with_load in (False, True):
            _decide(trust, f"b {name}", (candidate, best, wanted), number, with_load=with_load)


def _decide(
    trust: Trust, name: str, what: tuple[str, str, Decision], number: int, *, with_load: bool
) -> None:
    candidate, best, wanted = what
    binary = trust.bench._cache.folder / trust.builds["plain"].binary  # noqa: SLF001 - evidence looks inside
    request = json.dumps({"cmd": "launch", "launches": 50000})
    load = Load([str(binary), "matmul", "f16", "8192", "8192", "8192", request])
    timer = Disturbed(trust.bench, load if with_load else None)
    settings = Measure(pairs=6, max_pairs=12, confirm_pairs=6)
    trial = Trial(timer, task(), settings, trust.builds[best], noise=0.002)
    done = trial.decide(trust.builds[candidate], 1000 * (number + 1))
    seen = f"; {timer.waits} waits, {len(timer.seen)} disturbances" if with_load else ""
    text = f"{done.decision}: {done.reason}{seen}"
    noticed = not with_load or (load.started and bool(timer.seen))
    if with_load and not noticed:
        text += "; the load was not noticed" if load.started else "; the load came too late"
    trust.line(
        f"{name}, {'load' if with_load else 'quiet'}", done.decision is wanted and noticed, text
    )
    trust.facts[f"{name} load={with_load}"] = timer.seen[:20]


# -- (c) after failures -------------------------------------------------------------------------


class Deaf(benches.Programs):
    """Programs whose bench ignores every polite signal."""

    @contextlib.contextmanager
    def bench(self, binary: Path, task: Task, folder: Path, name: str) -> Iterator[Conversation]:
        """See ``Programs.bench``; not in the sandbox, which would refuse the detour."""
        argv = (sys.executable, "-c", _DEAF, str(binary), *self.problem(task))
        command = Command(argv=argv, cwd=folder, deadline_s=600.0, label=f"bench {name}")
        talk = self.runner.converse(command)
        try:
            yield talk
        finally:
            talk.close()


def failures_leave_nothing(trust: Trust) -> None:
    """Each failure is the candidate's, and the next measurement is as before."""
    _fail(trust, "hang", CandidateHung)
    _fail(trust, "fault", CandidateCrashed)
    usual = trust.bench._programs  # noqa: SLF001 - evidence looks inside

    def deaf(answer_s: float) -> benches.Programs:
        made = usual(answer_s)
        return Deaf(made.runner, made.judge, made.cublas, made.answer_s)

    trust.bench._programs = deaf  # type: ignore[method-assign]  # noqa: SLF001 - evidence looks inside
    try:
        found = _failure(trust, "hang")
    finally:
        trust.bench._programs = usual  # type: ignore[method-assign]  # noqa: SLF001 - evidence looks inside
    _judge(trust, "deaf", found, CandidateHung)


def _fail(trust: Trust, name: str, wanted: type[CandidateError]) -> None:
    _judge(trust, name, _failure(trust, name), wanted)


def _failure(trust: Trust, name: str) -> tuple[str, str, float]:
    """Kind and text of what verification of a broken kernel comes to, and how long it took."""
    began = time.monotonic()
    try:
        found = trust.bench.verify(trust.builds[name], task(), (1,))
        kind, text = "verified", str(found.first_failure)
    except CandidateError as exc:
        kind, text = type(exc).__name__, str(exc)
    return kind, text, time.monotonic() - began


def _judge(
    trust: Trust, name: str, found: tuple[str, str, float], wanted: type[CandidateError]
) -> None:
    kind, text, seconds = found
    plan = TimingPlan(purpose="noise", pairs=5, seed=len(trust.rows))
    same: dict[str, Contestant] = {"a": trust.builds["plain"], "b": trust.builds["plain"]}
    samples = trust.bench.time(same, task(), plan)
    ratio = stats.estimate(samples, "a", "b", 1).ratio
    survivors = [p.pid for p in psutil.Process().children(recursive=True) if "bench" in p.name()]
    probes = trust.bench._health.probes  # noqa: SLF001 - evidence looks inside
    holds = kind == wanted.__name__ and abs(ratio - 1.0) <= _AFTERWARDS and not survivors
    trust.line(
        f"c {name}",
        holds,
        f"{kind} after {seconds:.1f} s ({text[:120]}); then A/A {ratio:.4f}, device asked "
        f"{probes} times, {len(survivors)} survivors, {len(samples.dropped)} blocks repeated",
    )


def run(trust: Trust, python: str, parts: str) -> None:
    """The parts asked for, in order."""
    device = trust.bench.device()
    trust.facts["device"] = device.model_dump(mode="json")
    print(f"     {device.name} {device.uuid}", flush=True)
    actions: dict[str, Callable[[], None]] = {
        "a": lambda: second_opinion(trust, python),
        "b": lambda: load_changes_nothing(trust),
        "c": lambda: failures_leave_nothing(trust),
    }
    for name, action in actions.items():
        if name in parts:
            trust.attempt(name, action)


def main() -> int:
    """Build, and unless only that is asked for, run all parts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument(
        "--torch-python", default=shutil.which("python3", path=os.defpath) or "python3"
    )
    parser.add_argument("--parts", default="abc", help="letters of the parts to run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    # A hang is awaited for verify_s.
    config = Config(deadlines=Deadlines(verify_s=8.0, kill_grace_s=2.0))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    runner = LocalRunner("trust", NullJournal(), stop, config.deadlines)
    with tempfile.TemporaryDirectory(prefix="croq-trust-") as work:
        cache = options.cache or Path(work) / "cache"
        trust = Trust(CudaWorkbench(runner, config, cache, Path(work) / "work"), options.out)
        build_all(trust)
        if options.build_only:
            return 0
        run(trust, options.torch_python, options.parts)
        return trust.table()


if __name__ == "__main__":
    sys.exit(main())
