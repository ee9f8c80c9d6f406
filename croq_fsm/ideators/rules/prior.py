"""How well each operator has done in this session: a Beta success rate per operator."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.states import Decision
from croq_fsm.ideators.contract import Past

#: Beta(a, b) before any evidence: one success in two tries.
_SUCCESSES: Final = 1.0
_FAILURES: Final = 1.0

#: What a change is worth again after it failed once, on whatever base.
_SAME_AGAIN: Final = 0.4

#: A round that was faster by more than this, but not certainly so, is half a success.
_PROMISING, _HALF = 1.02, 0.5

_TAIL: Final = re.compile(r"[_0-9].*$")


def operator_of(levers: tuple[str, ...], tag: str) -> str:
    """The operator that a round turned: its first lever, else the first word of its tag."""
    return levers[0] if levers else _TAIL.sub("", tag)


@dataclass
class Prior:
    """Success rates learnt from the rounds of a session.

    Attributes:
        successes: Successes per operator; a KEEP is one, a gain within the noise a half.
        tried: Rounds per operator.
        failed: Rounds per tag that were no success at all.
    """

    successes: dict[str, float] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)

    @classmethod
    def learn(cls, history: Iterable[Past]) -> Prior:
        """Count what the history says."""
        prior = cls()
        for past in history:
            name, success = operator_of(past.levers, past.tag), _success(past)
            prior.tried[name] = prior.tried.get(name, 0) + 1
            prior.successes[name] = prior.successes.get(name, 0.0) + success
            if not success:
                prior.failed[past.tag] = prior.failed.get(past.tag, 0) + 1
        return prior

    def weight(self, proposal: Proposal) -> float:
        """Posterior mean over prior mean: 1 for an untried operator, less after failures.

        The very change that failed on another base counts for less still.
        """
        name = operator_of(proposal.levers, proposal.tag)
        rate = (_SUCCESSES + self.successes.get(name, 0.0)) / (
            _SUCCESSES + _FAILURES + self.tried.get(name, 0)
        )
        same = _SAME_AGAIN ** self.failed.get(proposal.tag, 0)
        return same * rate * (_SUCCESSES + _FAILURES) / _SUCCESSES

    def score(self, proposal: Proposal) -> float:
        """Expected gain times weight; what the policy ranks by."""
        return proposal.expected_gain * self.weight(proposal)


def _success(past: Past) -> float:
    if past.decision is Decision.KEEP:
        return 1.0
    return _HALF if past.ratio is not None and past.ratio > _PROMISING else 0.0
