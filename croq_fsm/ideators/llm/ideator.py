"""The ideator ``llm``: what it is asked, and what its answer becomes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from croq_fsm.domain import escalation
from croq_fsm.domain.ideas import Proposal
from croq_fsm.errors import BadReply, UsageError
from croq_fsm.ideators import pack, reply
from croq_fsm.ideators.contract import Context, Failure
from croq_fsm.ideators.llm import budget, prompts
from croq_fsm.ideators.llm.settings import settings_of
from croq_fsm.ideators.services import Services

if TYPE_CHECKING:
    from croq_fsm.ideators.llm.calls import Asked, Caller
    from croq_fsm.ideators.llm.wire import Question

#: Answers that a repair may take: one, and one more after a malformed one.
_REPAIR_TRIES: Final = 2


class LlmIdeator:
    """Asks a language model.

    A question takes a few calls at most, which end within ``deadlines.ideator_s`` together.

    Args:
        settings: See :class:`~croq_fsm.ideators.llm.settings.LlmSettings`.

    Raises:
        UsageError: The settings are bad, the extra ``llm`` is not installed, or a budget of
            money is set and the model's price is not known.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings_of(settings)
        try:
            from croq_fsm.ideators.llm import calls, wire  # noqa: PLC0415 - part of the extra
        except ImportError as exc:
            raise UsageError(
                f"the ideator llm needs the extra 'llm': pip install 'croq-fsm[llm]' ({exc})"
            ) from exc
        self._calls, self._wire = calls, wire
        self._prices = budget.prices_of(self._settings)
        self._services = Services()

    @property
    def name(self) -> str:
        """``<model>`` of the file layout."""
        return self._settings.label

    def equip(self, services: Services) -> None:
        """Take the ledger of the session, its deadline and its stop."""
        self._services = services

    def propose(self, context: Context) -> Proposal | None:
        """One idea of the model, or None when it gives up.

        Raises:
            BackendDown: No answer came. BackendBarred: none will, or a budget could break.
            BadReply: The answer is no proposal.
        """
        return self._caller.ask(
            self._asked("propose", context),
            lambda limit: self._question(
                context, f"{pack.proposal_pack(context, limit)}\n\n{prompts.PROPOSE}"
            ),
            lambda text: reply.read(text, context),
        )

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """Another way to realise the idea; a malformed answer is told why, once.

        Raises:
            BackendDown: No answer came.
        """
        asked = self._asked("repair", context)
        request = prompts.REPAIR
        for _ in range(_REPAIR_TRIES):
            try:
                return self._mended(context, proposal, failure, (asked, request))
            except BadReply as exc:
                request = f"{prompts.REPAIR} {prompts.AGAIN.format(reason=exc)}"
        return None

    def _mended(
        self, context: Context, proposal: Proposal, failure: Failure, how: tuple[Asked, str]
    ) -> Proposal | None:
        asked, request = how
        answer = self._caller.ask(
            asked,
            lambda limit: self._question(
                context,
                pack.repair_pack(context, failure, proposal.summary, limit) + f"\n\n{request}",
            ),
            lambda text: reply.read(text, context, of=proposal),
        )
        if answer is not None and answer.base != proposal.base:
            raise BadReply(f"a repair edits the base of the idea, iter{proposal.base:03d}")
        return answer

    @property
    def _caller(self) -> Caller:
        return self._calls.Caller(self._settings, self._prices, self._services)

    def _asked(self, purpose: str, context: Context) -> Asked:
        until = time.monotonic() + self._services.deadline_s
        return self._calls.Asked(purpose, context.round, context.rng_seed, until)

    def _question(self, context: Context, text: str) -> Question:
        system = prompts.instructions(pack.kernel_name(context), self._settings.answer)
        search = (
            self._settings.web_search == "research" and context.escalation >= escalation.RESEARCH
        )
        return self._wire.Question(system, text, search)
