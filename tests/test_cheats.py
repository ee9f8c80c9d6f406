"""Kernels that cheat: each is caught, on the rung that its header names; honest ones pass."""

from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from c_kernels import needs_cc
from croqtile_support import shipped

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.states import Decision
from croq_fsm.toolchain.c import CWorkbench
from croq_fsm.toolchain.croqtile_twins import twins
from support import cheats
from support.cheats import Caught, Cheat

CORPUS, HONEST = cheats.corpus(), cheats.honest()
WRITE_DOCS = Path(__file__).resolve().parent.parent / "scripts" / "write_docs.py"

Climb = Callable[[Cheat], Caught]


@pytest.fixture(scope="module")
def climb() -> Iterator[Climb]:
    """Sends a kernel up the ladder; workbenches are opened once."""
    benches: dict[int, CWorkbench] = {}
    with ExitStack() as stack:

        def go(cheat: Cheat) -> Caught:
            if cheat.facts.get("needs", platform.machine()) != platform.machine():
                pytest.skip(f"written for {cheat.facts['needs']}")
            if cheat.threads not in benches:
                benches[cheat.threads] = stack.enter_context(cheats.workbench(cheat.threads))
            return cheats.climb(benches[cheat.threads], cheat)

        yield go


def _marked(found: list[Cheat]) -> list[object]:
    """Parameters with the marks that the headers ask for."""
    return [pytest.param(cheat, id=cheat.name, marks=_marks(cheat)) for cheat in found]


def _marks(cheat: Cheat) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.slow] if cheat.is_slow else []
    if "open" in cheat.facts:
        marks.append(pytest.mark.xfail(strict=True, reason=cheat.facts["open"]))
    return marks


@needs_cc
@pytest.mark.parametrize("cheat", _marked(CORPUS))
def test_cheats_are_caught(climb: Climb, cheat: Cheat) -> None:
    """The ladder stops each cheat where its header says, with the outcome that it says."""
    found = climb(cheat)
    assert found in cheat.ends, found.reason
    assert found.reason


@needs_cc
@pytest.mark.parametrize("cheat", _marked(HONEST))
def test_honest_kernels_pass(climb: Climb, cheat: Cheat) -> None:
    """What a good kernel does to be quick is no cheat."""
    found = climb(cheat)
    assert found.rung == "nothing", found.reason


def test_each_row_has_a_cheat() -> None:
    """No row of the catalogue is only words, and no header names another row, rung or outcome."""
    on_cpu = {cheat.facts["row"] for cheat in CORPUS}
    on_gpu = {twin.row for twin in cheats.cuda_twins().values()}
    on_gpu |= {row for row, _, _ in cheats.GPU.values()}
    assert on_cpu | on_gpu == set(cheats.ROWS)
    catalogue = {str(row) for row in range(1, 25)} | {"C1", "C4", "C8"}
    for tried, absent in ((on_cpu, cheats.NOT_FOR_CPU), (on_gpu, cheats.NOT_FOR_GPU)):
        reasoned = {row.partition(" ")[0] for row in absent}
        assert not tried & reasoned
        assert (tried - {"-"}) | reasoned == catalogue
    rungs = {"lint", "build", "verify", "time", "hidden-shape", "sanitizer"}
    assert {cheat.caught.rung for cheat in CORPUS} == rungs
    assert {cheat.caught.outcome for cheat in CORPUS} <= {decision.name for decision in Decision}
    assert {cheat.facts["caught"] for cheat in HONEST} == {"nothing"}


def test_the_page_is_what_is_found() -> None:
    """docs/cheats.md tells of the same cheats, rungs and outcomes as these tests, and no others."""
    spec = importlib.util.spec_from_file_location("write_docs", WRITE_DOCS)
    assert spec is not None
    assert spec.loader is not None
    write_docs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write_docs)
    page = write_docs.CHEATS.read_text(encoding="utf-8")
    tables = cheats.tables({cheat.name: cheats.expected(cheat) for cheat in CORPUS})
    assert write_docs.renewed(page, tables) == page
    spoilt = page.replace("| lint | COMPILE_FAIL |", "| build | COMPILE_FAIL |", 1)
    assert spoilt != page
    assert write_docs.renewed(spoilt, tables) == page


def test_gpu_rows_are_those_of_the_device_check() -> None:
    """The page's second table tells of the wrong kernels of the device check, all of them."""
    known = twins(Candidate(source=shipped("f16_plain")))
    assert set(cheats.GPU) == set(known)
    outcomes = {
        "wrong": "VERIFY_FAIL",
        "CandidateCrashed": "SEGFAULT",
        "CandidateHung": "HANG",
        "CandidateRefused": "RUN_FAIL",
        "timed": "RUN_FAIL",
    }
    for name, (_, _, outcome) in cheats.GPU.items():
        assert outcome == outcomes[known[name].fails], name
