"""One session of the stress test: the real engine, killed and resumed, then asked what is true."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from _stress_agent import BAD, Agent

from croq_fsm import daemon, faults, sessions
from croq_fsm.config import Config, load
from croq_fsm.domain import guards
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.source import sha256
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.root import Root
from croq_fsm.sandbox import probe as sandbox
from croq_fsm.storage.expected import layout_of
from croq_fsm.storage.inspection import archive
from croq_fsm.toolchain.simulated.workbench import SimulatedWorkbench
from croq_fsm.validation import validate
from croq_fsm.validation.sources import foreign_includes

STRICT: Final = "strict"
#: What is switched off in turn; ``strict`` has all of them.
GUARDS: Final = {guard.__name__: guard for guard in guards.GUARDS}
VARIANTS: Final = (STRICT, *(f"no_{name}" for name in GUARDS))

_SHAPES: Final = (
    (2048, 2048, 2048),
    (4096, 8192, 4096),
    (8192, 8192, 8192),
    (1024, 4096, 1024),
    (16384, 512, 16384),
    (512, 16384, 8192),
)
_POINTS: Final = ("before_commit", "in_commit", "after_commit", "before_effect", "before_done")
#: Rounds between two crashes, on average; every third of them is a kill -9 of a process.
_CALM: Final = 40
_KILLS: Final = 3
#: Starts without progress after which a session counts as lost.
_FUTILE: Final = 5
_SETTINGS: Final[dict[str, Any]] = {
    "simulation.on": True,
    "simulation.contention": 0.03,
    "simulation.compile_fail": 0.05,
    "simulation.compiler_abort": 0.004,
    "simulation.compiler_hang": 0.002,
    "simulation.wrong_result": 0.02,
    "simulation.crash": 0.01,
    "simulation.hang": 0.004,
    "profiling.full_on": "win",
    "limits.plateau_rounds": 0,
    "storage.min_free_mb": 64,
    "storage.ballast_mb": 0,
}

Result = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One session that is to be run.

    Attributes:
        variant: ``strict``, or ``no_`` and the name of the guard that is switched off.
        dsl: DSL.
        agent: Number of the agent; the same agent has the same seed in all variants.
        rounds: Target.
        limit: Rounds after which a control that nothing got through ends.
        seed: Of the whole test.
        check_every: Rounds between two checkpoints.
        git: Whether KEEPs are committed.
        scratch: Folder for roots.
    """

    variant: str
    dsl: str
    agent: int
    rounds: int
    limit: int
    seed: int
    check_every: int
    git: bool
    scratch: str

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.variant}-{self.dsl}-{self.agent:03d}"

    @property
    def own_seed(self) -> int:
        """Seed of the agent's sessions."""
        return int(sha256(f"{self.seed}/{self.dsl}/{self.agent}")[:8], 16)


@dataclass
class Trial:
    """A job under way.

    Attributes:
        job: The job.
        root: Its root.
        config: Its configuration.
        crashes: Exceptions of fault points, and kills.
        problems: What checkpoints found.
        stop: Why it ended.
    """

    job: Job
    root: Root
    config: Config
    dice: random.Random
    crashes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    checkpoints: int = 0
    stop: str = ""

    def run(self) -> None:
        """Until the target, a violation, or a session that makes no progress."""
        futile = 0
        while not self.stop:
            before = self._stand()
            self._segment()
            after = self._stand()
            futile = 0 if after[:2] > before[:2] else futile + 1
            if after[2]:
                self.stop = after[3]
            elif after[0] >= self.job.limit:
                self.stop = f"nothing got through in {self.job.limit} rounds"
            elif futile >= _FUTILE:
                self.stop = "lost: no step came to an end any more"
            else:
                self._checkpoint(after[0])
        self._checkpoint(0)

    def _stand(self) -> tuple[int, int, bool, str]:
        """Rounds, steps, whether it is over, and why."""
        if not self.root.database.is_file():
            return 0, 0, False, ""
        with archive(self.root.database) as stored, stored.look() as reader:
            found = reader.sessions()
        if not found:
            return 0, 0, False, ""
        session = found[0]
        return session.round, session.seq, session.state.is_final, session.reason

    def _segment(self) -> None:
        """One start of the daemon, which ends at a checkpoint, in a crash, or with the session."""
        point = self.dice.choice(_POINTS)
        steps = {"before_effect": 2, "before_done": 2}.get(point, 9)
        count = 1 + self.dice.randrange(2 * _CALM * steps)
        if self.dice.randrange(_KILLS):
            faults.arm(f"{point}@{count}=raise")
            try:
                self._work()
            except faults.InjectedFault:
                self.crashes["exception"] += 1
            except Exception as exc:  # noqa: BLE001 - whatever a user would see is counted
                self.crashes[type(exc).__name__] += 1
            finally:
                faults.arm("")
        elif self._killed(f"{point}@{count}=kill"):
            self.crashes["kill -9"] += 1

    def _killed(self, fault: str) -> bool:
        pid = os.fork()
        if pid == 0:
            try:
                faults.arm(fault)
                self._work()
            finally:
                os._exit(0)
        return os.WIFSIGNALED(os.waitpid(pid, 0)[1])

    def _work(self) -> None:
        with daemon.opened(self.root, self.config) as running:
            running.admit = admitting(self.job.variant)
            with running.repository.read() as reader:
                known = reader.sessions()
            session = known[0] if known else self._create(running)
            until = (session.round // self.job.check_every + 1) * self.job.check_every

            def observe(_before: Session, _step: Step, after: Session) -> None:
                if after.round >= until:
                    running.stop.set()

            running.run_session(session.id, observe, ideator=Agent())

    def _create(self, running: daemon.Daemon) -> Session:
        shape = _SHAPES[self.job.agent % len(_SHAPES)]
        task = Task(
            dsl=self.job.dsl,
            operator="matmul",
            dtype="f16",
            shape=shape,
            kernel="builtin:matmul",
            model="rules",
            rounds=self.job.rounds,
            simulated=True,
        )
        start = running.workbench(self.job.dsl, self.config).start_kernel(task)
        return sessions.create(running.repository, task, start, self.config)

    def _checkpoint(self, rounds: int) -> None:
        """Active state, history in both forms, source to resume from, and what got through."""
        if not self.root.database.is_file() or (rounds and rounds % self.job.check_every):
            return
        self.checkpoints += 1
        with archive(self.root.database) as stored, stored.look() as reader:
            session = reader.sessions()[0]
            if session.best_iteration is None:
                return
            layout = layout_of(reader, session)
            best = reader.iteration(session.id, session.best_iteration)
            pending = bool(reader.open_intents(session.id))
        if best.candidate is not None and best.candidate.source:
            folder = Path(layout.source(best.name, "")).parent.as_posix()
            found = foreign_includes(best.candidate.source, folder, self.root.path)
            self.problems += [f"resume source: {text}" for text in found]
        if not pending:
            self.problems += list(self._history(session, layout))
        if self.job.variant != STRICT and not self.stop and broken(self.root, self.job.variant):
            self.stop = "a violation was found at a checkpoint"

    def _history(self, session: Session, layout: Any) -> list[str]:
        found = []
        for name in ("rounds.raw.jsonl", "rounds.md"):
            path = self.root.path / layout.memory(name)
            size = path.stat().st_size if path.is_file() else 0
            if size != session.log_sizes.get(layout.memory(name), 0):
                found.append(f"{name} has {size} bytes")
        if not (self.root.path / layout.compaction_summary).is_file():
            found.append("no compaction summary")
        return found


def probe_once() -> None:
    """Look at the sandbox once in a process, not at each start: nothing runs in it here."""
    sandbox.probe = cache_of_probe(sandbox.probe)


def cache_of_probe(probe: Callable[..., Any]) -> Callable[..., Any]:
    """A probe that remembers what it found."""
    found: dict[bool, Any] = {}

    def probed(*args: Any, device: bool) -> Any:
        if device not in found:
            found[device] = probe(*args, device=device)
        return found[device]

    return probed


def admitting(variant: str) -> Callable[[guards.Facts], list[str]]:
    """All guards, or all but one; exists in this test only."""
    off = variant.removeprefix("no_")

    def admit(facts: guards.Facts) -> list[str]:
        found = [(n, guard(facts)) for n, guard in GUARDS.items() if n != off]
        return [f"{name}: {reason}" for name, reason in found if reason is not None]

    return guards.refusals if variant == STRICT else admit


def broken(root: Root, variant: str) -> int:
    """Misdeeds against the guard of a variant that became ideas."""
    return _accepted(root).get(variant.removeprefix("no_"), 0)


def _accepted(root: Root) -> Counter[str]:
    database = sqlite3.connect(f"file:{root.database}?mode=ro", uri=True)
    try:
        found = database.execute("SELECT idea FROM ideas").fetchall()
    finally:
        database.close()
    tags = (json.loads(row[0])["proposal"]["tag"] for row in found)
    return Counter(tag.removeprefix(BAD) for tag in tags if tag.startswith(BAD))


def run(job: Job) -> Result:
    """Run a job from the beginning and say what came of it; its root is removed."""
    folder = Path(job.scratch) / job.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    config = load(None, {**_SETTINGS, "seed": job.own_seed, "git.commit": job.git})
    root = Root(folder, config.storage)
    dice = random.Random(f"{job.own_seed}/{job.variant}")  # noqa: S311 - a simulation
    trial = Trial(job, root, config, dice)
    trial.run()
    result = _result(trial)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def _result(trial: Trial) -> Result:
    job, audit = trial.job, validate(trial.root, alone=True)
    with archive(trial.root.database) as stored, stored.look() as reader:
        session = reader.sessions()[0]
        rounds = reader.rounds(session.id)
        steps = reader.transitions(session.id)
        kernels = reader.iterations(session.id)
        profiles = reader.profiles(session.id)
    bad = [r for r in rounds if r.tag.startswith(BAD)]
    counts = Counter(r.decision.name for r in rounds)
    problems = Counter(p.kind for p in audit.problems if p.severity == "problem")
    accepted = _accepted(trial.root)
    details = [json.loads(step["detail"]) for step in steps]
    refused = Counter(
        text.partition(":")[0] for detail in details for text in detail.get("refused") or ()
    )
    mine = job.variant.removeprefix("no_")
    return {
        "variant": job.variant,
        "dsl": job.dsl,
        "agent": job.agent,
        "shape": "x".join(map(str, session.task.shape)),
        "rounds": len(rounds),
        "reached_target": len(rounds) >= job.rounds,
        "stop_reason": trial.stop,
        "iter000": bool(kernels) and kernels[0].number == 0,
        "keeps": counts.get("KEEP", 0),
        "decisions": dict(sorted(counts.items())),
        "attempts_without_number": session.next_attempt,
        "full_profiles": sum(p.profile.full for p in profiles),
        "light_profiles": sum(not p.profile.full for p in profiles),
        "profiler_runs": sum(
            detail.get("cached") is False and "tool" in detail for detail in details
        ),
        "research_rounds": refused.get("researched", 0) + _research(trial, session),
        "crashes": dict(sorted(trial.crashes.items())),
        "checkpoints": trial.checkpoints,
        "checkpoint_problems": trial.problems,
        "validate_problems": dict(sorted(problems.items())),
        "refused": dict(sorted(refused.items())),
        "accepted": dict(sorted(accepted.items())),
        "violations": accepted.get(mine, 0) if mine != STRICT else sum(accepted.values()),
        "violations_measured": sum(r.iteration is not None for r in bad),
        "violations_kept": sum(r.decision is Decision.KEEP for r in bad),
        "false_keeps": _false_keeps(trial, session, kernels),
        "gain": kernels[1].seconds / min(k.seconds for k in kernels[1:]) if kernels[1:] else 1.0,
    }


def _research(trial: Trial, session: Session) -> int:
    database = sqlite3.connect(f"file:{trial.root.database}?mode=ro", uri=True)
    found = database.execute("SELECT idea FROM ideas WHERE session_id = ?", (session.id,))
    number = sum(bool(json.loads(row[0])["proposal"]["research_basis"]) for row in found)
    database.close()
    return number


def _false_keeps(trial: Trial, session: Session, kernels: list[Any]) -> int:
    """KEEPs of kernels that are in truth not faster than the one that they replaced."""
    with daemon.opened(trial.root, trial.config) as running:
        bench = running.workbench(session.task.dsl, trial.config)
    if not isinstance(bench, SimulatedWorkbench):
        return 0
    kept = [k for k in kernels[1:] if k.decision is Decision.KEEP and k.candidate is not None]
    truths = [bench.truth(k.candidate, session.task).seconds for k in kept]
    return sum(new >= old for old, new in pairwise(truths))
