"""The calls of one question: recorded, paid for, repeated by class, ended in time."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from croq_fsm.domain.calls import CallBegun, CallEnded, CallOutcome
from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.source import sha256
from croq_fsm.errors import BackendBarred, BackendDown, BadReply, Drained
from croq_fsm.ideators.llm import budget
from croq_fsm.ideators.llm.settings import LlmSettings, key_of
from croq_fsm.ideators.llm.wire import Answer, CallFailed, Question, request
from croq_fsm.ideators.services import Services

_log = structlog.get_logger(__name__)

#: Classes for which the same call is worth another try.
_PASSING: Final = frozenset({CallOutcome.RATE_LIMITED, CallOutcome.SERVER, CallOutcome.CONNECTION})
#: Classes that no repetition mends before somebody acts.
_BARRED: Final = frozenset({CallOutcome.AUTH, CallOutcome.QUOTA})
#: Classes after which the provider may have worked, and charged, without telling.
_UNTOLD: Final = frozenset({CallOutcome.TIMEOUT, CallOutcome.CONNECTION, CallOutcome.MALFORMED})
#: A call with less time than this is not worth starting.
_SHORTEST_CALL_S: Final = 1.0
_FIRST_WAIT_S: Final = 1.0
_PAUSE_S: Final = 0.05


@dataclass(frozen=True)
class Asked:
    """One question on its way.

    Attributes:
        purpose: ``propose`` or ``repair``.
        round: Round in hand.
        seed: Seed of the waits between its calls.
        until: Monotonic time by which it must be over.
    """

    purpose: str
    round: int
    seed: int
    until: float

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic()


@dataclass(frozen=True)
class Caller:
    """Makes the calls of questions.

    Attributes:
        settings: How the model is asked.
        prices: What tokens cost.
        services: Ledger, deadline, stop.
    """

    settings: LlmSettings
    prices: budget.Prices
    services: Services

    def ask(
        self, asked: Asked, build: Callable[[int], Question], read: Callable[[str], Proposal | None]
    ) -> Proposal | None:
        """Ask until there is an answer; once more with half the context when it was too long.

        Args:
            asked: The question.
            build: Its text for so many tokens of context.
            read: Makes a proposal of an answer.

        Raises:
            BackendDown: No answer came. BackendBarred: none will, or a budget could break.
            BadReply: The answer is no proposal.
            Drained: A stop was asked for.
        """
        limit = self.settings.context_tokens
        try:
            return self._persistently(asked, build(limit), read)
        except CallFailed as exc:
            if exc.outcome is not CallOutcome.OVERFLOW:
                raise self._down(exc) from None
        _log.info("the context was too long; half of it is tried", tokens=limit // 2)
        try:
            return self._persistently(asked, build(limit // 2), read)
        except CallFailed as exc:
            raise self._down(exc) from None

    def _persistently(
        self, asked: Asked, question: Question, read: Callable[[str], Proposal | None]
    ) -> Proposal | None:
        """Repeat what may pass: busy or broken servers, lost connections."""
        rng = random.Random(asked.seed)  # noqa: S311 - spreads waits, guards nothing
        retrying = Retrying(
            retry=retry_if_exception(lambda exc: self._may_pass(exc, asked)),
            stop=stop_after_attempt(self.settings.attempts),
            wait=lambda state: _wait_s(state, rng),
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(self._once, asked, question, read)

    def _may_pass(self, exc: BaseException, asked: Asked) -> bool:
        if not isinstance(exc, CallFailed) or exc.outcome not in _PASSING:
            return False
        wanted = exc.retry_after or 0.0
        return wanted <= min(self.settings.longest_wait_s, asked.left_s - _SHORTEST_CALL_S)

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self.services.stopping():
                raise Drained("stop requested while a busy model was waited for")
            self.services.tick()
            self.services.sleep(min(_PAUSE_S, left))

    def _once(
        self, asked: Asked, question: Question, read: Callable[[str], Proposal | None]
    ) -> Proposal | None:
        """One call with its record around it."""
        deadline_s = min(self.settings.deadline_s, asked.left_s)
        if deadline_s < _SHORTEST_CALL_S:
            raise BackendDown(
                f"no answer within {self.services.deadline_s:.0f} s (deadlines.ideator_s)"
            )
        key = key_of(self.settings)
        reserved = budget.reserve(self.settings, self.prices, question.text, search=question.search)
        budget.check(self.settings, self.services, reserved)
        call_id = self._begin(asked, question, reserved)
        began = time.monotonic()
        ended = CallEnded(CallOutcome.CANCELLED, detail="it was interrupted").charged(
            reserved.tokens, reserved.usd
        )
        try:
            answer = request(self.settings, key, question, self.services, deadline_s)
            ended = self._answered(answer, reserved)
            return read(answer.text)
        except BadReply as exc:
            ended = ended.told(CallOutcome.MALFORMED, str(exc))
            raise
        except CallFailed as exc:
            ended = _failed(exc, reserved)
            raise
        finally:
            self.services.ledger.end(call_id, ended.lasting(time.monotonic() - began))

    def _begin(self, asked: Asked, question: Question, reserved: budget.Reserve) -> str:
        call = CallBegun(
            id=uuid.uuid4().hex,
            ideator=self.settings.label,
            provider=self.settings.provider,
            model=self.settings.model,
            purpose=asked.purpose,
            round=asked.round,
            prompt_sha256=sha256(question.text.encode("utf-8", "replace")),
            reserved_tokens=reserved.tokens,
            reserved_usd=reserved.usd,
        )
        self.services.ledger.begin(call)
        return call.id

    def _answered(self, answer: Answer, reserved: budget.Reserve) -> CallEnded:
        told = answer.sent is not None and answer.received is not None
        sent, received = answer.sent or 0, answer.received or 0
        usd = self.prices.of(sent, received) if told else None
        return CallEnded(
            outcome=CallOutcome.OK,
            input_tokens=answer.sent,
            output_tokens=answer.received,
            usd=usd,
            charged_tokens=sent + received if told else reserved.tokens,
            charged_usd=reserved.usd if usd is None else usd,
            answer_sha256=sha256(answer.text.encode("utf-8", "replace")),
        )

    def _down(self, exc: CallFailed) -> BackendDown:
        text = f"{exc.outcome}: {exc}"
        if exc.outcome in _BARRED:
            return BackendBarred(text)
        if exc.retry_after is not None and exc.retry_after > self.settings.longest_wait_s:
            return BackendBarred(f"{text}; it asks to be left alone for {exc.retry_after:.0f} s")
        return BackendDown(text)


def _failed(exc: CallFailed, reserved: budget.Reserve) -> CallEnded:
    ended = CallEnded(exc.outcome, detail=str(exc))
    if exc.outcome not in _UNTOLD:
        return ended
    return ended.charged(reserved.tokens, reserved.usd)


def _wait_s(state: RetryCallState, rng: random.Random) -> float:
    """What the server asked for, else twice as long each time, spread a little."""
    exc = state.outcome.exception() if state.outcome else None
    after = exc.retry_after if isinstance(exc, CallFailed) else None
    if after is not None:
        return max(0.0, after)
    return _FIRST_WAIT_S * float(2 ** (state.attempt_number - 1)) * rng.uniform(0.8, 1.2)
