"""A ledger of calls in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from croq_fsm.domain.calls import CallBegun, CallEnded, CallOutcome, Spent


@dataclass
class MemoryLedger:
    """Calls in a list."""

    begun: list[CallBegun] = field(default_factory=list)
    ended: dict[str, CallEnded] = field(default_factory=dict)

    def begin(self, call: CallBegun) -> None:
        """Remember a call."""
        self.begun.append(call)

    def end(self, call_id: str, ended: CallEnded) -> None:
        """Remember its end."""
        self.ended[call_id] = ended

    def spent(self, *, since: float | None = None) -> Spent:
        """Ends where known, else what was reserved."""
        tokens = usd = 0.0
        for call in self.begun:
            end = self.ended.get(call.id)
            tokens += call.reserved_tokens if end is None else end.charged_tokens
            usd += call.reserved_usd if end is None else end.charged_usd
        return Spent(len(self.begun), int(tokens), usd)

    @property
    def outcomes(self) -> list[CallOutcome]:
        """Outcomes in order."""
        return [self.ended[call.id].outcome for call in self.begun]
