"""Section ``[ideators.llm]`` of the configuration. Secrets are not part of it."""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, ConfigDict, Field, ValidationError

from croq_fsm.domain.model import Value
from croq_fsm.domain.names import slug
from croq_fsm.errors import BackendBarred, UsageError

#: Variable that holds the key, by provider.
KEYS: Final = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openai-compatible": "OPENAI_COMPATIBLE_API_KEY",
}
#: What a server without keys is sent.
_NO_KEY: Final = "none"


def _plain_url(url: str) -> str:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("must be an http or https URL")
    if parts.username or parts.password or parts.query:
        raise ValueError("must hold no user, password or query; keys come from the environment")
    return url


def _variable(name: str) -> str:
    if name and not name.replace("_", "a").isalnum():
        raise ValueError("must be the name of a variable, not a key")
    return name


Count = Annotated[int, Field(ge=0)]
Money = Annotated[float, Field(ge=0)]


class LlmSettings(Value):
    """How a model is asked, and what it may cost.

    Attributes:
        provider: Whose protocol is spoken.
        model: Name of the model, as the provider knows it.
        name: Name under which its ideas are recorded; default: made from the model's.
        base_url: Address of the server; needed for ``openai-compatible``.
        key_variable: Environment variable that holds the key; default: the provider's usual one.
        answer: ``tool``: the answer comes as a tool call; ``text``: as JSON in the text, for
            servers without tools.
        context_tokens: Room for the context pack, estimated.
        output_tokens: Most tokens of an answer.
        temperature: Passed on when given.
        deadline_s: Longest time of one call, seconds; never more than ``deadlines.ideator_s``,
            which bounds a question with all its calls and waits.
        attempts: Calls per question when the server is busy or broken.
        longest_wait_s: Longest wait between two of them; a server that asks for more is left
            alone.
        web_search: ``research``: from the research level on, with the provider's own search.
        searches: Most searches of one call.
        search_tokens: Tokens that their results may add, for the budget.
        tokens_per_day: Most tokens of all sessions of this root in 24 hours; 0: no bound.
        tokens_per_session: Most tokens of one session.
        usd_per_day: Most money in 24 hours, US dollars; 0: no bound.
        usd_per_session: Most money of one session.
        usd_in: Price of a million tokens sent; default: from the price table that is installed.
        usd_out: Price of a million tokens received.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    provider: Literal["anthropic", "openai", "openai-compatible"]
    model: Annotated[str, Field(min_length=1, max_length=200)]
    name: Annotated[str, Field(pattern=r"^([a-z][a-z0-9.-]*)?$")] = ""
    base_url: Annotated[str, AfterValidator(_plain_url)] = ""
    key_variable: Annotated[str, AfterValidator(_variable)] = ""
    answer: Literal["tool", "text"] = "tool"
    context_tokens: Annotated[int, Field(ge=500)] = 24_000
    output_tokens: Annotated[int, Field(ge=64)] = 12_000
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    deadline_s: Annotated[float, Field(gt=0)] = 180.0
    attempts: Annotated[int, Field(ge=1, le=10)] = 4
    longest_wait_s: Annotated[float, Field(gt=0)] = 60.0
    web_search: Literal["never", "research"] = "never"
    searches: Annotated[int, Field(ge=1, le=10)] = 3
    search_tokens: Count = 60_000
    tokens_per_day: Count = 3_000_000
    tokens_per_session: Count = 0
    usd_per_day: Money = 10.0
    usd_per_session: Money = 0.0
    usd_in: Money | None = None
    usd_out: Money | None = None

    @property
    def label(self) -> str:
        """Name under which ideas are recorded."""
        return self.name or slug(self.model)

    @property
    def variable(self) -> str:
        """Environment variable of the key."""
        return self.key_variable or KEYS[self.provider]

    @property
    def has_money_budget(self) -> bool:
        """Whether a call needs a price to be started."""
        return self.usd_per_day > 0 or self.usd_per_session > 0


def settings_of(data: dict[str, Any]) -> LlmSettings:
    """Checked settings.

    Raises:
        UsageError: They are bad; the text holds no value, for it may be a key in a wrong place.
    """
    try:
        settings = LlmSettings.model_validate(data)
    except ValidationError as exc:
        told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors())
        raise UsageError(f"bad settings in [ideators.llm]: {told}") from None
    if settings.provider == "openai-compatible" and not settings.base_url:
        raise UsageError(
            "[ideators.llm] needs base_url for an OpenAI-compatible server, for example "
            "'http://localhost:11434/v1'"
        )
    if settings.web_search != "never" and settings.provider == "openai-compatible":
        raise UsageError("[ideators.llm] web_search: an OpenAI-compatible server offers none")
    return settings


def key_of(settings: LlmSettings) -> str:
    """The key, from the environment at each call; never kept.

    Raises:
        BackendBarred: There is none and the provider needs one.
    """
    key = os.environ.get(settings.variable, "").strip()
    if not key and settings.provider == "openai-compatible":
        return _NO_KEY
    if not key:
        raise BackendBarred(f"no key: set the variable {settings.variable}")
    return key
