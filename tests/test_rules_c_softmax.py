"""The C softmax family: every member is right, and the moves between them make sense."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from c_kernels import check, needs_cc
from ideator_contract import FilteringContract, make_context, make_profile

from croq_fsm.domain.states import Bottleneck
from croq_fsm.domain.task import Task
from croq_fsm.ideators.contract import Context, Ideator
from croq_fsm.ideators.rules import RulesIdeator, c_softmax
from croq_fsm.ideators.rules.c import CMoves
from croq_fsm.ideators.rules.c_softmax import Softmax, canonical, recognise, render

PLAIN_SOFTMAX = """\
#include <math.h>

void softmax(const float *x, float *y, int rows, int cols)
{
    for (int r = 0; r < rows; ++r) {
        const float *in = x + (long)r * cols;
        float *out = y + (long)r * cols;
        float most = in[0], sum = 0.0f;
        for (int j = 1; j < cols; ++j)
            most = in[j] > most ? in[j] : most;
        for (int j = 0; j < cols; ++j) {
            out[j] = expf(in[j] - most);
            sum += out[j];
        }
        for (int j = 0; j < cols; ++j)
            out[j] /= sum;
    }
}
"""
TASK = Task(
    dsl="c",
    operator="softmax",
    dtype="f32",
    shape=(256, 16384),
    kernel="builtin:softmax",
    model="rules",
)
ODD_SHAPES = [(1, 1), (3, 2), (5, 7), (4, 16), (3, 33), (2, 129), (7, 1000), (1, 5000)]
NATIVE = ("-O3", "-march=native")


def members() -> list[Softmax]:
    """One member of each structure, with sizes that make blocks and remainders."""
    return [
        canonical(
            Softmax(
                vector=(16, 32, 64)[number % 3],
                unroll=(1, 2, 3, 8)[number % 4],
                block=(7, 100, 256)[number % 3],
                online=online,
                reciprocal=reciprocal,
                short_series=short_series,
                prefetch=prefetch,
            )
        )
        for number, (online, reciprocal, short_series, prefetch) in enumerate(
            itertools.product((False, True), repeat=4)
        )
    ]


def context(source: str = PLAIN_SOFTMAX, flags: tuple[str, ...] = ()) -> Context:
    """A session on softmax, far from the speed of memory."""
    profile = make_profile(Bottleneck.MEMORY, bandwidth__pct_of_peak=10.0, ipc=1.2)
    return make_context(source, flags, task=TASK, profile=profile)


class TestContract(FilteringContract):
    """The contract, on the plain kernel."""

    @pytest.fixture(autouse=True)
    def _near(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only the nearest members, so that exhausting them takes no time."""
        monkeypatch.setattr(c_softmax, "_FARTHEST", 1)

    @pytest.fixture
    def ideator(self) -> Ideator:
        """Rules with their shipped settings."""
        return RulesIdeator({})

    @pytest.fixture
    def context(self) -> Context:
        """A session on softmax."""
        return context()


class TestContractOnAMember(TestContract):
    """The contract, on a kernel of ours."""

    @pytest.fixture
    def context(self) -> Context:
        """A session that has come to the vectorised kernel."""
        return context(render(Softmax(vector=64)), NATIVE)


@needs_cc
def test_members_are_right_on_odd_shapes(tmp_path: Path) -> None:
    """Half of the structures: no warning, and agreement with double precision."""
    sources = [render(config) for config in members()[::2]]
    assert check("softmax", sources, ODD_SHAPES, tmp_path) == []


@needs_cc
@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-O1",), (*NATIVE, "-ffast-math")])
def test_every_structure_is_right_on_odd_shapes(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """All structures, under plain and under bold flags."""
    sources = [render(config) for config in members()]
    assert check("softmax", sources, ODD_SHAPES, tmp_path, flags) == []


@pytest.mark.parametrize("config", members(), ids=str)
def test_knows_its_own_texts(config: Softmax) -> None:
    """A rendered member is recognised as itself."""
    assert recognise(render(config)) == config


def test_every_rule_can_speak() -> None:
    """Each rule's sentences find their words."""
    spoken: set[str] = set()
    for source, flags in (
        (PLAIN_SOFTMAX, ()),
        (render(Softmax(vector=16)), (*NATIVE, "-funroll-loops")),
        (render(Softmax(vector=64, online=True)), NATIVE),
        ("#define WIDTH 8\n" + PLAIN_SOFTMAX, NATIVE),
    ):
        for proposal in itertools.islice(CMoves().proposals(context(source, flags)), 120):
            assert "{" not in proposal.summary + proposal.hypothesis
            spoken.add(proposal.levers[0])
    rules = CMoves()._knowledge.rule
    wanted = {rule.name for rule in rules if not rule.operators or "softmax" in rule.operators}
    assert wanted - spoken == set()


def test_fewer_passes_are_for_memory() -> None:
    """The online form expects more where memory is the bottleneck than where it is not."""

    def expected(bottleneck: Bottleneck) -> float:
        profile = make_profile(bottleneck, bandwidth__pct_of_peak=50.0)
        base = make_context(render(Softmax(vector=64)), NATIVE, task=TASK, profile=profile)
        moves = CMoves().proposals(base)
        return next(p.expected_gain for p in moves if p.levers[0] == "online")

    assert expected(Bottleneck.MEMORY) > expected(Bottleneck.COMPUTE)


def test_short_rows_keep_their_three_passes() -> None:
    """Where a row fits the first-level cache, fewer passes are no ranked idea."""
    short = TASK.model_copy(update={"shape": (4096, 512)})
    base = make_context(render(Softmax(vector=64)), NATIVE, task=short)
    moves = itertools.islice(CMoves().proposals(base), 40)
    assert "online" not in {proposal.levers[0] for proposal in moves}
