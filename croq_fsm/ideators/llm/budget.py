"""What calls may cost: a call that could break a budget is not started.

A bound, not an estimate: a token is at least one byte of text, an answer ends at its limit, and
calls whose end nobody has seen count with all that they may have cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from croq_fsm.domain.calls import Spent
from croq_fsm.errors import BackendBarred, UsageError
from croq_fsm.ideators.llm.settings import LlmSettings
from croq_fsm.ideators.services import Services

_DAY_S: Final = 86400.0
_MILLION: Final = 1e6
#: Tokens that a protocol adds around the text: roles, the tool's schema.
FRAMING: Final = 2048


@dataclass(frozen=True)
class Prices:
    """US dollars per token."""

    sent: float
    received: float

    def of(self, sent: int, received: int) -> float:
        """Cost of so many tokens."""
        return self.sent * sent + self.received * received


@dataclass(frozen=True)
class Reserve:
    """The most that a call can cost."""

    sent: int
    received: int
    usd: float

    @property
    def tokens(self) -> int:
        """Tokens in both directions."""
        return self.sent + self.received


def prices_of(settings: LlmSettings) -> Prices:
    """Prices from the settings, else from the table of the package genai-prices.

    Raises:
        UsageError: A budget of money is set and the price is not known.
    """
    if settings.usd_in is not None and settings.usd_out is not None:
        return Prices(settings.usd_in / _MILLION, settings.usd_out / _MILLION)
    if not settings.has_money_budget:
        return Prices(0.0, 0.0)
    known = None if settings.provider == "openai-compatible" else _listed(settings)
    if known is None:
        raise UsageError(
            f"[ideators.llm] no price is known for {settings.model}, so its budget of money "
            "cannot be kept; set usd_in and usd_out (per million tokens, 0 for a server of "
            "your own), or usd_per_day = 0 and usd_per_session = 0"
        )
    return known


def _listed(settings: LlmSettings) -> Prices | None:
    from genai_prices import Usage, calc_price  # noqa: PLC0415 - part of the extra

    try:
        sent, received = (
            calc_price(usage, settings.model, provider_id=settings.provider).total_price
            for usage in (Usage(input_tokens=1000), Usage(output_tokens=1000))
        )
    except LookupError:
        return None
    return Prices(float(sent) / 1000, float(received) / 1000)


def reserve(settings: LlmSettings, prices: Prices, text: str, *, search: bool) -> Reserve:
    """The most that a call with this text can cost."""
    sent = len(text.encode("utf-8", "replace")) + FRAMING
    if search:
        sent += settings.search_tokens
    return Reserve(sent, settings.output_tokens, round(prices.of(sent, settings.output_tokens), 9))


def check(settings: LlmSettings, services: Services, wanted: Reserve) -> None:
    """Refuse a call that could break a budget.

    Raises:
        BackendBarred: It could; says which, what is spent and what it needs.
    """
    day = services.ledger.spent(since=services.now() - _DAY_S)
    session = services.ledger.spent()
    for spent, span, tokens, usd in (
        (day, "day", settings.tokens_per_day, settings.usd_per_day),
        (session, "session", settings.tokens_per_session, settings.usd_per_session),
    ):
        _check_one(spent, span, (tokens, usd), wanted)


def _check_one(spent: Spent, span: str, limits: tuple[int, float], wanted: Reserve) -> None:
    tokens, usd = limits
    if tokens and spent.tokens + wanted.tokens > tokens:
        raise BackendBarred(
            f"the budget of a {span} is {tokens} tokens; {spent.tokens} are spent or in flight, "
            f"and the next call may need {wanted.tokens}"
        )
    if usd and spent.usd + wanted.usd > usd:
        raise BackendBarred(
            f"the budget of a {span} is {usd:.2f} USD; {spent.usd:.4f} are spent or in flight, "
            f"and the next call may need {wanted.usd:.4f}"
        )
