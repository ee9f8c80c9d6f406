"""Other ways to realise an idea whose first form failed, by what the tools said about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.states import Decision
from croq_fsm.ideators.contract import Failure
from croq_fsm.ideators.rules.croqtile_case import Case
from croq_fsm.ideators.rules.croqtile_config import Gemm, changed, register_pair
from croq_fsm.ideators.rules.croqtile_edits import smallest
from croq_fsm.ideators.rules.croqtile_limits import is_feasible, settled
from croq_fsm.ideators.rules.croqtile_read import read
from croq_fsm.ideators.rules.croqtile_render import render

_REGISTERS: Final = re.compile(
    r"C7602|register allocation failed|too many registers|\bspill", re.IGNORECASE
)
_SHARED: Final = re.compile(r"shared memory|shared data", re.IGNORECASE)
_PATCH: Final = re.compile(r"patch of the generated source")
_MOST_FOR_CONSUMERS: Final = {2: (24, 240)}


def repaired(case: Case, proposal: Proposal, failure: Failure) -> Iterator[Proposal]:
    """Proposals on the same base under the same tag, most promising first."""
    if proposal.patches and _PATCH.search(f"{failure.message} {failure.log}"):
        yield proposal.model_copy(
            update={
                "patches": (),
                "summary": f"{proposal.summary}; without patches, which do not match"[:2000],
            }
        )
    reading = read(failure.candidate.source)
    if reading is None or not reading.exact:
        return
    for config, change in _others(reading.config, failure):
        config = settled(config, case.shape)  # noqa: PLW2901 - the legal form of the same repair
        if changed(reading.config, config) and is_feasible(config, case.shape, case.machine):
            yield _again(case, proposal, config, change)


def _again(case: Case, proposal: Proposal, config: Gemm, change: str) -> Proposal:
    edit = smallest(case.context.base.candidate.source, render(config))
    summary = f"{proposal.summary}; repaired: {change}"[:2000]
    return proposal.model_copy(update={"edit": edit, "summary": summary})


def _others(config: Gemm, failure: Failure) -> Iterator[tuple[Gemm, str]]:
    """Forms of a configuration that avoid what the failure speaks of."""
    if _REGISTERS.search(failure.log):
        yield from _other_registers(config)
    if _SHARED.search(failure.log):
        yield replace(config, stages=config.stages - 1), "a stage less, so that shared memory fits"
    if failure.kind is not Decision.COMPILE_FAIL:
        yield from _more_cautious(config)


def _other_registers(config: Gemm) -> Iterator[tuple[Gemm, str]]:
    most = _MOST_FOR_CONSUMERS.get(config.consumers, register_pair(config.consumers))
    if most is not None and config.registers != most:
        yield replace(config, registers=most), f"consumers get {most[1]} registers"
    if config.registers is not None:
        yield replace(config, registers=None), "registers stay where the launch puts them"


def _more_cautious(config: Gemm) -> Iterator[tuple[Gemm, str]]:
    """For a kernel that ran and was wrong, crashed or hung: simpler synchronisation."""
    if config.guarded and config.guard == "event":
        yield replace(config, guard="barrier"), "a barrier guards the staging tile"
    if config.release != "thread":
        yield replace(config, release="thread"), "every thread gives the stage back"
    if config.layout == "panels":
        rows = replace(config, layout="rows", turns=1)
        yield rows, "plain rows in the staging tile"
