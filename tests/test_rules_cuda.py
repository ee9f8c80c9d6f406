"""Moves of DSL ``cuda``: settings within the device's limits, and flags."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from cuda_support import shipped, task
from ideator_contract import FilteringContract, Session, candidate_of
from rules_croqtile_support import H200
from rules_croqtile_support import context as croqtile_context

from croq_fsm.domain.guards import is_macro_only
from croq_fsm.domain.states import Decision
from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules import RulesIdeator
from croq_fsm.ideators.rules import cuda_tiling as tiling
from croq_fsm.ideators.rules.cuda import CudaMoves
from croq_fsm.toolchain.cuda_rules import lint


def make(source: str | None = None, flags: tuple[str, ...] = ()) -> Context:
    """A context of a cuda session."""
    made = croqtile_context(source=source or shipped("f16_plain"), flags=flags)
    asked = task()
    return replace(made, task=asked, dialect={}, lint=lambda candidate: lint(candidate, asked))


class TestRulesOnCuda(FilteringContract):
    """The rules ideator keeps the contract on the shipped CUDA kernel."""

    @pytest.fixture
    def ideator(self) -> RulesIdeator:
        """The ideator under test."""
        return RulesIdeator({})

    @pytest.fixture
    def context(self) -> Context:
        """A session that has just begun."""
        return make()


def test_every_setting_is_within_the_limits() -> None:
    """What is proposed meets the kernel's own static_asserts, and keeps its text but macros."""
    context = make()
    seen = 0
    for proposal in islice(CudaMoves().proposals(context), 400):
        candidate = candidate_of(proposal, context)
        values = tiling.read(candidate.source).values
        assert values["m"] % (16 * values["warps_m"]) == 0
        assert values["n"] % (16 * values["warps_n"]) == 0
        staged = values["stages"] * (values["m"] + values["n"]) * (values["k"] + 8) * 2
        assert staged <= H200.limits["smem_per_block"]
        assert values["warps_m"] * values["warps_n"] * 32 <= H200.limits["threads_per_block"]
        assert not context.lint(candidate)
        seen += 1
    assert seen == 400


def test_structure_can_change_again_and_again() -> None:
    """After two rounds of macros alone there is always a flag to turn, too."""
    context = make()
    session = Session(context, lambda _candidate: Decision.DISCARD)
    played = list(session.play(RulesIdeator({}), 30))
    macro_only = [is_macro_only(c, context.base.candidate) for _, c in played]
    assert len(played) == 30
    assert not all(macro_only)
    assert all(not all(macro_only[i : i + 3]) for i in range(28))


def test_other_names_are_known_and_unknown_ones_still_turn() -> None:
    """Macros by their usual names are levers; any number is one when none of those is there."""
    assert tiling.read("#define BM 64\n#define BN 128\n#define STAGES 3\n").values == {
        "m": 64,
        "n": 128,
        "stages": 3,
    }
    strange = shipped("f16_plain").replace("TILE_M", "HEIGHT").replace("TILE_N", "WIDTH")
    for name in ("TILE_K", "STAGES", "WARPS_M", "WARPS_N", "GROUP_M"):
        strange = strange.replace(name, f"X{name}")
    tags = [p.tag for p in CudaMoves().proposals(make(strange))]
    assert any("height" in tag for tag in tags)


def test_limits_rule_out_what_cannot_run() -> None:
    """Shared memory, threads, registers, whole fragments, a single stage."""
    context = make()
    good = dict(tiling.read(shipped("f16_plain")).values)
    assert tiling.fits(good, context)
    for bad in (
        {"stages": 16},
        {"stages": 1},
        {"warps_m": 16, "warps_n": 8},
        {"warps_m": 1, "warps_n": 1},
        {"n": 72},
        {"k": 24},
    ):
        assert not tiling.fits({**good, **bad}, context), bad


def test_a_flag_takes_the_place_of_its_rivals() -> None:
    """No candidate carries two values of one option."""
    context = make(flags=("nvcc:-maxrregcount=168",))
    for proposal in islice(CudaMoves().proposals(context), 50):
        assert sum("maxrregcount" in flag for flag in proposal.flags) <= 1
