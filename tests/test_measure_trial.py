"""The decision trial: synthetic samples, the real rule."""

from __future__ import annotations

import numpy as np
import pytest

from croq_fsm.config import Measure
from croq_fsm.domain.states import Decision
from croq_fsm.domain.task import Task
from croq_fsm.measure.trial import Trial
from croq_fsm.toolchain.simulated import decisions
from croq_fsm.toolchain.simulated.noise import Noise, SyntheticTimer

SETTINGS = Measure()
TASK = Task(dsl="c", operator="matmul", dtype="f32", shape=(8, 8, 8), kernel="", model="trial")


def tally(noise: str, gain: float, count: int) -> decisions.Tally:
    """So many decisions of one scenario."""
    return decisions.run(decisions.Chunk(noise, gain, count, 11, 0), SETTINGS)


def trial(noise: Noise, candidate: float) -> Trial:
    """A trial of a candidate with a given true time; the best takes 1 ms."""
    truth = {"best": 1e-3, "candidate": candidate, "twin": candidate, "library": 1e-3}
    timer = SyntheticTimer(truth, noise, np.random.default_rng(1))
    return Trial(timer, TASK, SETTINGS, "library", noise=0.01)


@pytest.mark.parametrize("noise", sorted(decisions.NOISES))
def test_equal_kernels_are_not_kept(noise: str) -> None:
    """In each kind of noise, no A/A candidate of a hundred is kept."""
    assert tally(noise, 0.0, 100).keeps == 0


@pytest.mark.parametrize("noise", sorted(decisions.NOISES))
def test_a_gain_of_two_per_cent_is_found(noise: str) -> None:
    """In each kind of noise, at most one in ten true gains of 2 % is missed."""
    assert tally(noise, 0.02, 60).keeps >= 54


def test_the_same_seed_gives_the_same_decisions() -> None:
    """A part of a trial can be computed again, anywhere."""
    assert tally("block 3 %", 0.02, 10) == tally("block 3 %", 0.02, 10)
    other = decisions.run(decisions.Chunk("block 3 %", 0.02, 10, 12, 0), SETTINGS)
    assert other.pairs != tally("block 3 %", 0.02, 10).pairs


def test_quiet_devices_decide_in_few_pairs() -> None:
    """The high cap costs nothing where there is little noise."""
    quiet = trial(Noise(launch=0.003, block=0.002, process=0.002), 1e-3)
    done = [quiet.decide("library", 100 * i) for i in range(50)]
    assert sum(d.pairs for d in done) / 50 < 40
    assert {d.decision for d in done} == {Decision.DISCARD}


def test_without_noise_every_decision_is_right() -> None:
    """Known truth, no scatter: a gain is kept, a loss is dropped by the screen."""
    assert trial(Noise(), 0.9e-3).decide("library", 1).decision is Decision.KEEP
    lost = trial(Noise(), 1.2e-3).decide("library", 1)
    assert (lost.decision, lost.phase, lost.pairs) == (Decision.DISCARD, "screen", 5)


def test_drift_is_common_and_bounded() -> None:
    """The device's drift moves between 1 and 1 + drift and repeats itself."""
    noise = Noise(drift=0.03, drift_blocks=24)
    factors = [noise.drift_factor(i) for i in range(96)]
    assert min(factors) == 1.0
    assert max(factors) == pytest.approx(1.03)
    assert factors[:48] == pytest.approx(factors[48:])
