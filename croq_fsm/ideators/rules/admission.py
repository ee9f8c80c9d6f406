"""Which proposals the guards in force would admit, and what each would build."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import structlog

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.guards import identity, is_macro_only
from croq_fsm.domain.ideas import Proposal, apply_edit
from croq_fsm.errors import EditError
from croq_fsm.ideators.contract import Context

_log = structlog.get_logger(__name__)


def candidate_of(proposal: Proposal, base: Candidate) -> Candidate:
    """What the engine would build. Raises EditError when the edit does not apply."""
    return Candidate(
        source=apply_edit(proposal.edit, base.source),
        flags=proposal.flags,
        patches=proposal.patches,
    )


@dataclass
class Gate:
    """Filters one stream of proposals for one context.

    Attributes:
        context: The context whose guards are in force.
        refused: Count of dropped proposals by reason, for the log.
    """

    context: Context
    refused: dict[str, int] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._seen.add(identity(self.context.base.candidate))

    def admitted(self, proposals: Iterable[Proposal]) -> Iterator[Proposal]:
        """Those that the guards admit, in order, each candidate once."""
        for proposal in proposals:
            reason = self._objection(proposal)
            if reason:
                self.refused[reason] = self.refused.get(reason, 0) + 1
            else:
                yield proposal

    def _objection(self, proposal: Proposal) -> str:
        """Why a proposal is dropped; the cheap reasons come first."""
        context, base = self.context, self.context.base.candidate
        if proposal.category is context.avoid_category:
            return "category"
        try:
            candidate = candidate_of(proposal, base)
        except EditError as exc:
            # A rule that cannot be applied is a defect of the rules, not of the kernel.
            _log.warning(
                "a rule made an edit that does not apply", tag=proposal.tag, error=str(exc)
            )
            return "edit"
        if context.must_be_structural and is_macro_only(candidate, base):
            return "macro-only"
        key = identity(candidate)
        if key in self._seen or not context.is_new(candidate):
            return "known"
        self._seen.add(key)
        return "lint" if context.lint(candidate) else ""
