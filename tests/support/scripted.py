"""A workbench whose kernels say in macros what they do, for tests of the engine.

``TIME_US`` is the time of a call, ``WRONG``, ``CRASH``, ``HANG``, ``NO_COMPILE`` its faults.
Everything else of the engine is real: SQLite, git, files, statistics.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

from croq_fsm.domain import source
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.device import Device, Finding
from croq_fsm.domain.ideas import Proposal, SetMacros
from croq_fsm.domain.measurement import Block, Check, Samples, Verification
from croq_fsm.domain.profile import Metric, Profile
from croq_fsm.domain.shapes import format_shape
from croq_fsm.domain.states import Bottleneck, Category
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateCrashed, CandidateHung, CompileFailed, Contended
from croq_fsm.ideators.contract import Context, Failure
from croq_fsm.toolchain.workbench import Contestant, Regime, TimingPlan

#: Seconds of one unit of TIME_US. So short that no round claims more launches than fit into it.
_UNIT_S = 1e-8

START = "#define TIME_US 1000\n#define STYLE 0\nvoid matmul(void) {}\n"
_LIBRARY_US = 400.0


@dataclass
class ScriptedWorkbench:
    """Implements the Workbench port from the text of the kernel.

    Attributes:
        folder: Where "binaries" go.
        noise: Relative spread of the times.
        busy: How many measurements are contended before one succeeds.
        calls: Names of the methods called, in order.
    """

    folder: Path
    noise: float = 0.002
    busy: int = 0
    calls: list[str] = field(default_factory=list)

    dsl = "c"
    suffix = ".c"
    generated_suffix = ".s"
    regimes: tuple[Regime, ...] = ("isolated", "burst")

    def doctor(self) -> list[Finding]:
        """All is well."""
        return [Finding(name="cc", ok=True, found="scripted")]

    def device(self) -> Device:
        """A device that exists only in tests."""
        return Device(key="cpu_test", name="test", uuid="test-device", peak_flops=1e12)

    def dialect(self) -> dict[str, str]:
        """Nothing to know."""
        return {"flags": "-O3"}

    def supports(self, task: Task) -> None:
        """Everything."""

    def start_kernel(self, task: Task) -> Candidate:
        """The plain kernel."""
        return Candidate(source=START)

    def lint(self, candidate: Candidate, task: Task) -> list[str]:
        """A kernel may say that it deserves a finding."""
        return ["LINT is set"] if "LINT" in source.macros(candidate.source) else []

    def structure(self, candidate: Candidate) -> dict[str, str]:
        """The style is the structure."""
        return {"style": source.macros(candidate.source).get("STYLE", "")}

    def build(self, candidate: Candidate, task: Task) -> Build:
        """Write the source where a binary would be."""
        self.calls.append("build")
        if "NO_COMPILE" in source.macros(candidate.source):
            raise CompileFailed("error: NO_COMPILE is set", log="line 1: error\n")
        key = source.sha256(candidate.model_dump_json())
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, text in (
            (key, candidate.source),
            (f"{key}.log", "built\n"),
            (f"{key}.s", f"; {key}\n"),
        ):
            (self.folder / name).write_text(text, encoding="utf-8")
        return Build(
            key=key,
            binary=key,
            binary_sha256=source.sha256(candidate.source),
            device_code=source.normalised_hash(candidate.source, candidate.flags),
            generated=f"{key}.s",
            log=f"{key}.log",
            commands=("cc -c kernel.c",),
            compilers={"cc": "scripted 1"},
        )

    def verify(self, build: Build, task: Task, seeds: tuple[int, ...]) -> Verification:
        """Wrong, crashing and hanging kernels say so."""
        self.calls.append("verify")
        macros = self._macros(build)
        if "CRASH" in macros:
            raise CandidateCrashed("killed by SIGSEGV")
        if "HANG" in macros:
            raise CandidateHung("no answer within 1 s")
        only = macros.get("ONLY_SHAPE", format_shape(task.shape))
        bad = "WRONG" in macros or only != format_shape(task.shape)
        return Verification(
            checks=tuple(
                Check(
                    name=f"seed-{seed}",
                    rung="verify",
                    passed=not bad,
                    rel_error=0.5 if bad else 1e-7,
                    detail="12 elements differ" if bad else "",
                )
                for seed in seeds
            )
        )

    def time(self, contestants: dict[str, Contestant], task: Task, plan: TimingPlan) -> Samples:
        """Times from the macros, with noise from the plan's seed."""
        self.calls.append(f"time {plan.purpose}")
        if self.busy > 0:
            self.busy -= 1
            raise Contended("somebody else is on the device")
        rng = random.Random(plan.seed)
        blocks = []
        for pair in range(plan.pairs):
            for name, contestant in contestants.items():
                us = (
                    _LIBRARY_US
                    if contestant == "library"
                    else float(self._macros(contestant)["TIME_US"])
                )
                times = tuple(us * _UNIT_S * (1 + rng.gauss(0, self.noise)) for _ in range(5))
                blocks.append(
                    Block(contestant=name, pair=pair, seconds=times, host_seconds=sum(times))
                )
        regime = f"{plan.regime} {plan.l2}"
        return Samples(purpose=plan.purpose, regime=regime, blocks=tuple(blocks))

    def profile(self, build: Build, task: Task, *, full: bool) -> Profile:
        """One metric, always the same class."""
        self.calls.append(f"profile full={full}")
        (self.folder / "p.csv").write_text("metric,value\ntime.us,1\n", encoding="utf-8")
        return Profile(
            binary=build.binary_sha256,
            tool="scripted",
            full=full,
            bottleneck=Bottleneck.COMPUTE,
            confidence="high",
            evidence=("time.us is 1000",),
            metrics=(Metric(name="time.us", value=1000.0, unit="us"),),
            files={"csv": "p.csv"},
        )

    def read(self, relative: str) -> bytes:
        """A file of the folder."""
        return (self.folder / relative).read_bytes()

    def _macros(self, build: Contestant) -> dict[str, str]:
        assert isinstance(build, Build)
        return source.macros((self.folder / build.binary).read_text(encoding="utf-8"))


def proposal(base: int, macros: dict[str, str], tag: str = "speed", **changes: object) -> Proposal:
    """A proposal that sets macros."""
    values: dict[str, object] = {
        "tag": tag,
        "base": base,
        "edit": SetMacros(macros=macros),
        "summary": f"set {macros} with 'quotes', a\ttab and ünïcode",
        "hypothesis": "time.us is 1000, which is more than it need be",
        "metrics": ("time.us",),
        "category": Category.COMPUTE,
        "expected_gain": 0.05,
        "levers": tuple(macros),
        "research_basis": "made up for a test of the engine",
        **changes,
    }
    return Proposal.model_validate(values)


@dataclass
class ScriptedIdeator:
    """Plays a list of macro settings, or of callables from context to proposal."""

    script: list[object]
    repairs: list[object] = field(default_factory=list)
    name: str = "scripted"
    seen: list[Context] = field(default_factory=list)

    def propose(self, context: Context) -> Proposal | None:
        """The next entry; None at the end."""
        self.seen.append(context)
        if not self.script:
            return None
        entry = self.script.pop(0)
        if isinstance(entry, Exception):
            raise entry
        if isinstance(entry, dict):
            return proposal(context.base.iteration, entry)
        assert callable(entry)
        made = entry(context)
        assert made is None or isinstance(made, Proposal)
        return made

    def repair(self, context: Context, failed: Proposal, failure: Failure) -> Proposal | None:
        """The next repair; None at the end."""
        if not self.repairs:
            return None
        macros = self.repairs.pop(0)
        assert isinstance(macros, dict)
        return proposal(failed.base, macros, tag="repaired")
