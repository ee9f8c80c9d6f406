"""Timing and verification on the model: known truths, scattered as a device would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from croq_fsm.config import Simulation
from croq_fsm.domain.build import Build, Candidate
from croq_fsm.domain.measurement import Block, Check, Samples, Verification
from croq_fsm.domain.operators import OPERATORS
from croq_fsm.domain.source import normalised_hash, sha256
from croq_fsm.domain.task import Task
from croq_fsm.errors import CandidateCrashed, CandidateHung, Contended
from croq_fsm.toolchain.simulated.faults import Faults, chance
from croq_fsm.toolchain.simulated.model import Truth
from croq_fsm.toolchain.simulated.noise import Noise, SyntheticTimer
from croq_fsm.toolchain.workbench import Contestant, TimingPlan

#: Seconds until a process of the harness is ready, and for one verified input set.
_START_S, _CASE_S = 0.8, 0.4
#: Slow drift goes from trough to peak in this many simulated seconds.
_DRIFT_S: Final = 1500.0
_DRIFT_BLOCKS: Final = 1000
#: Share by which the power limit slows a busy kernel down beyond an isolated launch.
_REGIME: Final = {"isolated": 0.0, "burst": 0.02, "sustained": 0.16}
_WARM_L2: Final = 0.985


@dataclass(frozen=True)
class Timed:
    """A contestant as the model sees it.

    Attributes:
        seconds: True time of an isolated launch with a cold cache.
        tensor: Share of it in which the tensor cores are busy.
        clock: Hz.
    """

    seconds: float
    tensor: float
    clock: float

    @classmethod
    def of(cls, truth: Truth) -> Timed:
        """What timing needs of a truth."""
        return cls(truth.seconds, truth.tensor, truth.clock)

    def in_regime(self, plan: TimingPlan) -> float:
        """True time under a plan."""
        slower = 1.0 + _REGIME[plan.regime] * self.tensor
        return self.seconds * slower * (_WARM_L2 if plan.l2 == "hot" else 1.0)


def noise_of(settings: Simulation) -> Noise:
    """The configured scatter."""
    return Noise(
        launch=settings.launch_noise,
        block=settings.block_noise,
        process=settings.process_noise,
        drift=settings.drift,
        drift_blocks=_DRIFT_BLOCKS,
    )


def take(
    timed: dict[str, Timed],
    contestants: dict[str, Contestant],
    task: Task,
    plan: TimingPlan,
    faults: Faults,
) -> Samples:
    """One interleaved measurement; simulated time passes.

    Raises:
        Contended: Somebody else uses the device now.
    """
    if faults.contended:
        faults.clock.advance(1.0)
        raise Contended("process 4711 of another user is on the device (SIMULATED)")
    words = [plan.purpose, plan.pairs, plan.seed, task.shape_key, *sorted(contestants)]
    keys = {name: c.key if isinstance(c, Build) else c for name, c in contestants.items()}
    words += [keys[name] for name in sorted(keys)]
    digest = sha256("|".join(map(str, (faults.seed, *words))))
    factor = faults.slowdown
    truth = {name: value.in_regime(plan) * factor for name, value in timed.items()}
    slowest = max(truth.values())
    launches = max(1, min(plan.max_launches, round(plan.block_s / slowest)))
    timer = SyntheticTimer(
        truth,
        noise_of(faults.settings),
        np.random.default_rng(int(digest[:16], 16)),
        min(launches, faults.settings.launches),
        blocks=faults.clock.elapsed / _DRIFT_S * _DRIFT_BLOCKS,
    )
    samples = timer.time(contestants, task, plan)
    blocks = tuple(_clocked(block, timed[block.contestant], factor) for block in samples.blocks)
    busy = sum(launches * truth[block.contestant] for block in blocks)
    faults.clock.advance(len(contestants) * (_START_S + plan.warmup_s) + busy)
    return Samples(
        purpose=plan.purpose,
        regime=f"{plan.regime} {plan.l2}",
        blocks=blocks,
        process=f"SIMULATED-{digest[:12]}",
    )


def _clocked(block: Block, timed: Timed, factor: float) -> Block:
    mhz = timed.clock / 1e6 / factor
    return block.model_copy(update={"clocks": (mhz, mhz)})


def verified(
    candidate: Candidate, task: Task, seeds: tuple[int, ...], faults: Faults, deadline_s: float
) -> Verification:
    """Checks of the whole output, as the model's faults have it.

    Raises:
        CandidateCrashed, CandidateHung: The candidate is one that does.
    """
    identity, source = normalised_hash(candidate.source, candidate.flags), candidate.source
    faults.clock.advance(_START_S)
    if faults.hits("hang", identity, source):
        faults.clock.advance(deadline_s)
        raise CandidateHung(f"no answer within {deadline_s:.0f} s (SIMULATED)")
    if faults.hits("crash", identity, source):
        told = "cudaErrorIllegalAddress in the kernel (SIMULATED)"
        raise CandidateCrashed(f"the kernel faulted on the device: {told}", log=told)
    wrong = faults.hits("wrong_result", identity, source)
    checks = []
    for name, rung in [("index-coded", "smoke"), *((f"normal-seed-{s}", "verify") for s in seeds)]:
        faults.clock.advance(_CASE_S)
        # A race spares the first case, which looks at addressing alone.
        failed = wrong and rung == "verify"
        checks.append(_check(name, rung, identity, task, faults.seed, failed=failed))
        if failed:
            break
    return Verification(checks=tuple(checks))


def _check(name: str, rung: str, identity: str, task: Task, seed: int, *, failed: bool) -> Check:
    total = task.shape[0] * task.shape[1]
    bound = OPERATORS[task.operator].error_bound(task.shape, task.dtype)
    if not failed:
        error = 0.0 if rung == "smoke" else bound * (0.05 + 0.1 * chance(seed, name, identity))
        return Check(
            name=name,
            rung=rung,
            passed=True,
            rel_error=error,
            max_error=error,
            wrong=0,
            total=total,
        )
    share = 0.05 + 0.9 * chance(seed, "wrong", identity)
    wrong = max(1, int(total * share))
    return Check(
        name=name,
        rung=rung,
        passed=False,
        rel_error=share**0.5,
        max_error=40.0,
        wrong=wrong,
        total=total,
        detail=f"relative error {share**0.5:.3g} exceeds {bound:.3g}; {wrong} of {total} elements "
        "are wrong (SIMULATED)",
    )
