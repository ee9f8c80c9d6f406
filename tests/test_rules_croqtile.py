"""Moves on Choreo GEMMs: ranked, feasible, one idea each, resting on what was measured."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from croqtile_support import shipped
from ideator_contract import FilteringContract, Session, candidate_of, make_failure
from rules_croqtile_support import (
    COMPILED,
    CONFLICTS,
    COUNTERS,
    MACHINE,
    MAIN,
    SHAPES,
    TENSOR,
    context,
    profile,
)

from croq_fsm.domain import guards
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import NoEdit, Proposal, Replace, SetMacros, WholeSource
from croq_fsm.domain.states import Category, Decision
from croq_fsm.errors import UsageError
from croq_fsm.ideators.contract import Context, Ideator
from croq_fsm.ideators.rules import RulesIdeator
from croq_fsm.ideators.rules.admission import Gate
from croq_fsm.ideators.rules.croqtile import CroqtileMoves
from croq_fsm.ideators.rules.croqtile_config import Gemm, Shape, changed
from croq_fsm.ideators.rules.croqtile_limits import settled, violations
from croq_fsm.ideators.rules.croqtile_moves import OPERATORS
from croq_fsm.ideators.rules.croqtile_read import read
from croq_fsm.ideators.rules.croqtile_render import render
from croq_fsm.ideators.rules.knowledge import load
from croq_fsm.ideators.rules.moves import Repairs, moves_for

MOVES = CroqtileMoves()
BEST = COMPILED["persistent_200"]

#: More than any base has ranked ideas; and enough to see the enumeration at work.
RANKED, MANY = 60, 100

#: Lines that the compiler writes for the plain kernel and that patches look for.
GENERATED = """
  [[maybe_unused]] auto __choreo_vg4id_x = threadIdx.x / 128;
""" + "".join(
    f"""
          __choreo_tma_{i}_elem_strides,
          CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
          CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
          CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
"""
    for i in range(3)
)


def ideas(made: Context, count: int | None = None) -> list[Proposal]:
    """The first proposals that the policy's gate admits."""
    return list(islice(Gate(made).admitted(MOVES.proposals(made)), count))


def named(made: Context, operator: str) -> list[Proposal]:
    """Ranked proposals of one operator; the enumeration comes after all of them."""
    return [p for p in islice(MOVES.proposals(made), RANKED) if p.levers[0] == operator]


def built(proposal: Proposal, made: Context) -> Gemm:
    """What a proposal builds, as the reader sees it."""
    reading = read(candidate_of(proposal, made).source)
    assert reading is not None
    return reading.config


class TestRulesOnCroqtile(FilteringContract):
    """The policy over these moves keeps the promises of every ideator."""

    @pytest.fixture
    def ideator(self) -> Ideator:
        """The rules."""
        return RulesIdeator({})

    @pytest.fixture
    def context(self) -> Context:
        """A session on the main shape with the shipped plain kernel."""
        return context(generated=GENERATED, profile=profile({TENSOR: 81.0, CONFLICTS: 9000.0}))


def test_the_port_finds_them() -> None:
    """The policy's registry gives these moves, and they can repair."""
    found = moves_for("croqtile")
    assert isinstance(found, CroqtileMoves)
    assert isinstance(found, Repairs)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("start", ["f16_plain", "f16_warpspec", "family"])
def test_proposals_hold_what_they_promise(shape: tuple[int, ...], start: str) -> None:
    """Feasible, unique, one idea on the base, guards and lints content, evidence quoted."""
    base = render(settled(COMPILED["uniform_event_200"], Shape(*shape)))
    made = context(shape, base if start == "family" else shipped(start))
    seen: set[str] = set()
    for proposal in islice(MOVES.proposals(made), MANY):
        candidate = candidate_of(proposal, made)
        key = guards.identity(candidate)
        assert key not in seen
        seen.add(key)
        assert made.lint(candidate) == [], proposal.tag
        assert facts_refused(proposal, candidate, made) == []
        assert set(proposal.metrics) <= COUNTERS.keys()
        assert all(name in proposal.hypothesis for name in proposal.metrics)
        if not isinstance(proposal.edit, NoEdit):
            assert violations(built(proposal, made), Shape(*shape), MACHINE) == []
    assert len(seen) == MANY


def facts_refused(proposal: Proposal, candidate: Candidate, made: Context) -> list[str]:
    """What the engine's guards would say."""
    facts = guards.Facts(
        proposal=proposal,
        candidate=candidate,
        base=made.base.candidate,
        active_bases=(made.base.iteration,),
        profile=made.profile,
        macro_run=0,
        macro_limit=2,
        is_tried=lambda _key: False,
        has_fingerprint=lambda _key: False,
    )
    return guards.refusals(facts)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_operator_changes_what_its_idea_is_about(shape: tuple[int, ...]) -> None:
    """No operator turns a choice that it does not declare, and levers name all that turn."""
    for source in (shipped("f16_plain"), render(settled(BEST, Shape(*shape)))):
        made = context(shape, source)
        reading = read(source)
        assert reading is not None
        for proposal in islice(MOVES.proposals(made), MANY):
            name, *turned = proposal.levers
            actual = set(changed(reading.config, built(proposal, made)))
            assert actual <= set(turned), proposal.tag
            if name in OPERATORS:
                assert set(turned) <= OPERATORS[name].choices, proposal.tag


def test_the_calculated_tile_comes_first_on_the_main_shape() -> None:
    """128x200 with four stages, persistent, is among the first handful from the plain kernel."""
    made = context()
    first = [built(p, made) for p in ideas(made, 5)]
    assert any((c.tile_m, c.tile_n, c.stages, c.ctas) == (128, 200, 4, MACHINE.sms) for c in first)


def test_single_ideas_follow_from_the_plain_kernel() -> None:
    """Tile, output path, persistence and uniform index each come alone, with the right edit."""
    made = context()
    found = {p.levers[0]: p for p in reversed(ideas(made, 12))}
    assert {"retile", "panels", "persist", "uniform", "registers"} <= found.keys()
    assert found["retile"].edit == SetMacros(macros={"TILE_N": "200", "STAGES": "4"})
    assert built(found["panels"], made).layout == "panels"
    persistent = built(found["persist"], made)
    assert (persistent.ctas, persistent.tile_n) == (MACHINE.sms, 256)
    assert built(found["uniform"], made) == Gemm(uniform=True)


def test_the_best_start_is_improved_in_small_steps() -> None:
    """From the shipped persistent kernel on, the first ideas are instructions, order, guard."""
    made = context(source=shipped("f16_warpspec"), generated=GENERATED)
    first = [p.levers[0] for p in ideas(made, 6)]
    assert first[:2] == ["uniform_patch", "polish"]
    assert "calculated" not in first
    assert "guard_event" in first


def test_expectations_fall() -> None:
    """The stream is ordered by expected gain as far as ideas are ranked."""
    gains = [p.expected_gain for p in ideas(context(), 12)]
    assert gains == sorted(gains, reverse=True)
    assert all(0 < gain < 0.5 for gain in gains)


def test_small_problems_get_small_tiles_first() -> None:
    """With fewer tiles than SMs the first idea is to cut smaller ones."""
    made = context((1024, 1024, 1024), profile=profile({TENSOR: 20.0}))
    first = ideas(made, 1)[0]
    assert first.levers[0] == "small_tiles"
    assert "132 SMs" in first.hypothesis
    config = built(first, made)
    assert config.ctas == 0
    assert config.stages >= 7


def test_evidence_gates_the_output_path() -> None:
    """No conflicts in the profile: nothing to repair in the output path."""
    quiet = profile(COUNTERS | {CONFLICTS: 0.0})
    assert named(context(profile=quiet), "panels") == []
    assert named(context(), "panels") != []


def test_evidence_gates_persistence() -> None:
    """A kernel whose blocks have one tile each is not made persistent."""
    made = context((1024, 2048, 4096))
    assert named(made, "persist") == []


def test_full_tensor_cores_leave_little_to_expect() -> None:
    """What the tensor cores leave idle bounds every modelled expectation."""
    made = context(profile=profile(COUNTERS | {TENSOR: 97.0}))
    assert max(p.expected_gain for p in ideas(made, 20)) <= 100 / 97 - 1 + 0.01 + 1e-9


def test_a_profile_without_metrics_is_not_invented() -> None:
    """Nothing is quoted that is not there."""
    made = context(profile=profile({}))
    for proposal in islice(MOVES.proposals(made), 30):
        assert proposal.metrics == ()
        assert "compute_bound" in proposal.hypothesis
        assert not re.search(r"__\w+ is ", proposal.hypothesis)


@pytest.mark.parametrize("category", list(Category))
def test_every_kind_of_idea_exists(category: Category) -> None:
    """The escalation can rule one category out and still find another."""
    made = context(generated=GENERATED)
    assert any(p.category is category for p in islice(MOVES.proposals(made), RANKED))


def test_bases_of_unknown_form_are_replaced() -> None:
    """A text that cannot be read gives whole kernels, the calculated one first."""
    made = context(source="__co__ void matmul(global f16 [M, K] lhs) { }\n")
    first = list(islice(MOVES.proposals(made), 3))
    assert first[0].levers[0] == "calculated"
    assert isinstance(first[0].edit, WholeSource)
    assert built(first[0], made).tile_n == 200


def test_direct_stores_are_staged() -> None:
    """A kernel that stores from registers is given a staging tile, as one idea."""
    text = shipped("f16_plain").replace("    tma.copy out_s => ", "    // ")
    [proposal] = named(context(source=text), "staged_output")
    assert "tma.copy out_s" in candidate_of(proposal, context(source=text)).source


def test_patches_need_their_text() -> None:
    """Patches come only when each matches the generated text exactly once."""
    start = shipped("f16_warpspec")
    with_text = context(source=start, generated=GENERATED)
    [uniform] = named(with_text, "uniform_patch")
    assert isinstance(uniform.edit, NoEdit)
    assert all(GENERATED.count(edit.search) == 1 for edit in uniform.patches)
    [wide] = named(with_text, "l2_promotion")
    assert [edit.search.split("_elem")[0] for edit in wide.patches] == [
        "__choreo_tma_0",
        "__choreo_tma_1",
    ]
    for text in ("", GENERATED * 2):
        without = context(source=start, generated=text)
        assert named(without, "uniform_patch") == []
        assert named(without, "l2_promotion") == []


def test_the_familys_own_text_needs_no_index_patch() -> None:
    """Where the text itself can say that the index is uniform, the text is changed."""
    made = context(source=render(BEST), generated=GENERATED)
    assert named(made, "uniform_patch") == []
    assert named(made, "uniform") != []


def test_patches_stay_where_they_can() -> None:
    """Macro edits keep all patches; a new text keeps known ones, and says itself what it can."""
    start = context(source=shipped("f16_warpspec"), generated=GENERATED)
    [uniform], [wide] = named(start, "uniform_patch"), named(start, "l2_promotion")
    alien = Replace(search="abc", replace="def")
    patched = start.base.candidate.model_copy(
        update={"patches": (*uniform.patches, *wide.patches, alien)}
    )
    made = replace(start, base=replace(start.base, candidate=patched))
    for proposal in islice(MOVES.proposals(made), MANY):
        if isinstance(proposal.edit, SetMacros):
            assert proposal.patches == patched.patches
        elif isinstance(proposal.edit, WholeSource):
            assert proposal.patches == wide.patches
    [order, *_] = [p for p in ideas(made, MANY) if p.levers[1:2] == ("order",)]
    assert built(order, made).uniform


def test_flags_are_kept_and_added() -> None:
    """Each proposal gives the complete flags; a flag comes only when a compiler knows it."""
    made = context(flags=("nvcc:-DNDEBUG",))
    found = ideas(made, RANKED)
    assert all(p.flags[:1] == ("nvcc:-DNDEBUG",) for p in found)
    assert named(made, "flag_ndebug") == []
    assert named(made, "flag_hoist") == []
    spring = context(dialect={"dialect": "spring", "flags": "--hoist-offset"})
    [hoist] = named(spring, "flag_hoist")
    assert hoist.flags == ("choreo:--hoist-offset",)


def test_short_reductions_keep_the_barrier() -> None:
    """With no more steps than stages every persistent proposal is guarded by a barrier."""
    made = context((4096, 8192, 256))
    configs = [built(p, made) for p in ideas(made, 80) if not isinstance(p.edit, NoEdit)]
    persistent = [c for c in configs if c.ctas]
    assert persistent
    assert all(
        c.guard == "barrier" or c.steps(Shape(4096, 8192, 256)) > c.stages for c in persistent
    )


def test_bf16_stays_bf16() -> None:
    """The element type is the task's, in every text."""
    made = context(dtype="bf16")
    for proposal in ideas(made, 40):
        text = candidate_of(proposal, made).source
        assert "global bf16" in text
        assert "global f16" not in text


def test_a_night_does_not_run_out_of_ideas() -> None:
    """Sixty rounds in which nothing helps, with the guards of macro runs, and still an idea."""
    session = Session(context(generated=GENERATED), lambda _candidate: Decision.DISCARD)
    rounds = list(session.play(RulesIdeator({}), 60))
    assert len(rounds) == 60


def test_a_night_with_success_moves_on() -> None:
    """When what the model likes is kept, the base becomes the calculated kernel and better."""

    def decide(candidate: Candidate) -> Decision:
        reading = read(candidate.source)
        good = reading is not None and reading.config.tile_n == 200 and reading.config.ctas > 0
        return Decision.KEEP if good and reading and reading.config.uniform else Decision.DISCARD

    session = Session(context(source=shipped("f16_warpspec")), decide)
    list(session.play(RulesIdeator({}), 10))
    final = read(session.context.base.candidate.source)
    assert final is not None
    assert final.config.uniform


def test_the_knowledge_is_sound(tmp_path: Path) -> None:
    """Every rule has an operator, every operator a rule, and every sentence its words."""
    names = {rule.name for rule in load("croqtile").rule}
    assert OPERATORS.keys() <= names
    text = '[[rule]]\nname = "magic"\ncategory = "misc"\ngain = 1\nwhat = "x"\nwhy = "y"\n'
    (tmp_path / "croqtile.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="magic"):
        CroqtileMoves(tmp_path)


def failed(config: Gemm, kind: Decision, log: str) -> list[Gemm]:
    """What the repairs of a failed configuration build."""
    made = context(source=shipped("f16_warpspec"))
    candidate = Candidate(source=render(config))
    proposal = next(iter(MOVES.proposals(made)))
    proposal = proposal.model_copy(update={"edit": WholeSource(source=candidate.source)})
    repairs = MOVES.repairs(made, proposal, make_failure(candidate, kind, log))
    return [built(repair, made) for repair in repairs]


def test_repairs_read_the_compilers_words() -> None:
    """Too many registers, too much shared memory: the same idea in a form that avoids it."""
    config = COMPILED["uniform_event_200"]
    registers = failed(config, Decision.COMPILE_FAIL, "ptxas: (C7602) register allocation failed")
    assert [c.registers for c in registers] == [(24, 240), None]
    [smaller] = failed(config, Decision.COMPILE_FAIL, "error: shared memory OUT OF BOUND!")
    assert smaller.stages == config.stages - 1
    assert failed(config, Decision.COMPILE_FAIL, "syntax error") == []


def test_repairs_of_wrong_kernels_are_more_cautious() -> None:
    """A wrong or hanging kernel is tried with simpler synchronisation, then plain rows."""
    config = replace(COMPILED["turns_256"], release="warp", stages=3, turns=1)
    repaired = failed(config, Decision.VERIFY_FAIL, "")
    assert [changed(config, c) for c in repaired] == [("guard",), ("release",), ("layout",)]


def test_repairs_drop_patches_that_do_not_match() -> None:
    """A patch that the compiler's text defeats is given up, the idea is not."""
    made = context(source=shipped("f16_warpspec"), generated=GENERATED)
    [patch] = named(made, "uniform_patch")
    bad = patch.model_copy(update={"edit": SetMacros(macros={"STAGES": "3"})})
    failure = make_failure(
        candidate_of(bad, made), log="a patch of the generated source does not apply: 0 times"
    )
    first = next(iter(MOVES.repairs(made, bad, failure)))
    assert first.patches == ()


def test_shapes_that_nothing_carries_give_no_kernels() -> None:
    """Lines that the copy engine cannot step over: flags and patches at most are proposed."""
    made = context((4096, 8191, 4096))
    assert all(isinstance(p.edit, NoEdit) for p in MOVES.proposals(made))


def test_the_main_shape_is_no_special_case() -> None:
    """A shape never seen before is calculated as well."""
    made = context((5376, 3840, 2048))
    first = [built(p, made) for p in ideas(made, 3)]
    assert first[0] != Gemm()
    assert made.task.shape != MAIN
