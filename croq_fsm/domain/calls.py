"""Calls of ideators that leave this machine or this process: what they cost, what came of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from croq_fsm.domain.states import _Named


class CallOutcome(_Named):
    """What came of a call. ``in_flight`` is also what a killed daemon leaves behind."""

    IN_FLIGHT = "in_flight"
    OK = "ok"
    MALFORMED = "malformed"
    RATE_LIMITED = "rate_limited"
    SERVER = "server"
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    AUTH = "auth"
    QUOTA = "quota"
    OVERFLOW = "overflow"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class CallBegun:
    """A call as it is recorded before it is started.

    Attributes:
        id: Unique.
        ideator: Who calls.
        provider: ``anthropic``, ``openai`` … or the program of an agent.
        model: Model asked for, or "".
        purpose: ``propose`` or ``repair``.
        round: Round in hand.
        prompt_sha256: Hash of everything that was sent as text.
        reserved_tokens: Most tokens that it can cost.
        reserved_usd: Most money that it can cost, US dollars.
    """

    id: str
    ideator: str
    provider: str
    model: str
    purpose: str
    round: int
    prompt_sha256: str
    reserved_tokens: int = 0
    reserved_usd: float = 0.0


@dataclass(frozen=True)
class CallEnded:
    """What came of a call.

    Attributes:
        outcome: How it ended.
        input_tokens: Tokens sent, as the provider counts them; None when it did not say.
        output_tokens: Tokens received.
        usd: Cost, US dollars.
        charged_tokens: Tokens that count against a budget; those reserved where the provider
            may have worked without telling.
        charged_usd: Money that counts against a budget.
        answer_sha256: Hash of the answer's text, or "".
        latency_s: Wall seconds.
        detail: One line, bounded, without secrets.
    """

    outcome: CallOutcome
    input_tokens: int | None = None
    output_tokens: int | None = None
    usd: float | None = None
    charged_tokens: int = 0
    charged_usd: float = 0.0
    answer_sha256: str = ""
    latency_s: float = 0.0
    detail: str = ""

    def told(self, outcome: CallOutcome, detail: str) -> CallEnded:
        """With another outcome and its reason; the cost stays."""
        return replace(self, outcome=outcome, detail=detail)

    def lasting(self, seconds: float) -> CallEnded:
        """With its wall time."""
        return replace(self, latency_s=seconds)

    def charged(self, tokens: int, usd: float) -> CallEnded:
        """Counted with all that was reserved, for nobody told what it cost."""
        return replace(self, charged_tokens=tokens, charged_usd=usd)


@dataclass(frozen=True)
class Call:
    """A recorded call; ``ended`` has outcome IN_FLIGHT while nothing is known of its end."""

    begun: CallBegun
    ended: CallEnded
    started_at: int


@dataclass(frozen=True)
class Spent:
    """What calls have cost; those in flight count with all that they may cost."""

    calls: int = 0
    tokens: int = 0
    usd: float = 0.0
