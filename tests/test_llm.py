"""The ideator llm over real HTTP: each way in which a model or its server fails has its end."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ideator_contract import candidate_of, make_context, make_failure

from croq_fsm.domain.calls import CallEnded, CallOutcome
from croq_fsm.domain.ideas import SearchReplace
from croq_fsm.errors import BackendBarred, BackendDown, BadReply, Drained, UsageError
from croq_fsm.ideators import reply
from croq_fsm.ideators.services import Services
from support import model_servers as servers
from support.calls import MemoryLedger
from support.model_servers import KEY, Behaviour, Server, serving

pytest.importorskip("pydantic_ai", reason="extra llm is not installed")

from croq_fsm.ideators.llm import LlmIdeator, calls, wire

PROTOCOLS = ("openai-compatible", "openai", "anthropic")
GOOD = {
    "tag": "hoist",
    "edits": [
        {"file": "kernel.c", "search": "float sum = 0.0f;", "replace": "register float sum = 0;"}
    ],
    "summary": "keep the sum in a register",
    "hypothesis": "ipc is 1.1, so most cycles wait for memory",
    "metrics": ["ipc"],
    "category": "compute",
    "expected_gain": 0.05,
    "levers": ["sum"],
}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key in the environment."""
    monkeypatch.setenv("LOCAL_MODEL_KEY", KEY)


@pytest.fixture
def ledger() -> MemoryLedger:
    """Where the calls of a test are."""
    return MemoryLedger()


def family(protocol: str) -> str:
    """Whose error bodies a protocol uses."""
    return "anthropic" if protocol == "anthropic" else "openai"


def equipped(
    server: Server, ledger: MemoryLedger, protocol: str = "openai-compatible", **settings: Any
) -> LlmIdeator:
    """An ideator that talks to the server; its waits take no time."""
    ideator = LlmIdeator(server.settings(protocol) | settings)
    ideator.equip(Services(ledger=ledger, deadline_s=20.0))
    return ideator


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between calls, noted and not waited."""
    waits: list[float] = []
    monkeypatch.setattr(calls.Caller, "_sleep", lambda _self, seconds: waits.append(seconds))
    return waits


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_proposal_comes_through(protocol: str, ledger: MemoryLedger) -> None:
    """Edit, reason and expectation arrive; the call is recorded with tokens, cost and hashes."""
    with serving(servers.proposes(GOOD)) as server:
        proposal = equipped(server, ledger, protocol).propose(make_context())
    assert proposal is not None
    assert isinstance(proposal.edit, SearchReplace)
    assert "register float" in candidate_of(proposal, make_context()).source
    call, end = ledger.begun[0], ledger.ended[ledger.begun[0].id]
    assert (end.outcome, end.input_tokens, end.output_tokens) == (CallOutcome.OK, 1200, 80)
    assert end.usd == pytest.approx(1200 * 3e-6 + 80 * 15e-6)
    assert len(call.prompt_sha256) == len(end.answer_sha256) == 64
    assert end.latency_s > 0
    assert server.keys == [f"Bearer {KEY}"]


def test_a_proposal_in_text_comes_through(ledger: MemoryLedger) -> None:
    """A server without tools answers in a fence."""
    text = f"Here it is:\n```json\n{json.dumps(GOOD)}\n```\nGood luck!"
    with serving(servers.says(text)) as server:
        proposal = equipped(server, ledger, answer="text").propose(make_context())
    assert proposal is not None
    assert "tools" not in server.seen[0]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_malformed_answers_are_refused_with_a_reason(protocol: str, ledger: MemoryLedger) -> None:
    """Prose is no proposal; the call is paid for and recorded as malformed."""
    with (
        serving(servers.says("I would tile the loops.")) as server,
        pytest.raises(BadReply, match="only prose"),
    ):
        equipped(server, ledger, protocol).propose(make_context())
    assert ledger.outcomes == [CallOutcome.MALFORMED]
    assert ledger.ended[ledger.begun[0].id].charged_tokens == 1280


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_busy_server_is_asked_again_when_it_says(
    protocol: str, ledger: MemoryLedger, quick: list[float]
) -> None:
    """Retry-After is kept to, and a rate limit costs nothing."""
    busy = servers.fails(
        429, {"error": {"message": "slow down", "type": "rate_limit"}}, Retry_After="7"
    )
    with serving(busy, servers.proposes(GOOD)) as server:
        assert equipped(server, ledger, protocol).propose(make_context()) is not None
    assert quick == [7.0]
    assert ledger.outcomes == [CallOutcome.RATE_LIMITED, CallOutcome.OK]
    assert ledger.spent().tokens == 1280


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("status", [500, 503, 529])
def test_a_broken_server_is_asked_a_few_times(
    protocol: str, status: int, ledger: MemoryLedger, quick: list[float]
) -> None:
    """Server errors are repeated with growing waits, four calls in all; then it is down."""
    with (
        serving(servers.fails(status, {"error": {"message": "oops"}})) as server,
        pytest.raises(BackendDown, match="server"),
    ):
        equipped(server, ledger, protocol).propose(make_context())
    assert ledger.outcomes == [CallOutcome.SERVER] * 4
    assert len(quick) == 3
    assert quick[0] < quick[1] < quick[2]


def test_a_long_wait_is_not_waited_for(ledger: MemoryLedger, quick: list[float]) -> None:
    """A server that asks for an hour is left alone at once."""
    busy = servers.fails(429, {"error": {"message": "slow down"}}, Retry_After="3600")
    with serving(busy) as server, pytest.raises(BackendBarred, match="left alone for 3600 s"):
        equipped(server, ledger).propose(make_context())
    assert (quick, len(ledger.begun)) == ([], 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_bars_at_once(
    protocol: str, status: int, ledger: MemoryLedger, quick: list[float]
) -> None:
    """Credentials are not repeated; the key is in no text."""
    told = {"error": {"type": "authentication_error", "message": f"bad key {KEY}"}}
    with serving(servers.fails(status, told)) as server, pytest.raises(BackendBarred) as caught:
        equipped(server, ledger, protocol).propose(make_context())
    assert (ledger.outcomes, quick) == ([CallOutcome.AUTH], [])
    assert KEY not in str(caught.value)
    assert KEY not in repr((ledger.begun, ledger.ended))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_used_up_quota_bars_at_once(
    protocol: str, ledger: MemoryLedger, quick: list[float]
) -> None:
    """An account without credit is not asked again."""
    status, body = servers.QUOTA[family(protocol)]
    with serving(servers.fails(status, body)) as server, pytest.raises(BackendBarred):
        equipped(server, ledger, protocol).propose(make_context())
    assert (ledger.outcomes, quick) == ([CallOutcome.QUOTA], [])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_context_that_is_too_long_is_halved_once(
    protocol: str, ledger: MemoryLedger, quick: list[float]
) -> None:
    """An overflow shrinks the pack; a second one is the end of it."""
    status, body = servers.OVERFLOW[family(protocol)]
    source = make_context().base.candidate.source + "/* " + "long " * 8000 + "*/\n"
    context = make_context(source)
    with serving(servers.fails(status, body), servers.proposes(GOOD)) as server:
        assert equipped(server, ledger, protocol).propose(context) is not None
    first, second = (len(str(body)) for body in server.seen)
    assert second < 0.75 * first
    assert ledger.outcomes == [CallOutcome.OVERFLOW, CallOutcome.OK]
    with serving(servers.fails(status, body)) as server, pytest.raises(BackendDown):
        equipped(server, ledger, protocol).propose(context)
    assert len(server.seen) == 2


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_silent_server_ends_at_the_deadline(protocol: str, ledger: MemoryLedger) -> None:
    """A call that hangs is given up and counts with all that it may have cost."""
    ticks: list[None] = []
    with serving(servers.hangs()) as server:
        ideator = LlmIdeator(server.settings(protocol, deadline_s=1.0))
        ideator.equip(Services(ledger=ledger, deadline_s=20.0, tick=lambda: ticks.append(None)))
        with pytest.raises(BackendDown, match="no answer within 1 s"):
            ideator.propose(make_context())
    assert ledger.outcomes == [CallOutcome.TIMEOUT]
    assert ledger.ended[ledger.begun[0].id].charged_tokens == ledger.begun[0].reserved_tokens > 0
    assert len(ticks) > 3


def test_a_stop_ends_a_call(ledger: MemoryLedger) -> None:
    """A daemon that drains does not wait for a model; the call is recorded as cancelled."""
    with serving(servers.hangs()) as server:
        ideator = LlmIdeator(server.settings("openai-compatible"))
        ideator.equip(Services(ledger=ledger, stopping=lambda: bool(server.seen)))
        with pytest.raises(Drained):
            ideator.propose(make_context())
    assert ledger.outcomes == [CallOutcome.CANCELLED]


def test_all_calls_of_a_question_end_in_time(ledger: MemoryLedger, quick: list[float]) -> None:
    """What is left of the question's time bounds the waits: no wait begins that cannot end."""
    busy = servers.fails(429, {"error": {"message": "slow down"}}, Retry_After="30")
    with serving(busy) as server, pytest.raises(BackendDown):
        equipped(server, ledger).propose(make_context())
    assert (quick, len(ledger.begun)) == ([], 1)


def test_nothing_listens(ledger: MemoryLedger, quick: list[float]) -> None:
    """A refused connection is repeated and then reported as such."""
    with serving(servers.hangs()) as server:
        settings = server.settings("openai-compatible", attempts=2)
    ideator = LlmIdeator(settings)
    ideator.equip(Services(ledger=ledger))
    with pytest.raises(BackendDown, match="connection"):
        ideator.propose(make_context())
    assert ledger.outcomes == [CallOutcome.CONNECTION] * 2


def test_an_endless_answer_is_cut_off(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response of any size takes no more memory than the cap."""
    monkeypatch.setattr(wire, "_LARGEST", 100_000)
    flood: Behaviour = lambda _body: servers.Answer(raw=b"{" + b" " * 1_000_000)  # noqa: E731
    with serving(flood) as server, pytest.raises(BackendDown):
        equipped(server, ledger, attempts=1).propose(make_context())


def test_a_call_that_could_break_the_budget_is_not_started(ledger: MemoryLedger) -> None:
    """Tokens: what the next call may need counts, and so does what is in flight."""
    with serving(servers.proposes(GOOD)) as server:
        ideator = equipped(server, ledger, tokens_per_session=30_000)
        ideator.propose(make_context())
        unseen = replace(ledger.begun[0], id="unseen", reserved_tokens=20_000)
        ledger.begin(unseen)
        with pytest.raises(BackendBarred, match="budget of a session is 30000 tokens; 21280 are"):
            ideator.propose(make_context())
        assert len(server.seen) == 1
        ledger.end("unseen", CallEnded(CallOutcome.SERVER))
        assert ideator.propose(make_context()) is not None


def test_money_is_a_budget_too(ledger: MemoryLedger) -> None:
    """A call whose dearest end is above the budget is not started."""
    with serving(servers.proposes(GOOD)) as server:
        with pytest.raises(BackendBarred, match=r"budget of a day is 0\.10 USD"):
            equipped(server, ledger, usd_per_day=0.10).propose(make_context())
        assert server.seen == []
        assert equipped(server, ledger, usd_per_day=1.0).propose(make_context()) is not None


def test_reserves_bound_the_cost(ledger: MemoryLedger) -> None:
    """What is reserved is never less than a token for each byte sent and the whole answer."""
    with serving(servers.proposes(GOOD)) as server:
        equipped(server, ledger).propose(make_context())
    sent = sum(len(m["content"].encode()) for m in server.seen[0]["messages"])
    assert ledger.begun[0].reserved_tokens >= sent + 12_000


def test_no_key_no_call(ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key in the environment nothing is sent, and the variable is named."""
    monkeypatch.delenv("LOCAL_MODEL_KEY")
    with serving(servers.hangs()) as server:
        for protocol in ("anthropic", "openai"):
            with pytest.raises(BackendBarred, match="LOCAL_MODEL_KEY"):
                equipped(server, ledger, protocol).propose(make_context())
        assert server.seen == []
    assert ledger.begun == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"api_key": KEY}, "api_key"),
        ({"key_variable": KEY}, "name of a variable"),
        ({"base_url": f"http://me:{KEY}@host/v1"}, "no user"),
        ({"base_url": "file:///etc/passwd"}, "http or https"),
        ({"base_url": ""}, "needs base_url"),
        ({"web_search": "research"}, "offers none"),
        ({"usd_in": None}, "no price is known for local"),
        ({"name": "../up"}, "name"),
    ],
)
def test_bad_settings_are_told_without_their_values(changes: dict[str, Any], word: str) -> None:
    """A key in a wrong place is refused, and not repeated in the message."""
    settings = {"provider": "openai-compatible", "model": "local", "base_url": "http://h/v1"}
    with pytest.raises(UsageError, match=word) as caught:
        LlmIdeator({**settings, "usd_in": 1.0, "usd_out": 1.0} | changes)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_search_is_used_at_the_research_level_only(protocol: str, ledger: MemoryLedger) -> None:
    """The provider's search is offered when configured and from the research level on."""
    model = {"model": "gpt-5" if protocol == "openai" else "claude-sonnet-4-5"}
    with serving(servers.proposes(GOOD)) as server:
        for setting, level in (("never", 2), ("research", 1), ("research", 2)):
            ideator = equipped(server, ledger, protocol, web_search=setting, **model)
            ideator.propose(make_context(escalation=level))
    assert ["web_search" in str(body.get("tools")) for body in server.seen] == [False, False, True]
    assert ledger.begun[2].reserved_tokens - ledger.begun[1].reserved_tokens >= 60_000


def test_what_was_refused_is_shown(ledger: MemoryLedger) -> None:
    """Reasons of the guards, hints of the user and remarks of the compiler are in the prompt."""
    context = make_context(
        refused=("not_repeated: this was tried before",), hints=("try larger tiles in K",)
    )
    context = replace(context, base=replace(context.base, remarks=("C7520: serialised wgmma",)))
    with serving(servers.proposes(GOOD)) as server:
        equipped(server, ledger).propose(context)
    sent = server.seen[0]["messages"][-1]["content"]
    for word in ("not_repeated: this was tried", "larger tiles in K", "C7520", "ipc = 1.1"):
        assert word in sent


def _failure_contexts() -> tuple[Any, Any, Any]:
    context = make_context()
    proposal = reply.read(json.dumps(GOOD), context)
    assert proposal is not None
    failure = make_failure(candidate_of(proposal, context), log="kernel.c:7: error: no such thing")
    return context, proposal, failure


def test_a_repair_sees_the_errors_and_may_give_only_an_edit(ledger: MemoryLedger) -> None:
    """Compiler output and what was tried are shown; the idea's words need not be given anew."""
    context, proposal, failure = _failure_contexts()
    edit = {"search": "float sum = 0.0f;", "replace": "float sum = 0;"}
    with serving(servers.proposes({"edits": [edit]})) as server:
        mended = equipped(server, ledger).repair(context, proposal, failure)
    assert mended is not None
    assert (mended.tag, mended.summary) == (proposal.tag, proposal.summary)
    sent = server.seen[0]["messages"][-1]["content"]
    assert "error: no such thing" in sent
    assert "+            register float sum = 0;" in sent
    assert ledger.begun[0].purpose == "repair"


def test_a_malformed_repair_is_told_why_once(ledger: MemoryLedger) -> None:
    """The second question holds the reason; after a second such answer the idea is given up."""
    context, proposal, failure = _failure_contexts()
    with serving(servers.says("sorry")) as server:
        assert equipped(server, ledger).repair(context, proposal, failure) is None
    assert len(server.seen) == 2
    assert "only prose" in server.seen[1]["messages"][-1]["content"]
    with serving(servers.proposes({"give_up": "it cannot be done"})) as server:
        assert equipped(server, ledger).repair(context, proposal, failure) is None


def test_nothing_is_left_behind_by_failing_calls(ledger: MemoryLedger, quick: list[float]) -> None:
    """File descriptors stay flat over many calls that fail."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with serving(servers.fails(500, {})) as server:
        ideator = equipped(server, ledger, attempts=1)
        counts = []
        for _ in range(30):
            with pytest.raises(BackendDown):
                ideator.propose(make_context())
            counts.append(descriptors())
    assert max(counts[5:]) <= counts[4] + 8


def test_the_proxy_of_the_environment_is_used(
    ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is not local is reached through the proxy that the environment names."""
    with serving(servers.proposes(GOOD)) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        settings = {"base_url": "http://model.invalid/v1"}
        assert equipped(server, ledger, **settings).propose(make_context()) is not None
