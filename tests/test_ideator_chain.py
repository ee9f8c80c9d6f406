"""Chains of ideators, and finding ideators by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest
from ideator_contract import IdeatorContract, candidate_of, make_context, make_failure

from croq_fsm.domain.ideas import Proposal
from croq_fsm.errors import BackendBarred, BackendDown, BadReply, UsageError
from croq_fsm.ideators import load as loading
from croq_fsm.ideators.chain import Breaker, BreakerSettings, ChainIdeator
from croq_fsm.ideators.contract import Context, Failure, Ideator
from croq_fsm.ideators.load import load
from croq_fsm.ideators.rules import RulesIdeator, c_matmul_search

Answer = Callable[[], Proposal | None]


class Scripted:
    """An ideator that answers by a function and counts how often it was asked."""

    def __init__(self, name: str, answer: Answer) -> None:
        self.name = name
        self.answer = answer
        self.asked = 0

    def propose(self, context: Context) -> Proposal | None:
        """The scripted answer."""
        self.asked += 1
        return self.answer()

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """The scripted answer, too."""
        self.asked += 1
        return self.answer()


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The present second."""
        return self.now


def down() -> Proposal | None:
    """A backend that never answers."""
    raise BackendDown("no network")


def idea() -> Proposal:
    """Any proposal."""
    proposal = RulesIdeator({}).propose(make_context())
    assert proposal is not None
    return proposal


def in_turn(*answers: Answer) -> Answer:
    """Each answer once, in order."""
    following = iter(answers)

    def answer() -> Proposal | None:
        return next(following)()

    return answer


class TestContract(IdeatorContract):
    """The contract holds for a chain whose first link is down."""

    @pytest.fixture(autouse=True)
    def _near(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only the nearest members, so that exhausting them takes no time."""
        monkeypatch.setattr(c_matmul_search, "_FARTHEST", 1)

    @pytest.fixture
    def ideator(self) -> Ideator:
        """Rules behind a dead backend."""
        return ChainIdeator([Scripted("dead", down), RulesIdeator({})])


def test_falls_to_the_next_when_one_is_down() -> None:
    """The night goes on when the network does not."""
    chain = ChainIdeator([Scripted("dead", down), Scripted("well", idea)])
    assert chain.propose(make_context()) == idea()
    assert chain.name == "dead-well"


def test_opens_after_failures_and_closes_by_the_clock() -> None:
    """A backend that failed three times in a row is left alone for the set time, then retried."""
    clock, dead = Clock(), Scripted("dead", down)
    breaker = Breaker(BreakerSettings(failures=3, open_s=100.0), clock)
    chain = ChainIdeator([dead, Scripted("well", idea)], breaker)
    for _ in range(10):
        chain.propose(make_context())
    assert dead.asked == 3
    clock.now = 99.0
    chain.propose(make_context())
    assert dead.asked == 3
    clock.now = 100.0
    for _ in range(5):
        chain.propose(make_context())
    # One more try, one more failure, and it is left alone again.
    assert dead.asked == 4


def test_a_success_closes_the_circuit() -> None:
    """After an answer the count of failures starts anew."""
    clock = Clock()
    flaky = Scripted("flaky", in_turn(down, down, idea, down, down, idea))
    breaker = Breaker(BreakerSettings(failures=3, open_s=100.0), clock)
    chain = ChainIdeator([flaky, Scripted("well", idea)], breaker)
    for _ in range(6):
        chain.propose(make_context())
    assert flaky.asked == 6


def test_an_exhausted_link_gives_way() -> None:
    """What one cannot think of, another may; None only when nobody has an idea."""
    empty = Scripted("empty", lambda: None)
    assert ChainIdeator([empty, Scripted("well", idea)]).propose(make_context()) == idea()
    assert ChainIdeator([empty, Scripted("dead", down)]).propose(make_context()) is None


def test_says_why_when_all_are_down() -> None:
    """BackendDown names each link and its reason."""
    chain = ChainIdeator([Scripted("one", down), Scripted("two", down)])
    with pytest.raises(BackendDown, match="one: no network; two: no network"):
        chain.propose(make_context())


def test_the_author_repairs_its_own_proposal() -> None:
    """A repair is asked of the link that made the proposal first."""
    first = Scripted("first", in_turn(down, idea))
    second = Scripted("second", idea)
    chain = ChainIdeator([first, second])
    context = make_context()
    proposal = chain.propose(context)
    assert proposal is not None
    chain.repair(context, proposal, make_failure(candidate_of(proposal, context)))
    assert (first.asked, second.asked) == (1, 2)


def test_an_empty_chain_is_refused() -> None:
    """A chain has at least one link."""
    with pytest.raises(UsageError):
        ChainIdeator([])


def test_loads_the_built_in_ones() -> None:
    """Rules need no metadata and no settings."""
    assert isinstance(load("rules", {}), RulesIdeator)


def test_names_joined_by_commas_are_a_chain() -> None:
    """Each link gets its own section, the circuit breakers theirs."""
    chain = load("rules, rules", {"rules": {"window": 3}, "chain": {"failures": 1}})
    assert isinstance(chain, ChainIdeator)
    assert chain.name == "rules-rules"
    with pytest.raises(UsageError, match="open_s"):
        load("rules,rules", {"chain": {"open_s": -1}})


@pytest.mark.parametrize("name", ["oracle", "rules,oracle", "", ","])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    """The usage error names what could have been asked for."""
    with pytest.raises(UsageError, match="known: .*agent, llm, replay, rules"):
        load(name, {})


def register(monkeypatch: pytest.MonkeyPatch, value: str, name: str = "third") -> None:
    """Pretend that a package registers an ideator."""
    points = EntryPoints([EntryPoint(name=name, value=value, group=loading.GROUP)])
    monkeypatch.setattr(loading, "entry_points", points.select)


def registered_factory(settings: dict[str, Any]) -> Ideator:
    """An ideator of another package."""
    return Scripted(settings.get("name", "third"), idea)


def not_an_ideator(settings: dict[str, Any]) -> object:
    """A factory that builds something else."""
    return object()


def test_loads_what_another_package_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point of the group is an ideator like the built-in ones, and is listed."""
    register(monkeypatch, f"{__name__}:registered_factory")
    assert load("third", {"name": "other"}).name == "other"
    assert "third" in loading.known()


def test_a_registration_never_replaces_a_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """``rules`` is ours, whoever registers that name."""
    register(monkeypatch, f"{__name__}:registered_factory", name="rules")
    assert isinstance(load("rules", {}), RulesIdeator)


@pytest.mark.parametrize("value", ["no_such_module_anywhere:x", f"{__name__}:no_such_name"])
def test_a_broken_registration_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """A package that cannot be imported is named, with the cause."""
    register(monkeypatch, value)
    with pytest.raises(UsageError, match="'third' cannot be loaded"):
        load("third", {})


def test_what_is_no_ideator_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contract is checked when it is loaded, not in the middle of the night."""
    register(monkeypatch, f"{__name__}:not_an_ideator")
    with pytest.raises(UsageError, match="lacks propose, repair"):
        load("third", {})


def barred() -> Proposal | None:
    """A backend whose credentials are wrong."""
    raise BackendBarred("no key")


def nonsense() -> Proposal | None:
    """A backend that answers in prose."""
    raise BadReply("only prose")


def test_what_will_not_pass_opens_at_once_and_comes_back() -> None:
    """Credentials, quota and budgets are not tried again before the set time; then one try is."""
    clock = Clock()
    paid = Scripted("paid", in_turn(barred, barred, idea, idea))
    breaker = Breaker(BreakerSettings(failures=3, open_s=100.0), clock)
    chain = ChainIdeator([paid, Scripted("well", idea)], breaker)
    for _ in range(5):
        chain.propose(make_context())
    assert paid.asked == 1
    clock.now = 100.0
    for _ in range(5):
        chain.propose(make_context())
    assert paid.asked == 2
    clock.now = 200.0
    chain.propose(make_context())
    chain.propose(make_context())
    assert paid.asked == 4


def test_bad_answers_are_told_and_then_left_alone() -> None:
    """A malformed answer comes back with its reason; after three the next link is asked."""
    talker = Scripted("talker", nonsense)
    chain = ChainIdeator([talker, Scripted("well", idea)], Breaker(BreakerSettings(failures=3)))
    for _ in range(2):
        with pytest.raises(BadReply, match="only prose"):
            chain.propose(make_context())
    assert chain.propose(make_context()) == idea()
    assert chain.propose(make_context()) == idea()
    assert talker.asked == 3


def test_a_bad_repair_gives_way() -> None:
    """A repair that is no proposal is asked of the next link."""
    talker = Scripted("talker", in_turn(idea, nonsense))
    chain = ChainIdeator([talker, Scripted("well", idea)])
    context = make_context()
    proposal = chain.propose(context)
    assert proposal is not None
    assert chain.repair(context, proposal, make_failure(candidate_of(proposal, context)))


def test_whose_ideas_are_refused_gives_way_within_a_round() -> None:
    """Three refused proposals of a round are enough; the next round begins with the first link."""
    stubborn, well = Scripted("stubborn", idea), Scripted("well", idea)
    chain = ChainIdeator([stubborn, well])
    for refusals in range(5):
        chain.propose(make_context(refused=("no",) * refusals))
    assert (stubborn.asked, well.asked) == (3, 2)
    chain.propose(make_context())
    assert stubborn.asked == 4


def test_the_author_is_named() -> None:
    """An idea is recorded under the link that had it."""
    chain = ChainIdeator([Scripted("dead", down), Scripted("well", idea)])
    proposal = chain.propose(make_context())
    assert proposal is not None
    assert chain.author_of(proposal) == "well"
    assert chain.author_of(proposal.model_copy(update={"tag": "other"})) == "dead-well"
