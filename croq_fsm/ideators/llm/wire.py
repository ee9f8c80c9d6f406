"""One request to a model over HTTP: bounded in time and size, its end told by class.

The SDKs' own repetitions are off: there is one policy, in ``asking``. A client lives for one
call, so nothing outlives a call that was given up.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import structlog
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import exceptions as ai
from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.native_tools import WebSearchTool
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from croq_fsm.domain.calls import CallOutcome
from croq_fsm.errors import Drained
from croq_fsm.ideators.llm import prompts
from croq_fsm.ideators.llm.settings import LlmSettings
from croq_fsm.ideators.reply import Reply
from croq_fsm.ideators.services import Services

_log = structlog.get_logger(__name__)

_T = TypeVar("_T")
#: Bytes of a response at which it is cut off.
_LARGEST: Final = 8 << 20
_LOOK_S: Final = 0.05
_GRACE_S: Final = 2.0

#: Errors of the library, the special before the general, and what each means.
_CLASSES: Final[tuple[tuple[type[BaseException], CallOutcome], ...]] = (
    (ai.ModelAuthenticationError, CallOutcome.AUTH),
    (ai.ModelQuotaExceededError, CallOutcome.QUOTA),
    (ai.ModelRateLimitError, CallOutcome.RATE_LIMITED),
    (ai.ModelContextWindowExceededError, CallOutcome.OVERFLOW),
    (ai.ModelTimeoutError, CallOutcome.TIMEOUT),
    (ai.ModelRequestTimeout, CallOutcome.TIMEOUT),
    (ai.ModelConnectionError, CallOutcome.CONNECTION),
    (ai.ModelUnavailableError, CallOutcome.SERVER),
    (ai.ModelServerError, CallOutcome.SERVER),
    (ai.ModelRequestRejectedError, CallOutcome.REJECTED),
    (ai.UserError, CallOutcome.REJECTED),
    (httpx2.HTTPError, CallOutcome.CONNECTION),
    (OSError, CallOutcome.CONNECTION),
)


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        system: Instructions.
        user: Context pack and request.
        search: Whether the provider's web search may be used.
    """

    system: str
    user: str
    search: bool = False

    @property
    def text(self) -> str:
        """All text that is sent."""
        return f"{self.system}\0{self.user}"


@dataclass(frozen=True)
class Answer:
    """What came back: the answer's text, and tokens as the provider counts them."""

    text: str
    sent: int | None
    received: int | None


class CallFailed(Exception):
    """A call came to no answer.

    Attributes:
        outcome: Its class.
        retry_after: Seconds that the server asked to wait, or None.
    """

    def __init__(
        self, outcome: CallOutcome, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.retry_after = retry_after


def request(
    settings: LlmSettings, key: str, question: Question, services: Services, deadline_s: float
) -> Answer:
    """Send one request and wait for its end.

    Raises:
        CallFailed: No answer came; its class says why. The text holds no key.
        Drained: A stop was asked for.
    """
    try:
        with _warnings_logged():
            response = _run(lambda: _request(settings, key, question), services, deadline_s)
    except (CallFailed, Drained):
        raise
    except Exception as exc:  # noqa: BLE001 - whatever an SDK raises is a class of failure
        raise _classified(exc, key) from None
    return _answer(response)


@contextmanager
def _warnings_logged() -> Iterator[None]:
    """What the SDKs warn of (a model that is retired, a setting they drop) belongs in the log."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                _log.warning("the SDK of the model warns", text=text[:400])


async def _request(settings: LlmSettings, key: str, question: Question) -> ModelResponse:
    async with AsyncExitStack() as stack:
        client = httpx2.AsyncClient(
            transport=_Capped(proxy=_proxy(settings)),
            timeout=None,
            headers={"Accept-Encoding": "identity"},
        )
        await stack.enter_async_context(client)
        model = _model(settings, key, client)
        parts: list[ModelRequestPart] = [
            SystemPromptPart(question.system),
            UserPromptPart(question.user),
        ]
        return await model_request(
            model,
            [ModelRequest(parts=parts)],
            model_settings=_model_settings(settings),
            model_request_parameters=_parameters(settings, question),
        )


def _proxy(settings: LlmSettings) -> str | None:
    """The proxy of the environment for this server; a transport of our own does not look."""
    parts = urlsplit(settings.base_url or "https://api")
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


def _model(settings: LlmSettings, key: str, client: httpx2.AsyncClient) -> Model:
    url = settings.base_url or None
    if settings.provider == "anthropic":
        anthropic = AsyncAnthropic(api_key=key, base_url=url, max_retries=0, http_client=client)
        return AnthropicModel(
            settings.model, provider=AnthropicProvider(anthropic_client=anthropic)
        )
    openai = AsyncOpenAI(api_key=key, base_url=url, max_retries=0, http_client=client)
    provider = OpenAIProvider(openai_client=openai)
    if settings.provider == "openai":
        return OpenAIResponsesModel(settings.model, provider=provider)
    return OpenAIChatModel(settings.model, provider=provider)


def _model_settings(settings: LlmSettings) -> ModelSettings:
    chosen = ModelSettings(max_tokens=settings.output_tokens)
    if settings.temperature is not None:
        chosen["temperature"] = settings.temperature
    return chosen


def _parameters(settings: LlmSettings, question: Question) -> ModelRequestParameters:
    tool = ToolDefinition(
        name=prompts.TOOL,
        description=prompts.TOOL_TEXT,
        parameters_json_schema=Reply.model_json_schema(),
        kind="output",
    )
    by_tool = settings.answer == "tool"
    return ModelRequestParameters(
        output_mode="tool" if by_tool else "text",
        output_tools=[tool] if by_tool else [],
        allow_text_output=True,
        native_tools=[_search(settings)] if question.search else [],
    )


def _search(settings: LlmSettings) -> WebSearchTool:
    """The provider's own search; only some of them let the number of searches be bounded."""
    if settings.provider == "anthropic":
        return WebSearchTool(max_uses=settings.searches)
    return WebSearchTool()


def _answer(response: ModelResponse) -> Answer:
    """The tool calls of a response, else its text; several tool calls stay several."""
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    if calls:
        blocks = [part.args_as_json_str() for part in calls]
        text = blocks[0] if len(blocks) == 1 else "".join(f"```json\n{b}\n```\n" for b in blocks)
    else:
        text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    usage = response.usage
    told = bool(usage.input_tokens or usage.output_tokens)
    return Answer(text, *((usage.input_tokens, usage.output_tokens) if told else (None, None)))


def _classified(exc: Exception, key: str) -> CallFailed:
    outcome = next((o for kind, o in _CLASSES if isinstance(exc, kind)), CallOutcome.MALFORMED)
    text = " ".join(str(exc).split())
    if len(key) > len("none"):
        text = text.replace(key, "***")
    after = getattr(exc, "retry_after", None)
    return CallFailed(outcome, f"{type(exc).__name__}: {text[:400]}", after)


class _Capped(httpx2.AsyncHTTPTransport):
    """A transport that cuts a response off when it is too large."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - for the type
        response.stream = _CappedStream(response.stream)
        return response


class _CappedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        async for chunk in self._stream:
            seen += len(chunk)
            if seen > _LARGEST:
                raise CallFailed(CallOutcome.MALFORMED, f"the response exceeds {_LARGEST} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def _run(make: Callable[[], Coroutine[Any, Any, _T]], services: Services, deadline_s: float) -> _T:
    """Run to the end, the deadline or a stop; look at both many times a second."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(_watched(make(), services, deadline_s))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        # Not waited for: a name server that does not answer must not hold the night up.
        loop.close()


async def _watched(coroutine: Coroutine[Any, Any, _T], services: Services, deadline_s: float) -> _T:
    loop = asyncio.get_running_loop()
    task = loop.create_task(coroutine)
    end = loop.time() + deadline_s
    while not task.done():
        await asyncio.wait({task}, timeout=_LOOK_S)
        services.tick()
        if task.done():
            break
        if services.stopping():
            await _ended(task)
            raise Drained("stop requested while a model was asked")
        if loop.time() >= end:
            await _ended(task)
            raise CallFailed(CallOutcome.TIMEOUT, f"no answer within {deadline_s:.0f} s")
    return task.result()


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait({task}, timeout=_GRACE_S)
    if task.done() and not task.cancelled():
        with suppress(Exception):
            task.result()
