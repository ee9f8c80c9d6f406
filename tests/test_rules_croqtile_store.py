"""The store by warpgroup: patches of the generated text, written anew for a base's numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from croqtile_support import need_choreo, need_gpu, need_nvcc, real_runner, task, workbench
from rules_croqtile_support import COMPILED, MACHINE, MAIN, context

from croq_fsm.config import Config, Deadlines
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import SetMacros
from croq_fsm.ideators.rules import croqtile_patches as patches
from croq_fsm.ideators.rules.croqtile import CroqtileMoves
from croq_fsm.ideators.rules.croqtile_config import Gemm, Shape
from croq_fsm.ideators.rules.croqtile_limits import is_feasible, settled
from croq_fsm.ideators.rules.croqtile_render import render
from croq_fsm.toolchain.croqtile import CroqtileWorkbench

#: Members whose output can leave by warpgroup.
MEMBERS = {
    "two_consumers": COMPILED["persistent_200"],
    "bands": replace(COMPILED["persistent_200"], order="gm", group=8, uniform=True, unroll=4),
    "panels": Gemm(
        tile_n=192, stages=4, ctas=132, registers=(40, 232), uniform=True, layout="panels"
    ),
    "panels_in_turns": Gemm(
        stages=4, ctas=132, registers=(40, 232), uniform=True, layout="panels", turns=2, unroll=4
    ),
    "bf16_panels_in_turns": Gemm(
        stages=4, ctas=132, registers=(40, 232), layout="panels", turns=2, element="bf16"
    ),
    "three_consumers": Gemm(
        tile_m=192, tile_n=104, stages=4, consumers=3, ctas=132, registers=(32, 160)
    ),
}


def text_of(config: Gemm) -> str:
    """A generated text that holds every place which the patches look for, once."""
    return "\n".join(edit.search for edit in patches._group_store(config))


@pytest.mark.parametrize("config", MEMBERS.values(), ids=MEMBERS)
def test_it_is_proposed_where_it_fits(config: Gemm) -> None:
    """A base whose generated text has all the places gets the idea, with evidence."""
    asked = context(source=render(config), generated=text_of(config), dtype=config.element)
    found = [p for p in CroqtileMoves().proposals(asked) if "group_store" in p.levers]
    assert [p.patches for p in found] == [patches._group_store(config)]
    assert found[0].metrics


def test_it_is_not_proposed_twice_nor_without_its_text() -> None:
    """Neither a base that has it, nor one whose generated text looks otherwise, gets it."""
    config = MEMBERS["two_consumers"]
    asked = context(source=render(config), generated="something else")
    assert not any("group_store" in p.levers for p in CroqtileMoves().proposals(asked))
    applied = patches._group_store(config)
    base = asked.base.candidate.model_copy(update={"patches": applied})
    again = replace(asked, base=replace(asked.base, candidate=base, generated=text_of(config)))
    assert not any("group_store" in p.levers for p in CroqtileMoves().proposals(again))


@pytest.mark.parametrize(
    "change",
    [
        {"ctas": 0},
        {"staging": "stage"},
        {"layout": "panels", "tile_n": 256, "turns": 4},
        {"guard": "event"},
        {"tile_m": 64, "consumers": 1, "registers": None},
        {"tile_m": 256},
    ],
    ids=str,
)
def test_other_structures_keep_the_common_store(change: dict[str, object]) -> None:
    """One tile a block, dead stages, lone panels or consumers, events, tall shares stay."""
    config = replace(MEMBERS["two_consumers"], **change)  # type: ignore[arg-type]
    assert not patches.can_store_by_group(config)
    assert patches.group_store(config, text_of(MEMBERS["two_consumers"])) == ()


def test_numbers_of_the_patches_follow_the_macros() -> None:
    """A base with the patches that gets another width gets the patches for that width."""
    config = MEMBERS["two_consumers"]
    asked = context(source=render(config))
    candidate = asked.base.candidate.model_copy(update={"patches": patches._group_store(config)})
    asked = replace(asked, base=replace(asked.base, candidate=candidate))
    others = [p for p in CroqtileMoves().proposals(asked) if isinstance(p.edit, SetMacros)]
    widths = [p for p in others if "TILE_N" in p.edit.macros]  # type: ignore[union-attr]
    assert widths
    for proposal in widths:
        width = int(proposal.edit.macros["TILE_N"])  # type: ignore[union-attr]
        assert any(f"(uint32_t)({width}), (uint32_t)(64)" in p.replace for p in proposal.patches)


def test_small_savings_are_tried_together_first() -> None:
    """Uniform index and unrolling come as one idea before they come alone."""
    asked = context(source=render(COMPILED["persistent_200"]))
    levers = [p.levers for p in CroqtileMoves().proposals(asked)]
    together = levers.index(("polish", "uniform", "unroll"))
    alone = [i for i, names in enumerate(levers) if names[0] in ("uniform", "unroll")]
    assert alone
    assert together < min(alone)


@pytest.mark.choreo
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("config", MEMBERS.values(), ids=MEMBERS)
def test_the_compilers_take_it(config: Gemm, tmp_path: Path) -> None:
    """Every patch matches what Choreo writes, and nvcc compiles the result."""
    need_choreo()
    need_nvcc()
    bench = workbench(tmp_path)
    asked = task(config.element, MAIN)
    plain = bench.build(Candidate(source=render(config)), asked)
    text = bench.read(plain.generated).decode()
    found = patches.group_store(config, text)
    assert len(found) == len(patches._group_store(config))
    made = bench.build(Candidate(source=render(config), patches=found), asked)
    assert made.resources["spill_bytes"] <= plain.resources["spill_bytes"]


@pytest.mark.gpu
@pytest.mark.choreo
@pytest.mark.timeout(300)
@pytest.mark.parametrize("shape", [MAIN, (1000, 1216, 520), (200, 8256, 1088), (1056, 1984, 192)])
@pytest.mark.parametrize("config", MEMBERS.values(), ids=MEMBERS)
def test_it_is_right_on_a_device(config: Gemm, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Each element is right for several seeds, also where tiles hang over the edges."""
    need_choreo()
    need_nvcc()
    need_gpu()
    fit = settled(config, Shape(*shape))
    if not is_feasible(fit, Shape(*shape), MACHINE):
        pytest.skip("the member does not fit this shape")
    bench = CroqtileWorkbench(
        real_runner(), Config(deadlines=Deadlines(verify_s=20.0)), tmp_path / "c", tmp_path / "w"
    )
    asked = task(fit.element, shape)
    candidate = Candidate(source=render(fit), patches=patches._group_store(fit))
    found = bench.verify(bench.build(candidate, asked), asked, (1, 2, 3))
    assert found.passed, found.first_failure
