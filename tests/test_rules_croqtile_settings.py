"""Rules for Choreo kernels outside of the f16 family: settings that fit, and no f16 text."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files

import pytest
from ideator_contract import candidate_of
from rules_croqtile_support import context

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.guards import is_macro_only
from croq_fsm.domain.operators import SUPPORTED
from croq_fsm.domain.source import macros
from croq_fsm.domain.task import Task
from croq_fsm.ideators.contract import Context
from croq_fsm.ideators.rules.croqtile import CroqtileMoves
from croq_fsm.ideators.rules.croqtile_settings import FAMILY
from croq_fsm.toolchain.croqtile_lint import lint

OTHERS = sorted(SUPPORTED["croqtile"] - FAMILY)


def situation(operator: str, dtype: str) -> Context:
    """The start kernel of an operator on a large shape."""
    folder = files("croq_fsm.kernels").joinpath("croqtile", operator)
    source = folder.joinpath(f"{operator}_{dtype}_plain.co").read_text(encoding="utf-8")
    task = Task(
        dsl="croqtile",
        operator=operator,
        dtype=dtype,
        shape=(4096, 8192, 4096),
        kernel="",
        model="rules",
    )
    made = context(source=source)
    return replace(made, task=task, lint=lambda candidate: lint(candidate, task))


@pytest.mark.parametrize(("operator", "dtype"), OTHERS)
def test_each_other_operator_gets_ideas_that_no_lint_refuses(operator: str, dtype: str) -> None:
    """Structure changes, too, since macros alone are not allowed for long."""
    here = situation(operator, dtype)
    found = [candidate_of(p, here) for p in CroqtileMoves().proposals(here)]
    assert len({c.source for c in found}) == len(found) >= 4
    assert all(here.lint(candidate) == [] for candidate in found)
    assert any(not is_macro_only(c, here.base.candidate) for c in found)
    for candidate in found:
        assert f"__co__ void {operator}(" in candidate.source
        numbers = macros(candidate.source)
        height = numbers.get("TILE_M") or numbers["SPMM_TILE_M"]
        assert int(height) == 64 * int(numbers["CONSUMERS"])


def test_a_scale_keeps_its_block() -> None:
    """The width of a tile is that of a block of scales."""
    here = situation("blockscale_gemm", "e4m3f16")
    for proposal in CroqtileMoves().proposals(here):
        assert macros(candidate_of(proposal, here).source)["TILE_N"] == "128"


def test_rows_of_scales_and_metadata_are_never_read_beyond_their_end() -> None:
    """4096 rows are no multiple of 192, and only the copy engine cuts rows off."""
    for operator, heights in (("gemm_sp", {"64", "128"}), ("matmul", {"64", "128", "192"})):
        here = situation(operator, "e4m3f16")
        name = "SPMM_TILE_M" if operator == "gemm_sp" else "TILE_M"
        found = {
            macros(candidate_of(p, here).source)[name] for p in CroqtileMoves().proposals(here)
        }
        assert found == heights


def test_a_kernel_of_another_form_gets_nothing() -> None:
    """Without the macros that settings turn, nothing is guessed."""
    here = situation("matmul", "e4m3f16")
    other = Candidate(source=here.base.candidate.source.replace("CONSUMERS", "GROUPS"))
    here = replace(here, base=replace(here.base, candidate=other))
    assert list(CroqtileMoves().proposals(here)) == []
