"""The contract of ideators as tests, for this package and for plug-ins of others.

One line checks an ideator, in a test or anywhere else::

    croq_fsm.ideators.testing.check(lambda: MyIdeator({}))

Under pytest, a subclass shows each promise as a test of its own::

    class TestMine(IdeatorContract):
        @pytest.fixture
        def ideator(self): return MyIdeator({})

:class:`FilteringContract` adds the promises of ideators that never propose what is refused.
Contexts are made by hand (:func:`make_context`), so no compiler, device or database is needed.
This module needs pytest.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from croq_fsm.domain import guards, names
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.device import Device
from croq_fsm.domain.ideas import Proposal, apply_edit
from croq_fsm.domain.profile import Metric, Profile
from croq_fsm.domain.states import Bottleneck, Category, Decision
from croq_fsm.domain.task import Task
from croq_fsm.errors import BackendDown
from croq_fsm.ideators.contract import Base, Context, Failure, Ideator, Past

PLAIN_MATMUL = """\
void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (int p = 0; p < k; ++p)
                sum += a[(long)i * k + p] * b[(long)p * n + j];
            c[(long)i * n + j] = sum;
        }
}
"""

CPU = Device(
    key="cpu_x86_64_Test_CPU",
    name="Test CPU",
    uuid="cpu-test",
    peak_flops=270e9,
    peak_bandwidth=20e9,
    limits={
        "vector_bytes": 64,
        "l1d_bytes": 48 << 10,
        "l2_bytes": 1 << 20,
        "l3_bytes": 32 << 20,
        "cores": 2,
    },
)


def make_profile(bottleneck: Bottleneck = Bottleneck.LATENCY, **metrics: float) -> Profile:
    """A profile with these metrics; dots of their names written as two underscores."""
    values = metrics or {"flops__pct_of_peak": 1.5, "bandwidth__pct_of_peak": 3.0, "ipc": 1.1}
    return Profile(
        binary="0" * 64,
        tool="test",
        full=True,
        bottleneck=bottleneck,
        confidence="medium",
        evidence=("made by hand",),
        metrics=tuple(
            Metric(name=name.replace("__", "."), value=value) for name, value in values.items()
        ),
    )


def make_context(
    source: str = PLAIN_MATMUL, flags: tuple[str, ...] = (), **changes: Any
) -> Context:
    """A context of a C matmul session; ``changes`` replace fields of Context."""
    base = Base(
        iteration=3,
        name="iter003_start",
        candidate=Candidate(source=source, flags=flags),
        seconds=0.01,
        structure={},
    )
    context = Context(
        task=Task(
            dsl="c",
            operator="matmul",
            dtype="f32",
            shape=(512, 512, 512),
            kernel="builtin:matmul",
            model="rules",
        ),
        device=CPU,
        base=base,
        others=(),
        profile=make_profile(),
        library_seconds=0.002,
        noise=0.01,
        history=(),
        must_be_structural=False,
        avoid_category=None,
        escalation=0,
        hints=(),
        dialect={},
        is_new=lambda _candidate: True,
        lint=lambda _candidate: [],
        rng_seed=1,
    )
    return replace(context, **changes)


def candidate_of(proposal: Proposal, context: Context) -> Candidate:
    """What the engine would build from a proposal."""
    bases = {base.iteration: base for base in (context.base, *context.others)}
    base = bases[proposal.base].candidate
    return Candidate(
        source=apply_edit(proposal.edit, base.source),
        flags=proposal.flags,
        patches=proposal.patches,
    )


def make_failure(
    candidate: Candidate, kind: Decision = Decision.COMPILE_FAIL, log: str = ""
) -> Failure:
    """A first failed attempt."""
    return Failure(kind=kind, attempt=1, message="it failed", log=log, candidate=candidate)


class Session:
    """A session in miniature: remembers what was tried, decides by a function of the candidate."""

    def __init__(self, context: Context, decide: Callable[[Candidate], Decision]) -> None:
        self.context = context
        self._decide = decide
        self._tried = {guards.identity(context.base.candidate)}
        self._macro_run = 0

    def play(self, ideator: Ideator, rounds: int) -> Iterator[tuple[Proposal, Candidate]]:
        """Proposals of successive rounds with what they build; ends when there is none."""
        for number in range(1, rounds + 1):
            context = replace(
                self.context,
                is_new=lambda candidate: guards.identity(candidate) not in self._tried,
                must_be_structural=self._macro_run >= 2,
                rng_seed=number,
            )
            proposal = ideator.propose(context)
            if proposal is None:
                return
            candidate = candidate_of(proposal, context)
            yield proposal, candidate
            self._remember(number, proposal, candidate)

    def _remember(self, number: int, proposal: Proposal, candidate: Candidate) -> None:
        context = self.context
        macro_only = guards.is_macro_only(candidate, context.base.candidate)
        decision = self._decide(candidate)
        self._tried.add(guards.identity(candidate))
        self._macro_run = self._macro_run + 1 if macro_only else 0
        past = Past(
            round=number,
            base=proposal.base,
            tag=proposal.tag,
            summary=proposal.summary,
            category=proposal.category,
            levers=proposal.levers,
            macro_only=macro_only,
            decision=decision,
            ratio=1.1 if decision is Decision.KEEP else 0.9,
            reason="",
        )
        base = context.base
        if decision is Decision.KEEP:
            base = replace(base, candidate=candidate, iteration=base.iteration + 1)
        self.context = replace(context, base=base, history=(*context.history, past))


def check(
    make: Callable[[], Ideator],
    make_a_context: Callable[[], Context] | None = None,
    contract: type[IdeatorContract] | None = None,
) -> None:
    """Hold an ideator to its contract.

    Args:
        make: Makes the ideator, anew for each promise.
        make_a_context: Makes a context that it has an idea for; default: a plain C matmul.
        contract: The promises; default: :class:`IdeatorContract`.

    Raises:
        AssertionError: The first promise that is not kept, by name.
    """
    promises = contract or IdeatorContract
    kept = promises()
    for name in sorted(n for n in dir(promises) if n.startswith("test_")):
        promise = getattr(kept, name)
        more: list[dict[str, Any]] = [{}]
        for mark in getattr(promise, "pytestmark", []):
            more = [{mark.args[0]: value} for value in mark.args[1]]
        for arguments in more:
            context = (make_a_context or make_context)()
            needed = inspect.signature(promise).parameters
            given = {"ideator": make(), "context": context, **arguments}
            try:
                promise(**{key: value for key, value in given.items() if key in needed})
            except Exception as exc:
                said = f"{type(exc).__name__}: {exc}"
                raise AssertionError(f"{name.removeprefix('test_')}: {said}") from exc


class IdeatorContract:
    """Promises of the contract page. An ideator may always answer None or raise BackendDown."""

    @pytest.fixture
    def ideator(self) -> Ideator:
        """The ideator under test."""
        raise NotImplementedError

    @pytest.fixture
    def context(self) -> Context:
        """A context that the ideator has an idea for."""
        return make_context()

    def test_has_a_name_for_paths(self, ideator: Ideator) -> None:
        """The name is its own slug, since it becomes a folder."""
        assert names.slug(ideator.name) == ideator.name

    def test_proposes_on_an_active_base(self, ideator: Ideator, context: Context) -> None:
        """A proposal names an active base and its edit applies to it."""
        proposal = ideator.propose(context)
        assert proposal is not None
        assert proposal.base == context.base.iteration
        assert guards.identity(candidate_of(proposal, context)) != guards.identity(
            context.base.candidate
        )

    def test_passes_the_guards(self, ideator: Ideator, context: Context) -> None:
        """The engine's own guards admit a proposal."""
        proposal = ideator.propose(context)
        assert proposal is not None
        facts = guards.Facts(
            proposal=proposal,
            candidate=candidate_of(proposal, context),
            base=context.base.candidate,
            active_bases=(context.base.iteration,),
            profile=context.profile,
            macro_run=0,
            macro_limit=2,
            is_tried=lambda _key: False,
            has_fingerprint=lambda _key: False,
        )
        assert guards.refusals(facts) == []

    def test_hypothesis_quotes_what_was_measured(self, ideator: Ideator, context: Context) -> None:
        """Each metric that a hypothesis rests on is in the profile and in its text."""
        proposal = ideator.propose(context)
        assert proposal is not None
        for name in proposal.metrics:
            value = context.profile.metric(name)
            assert value is not None
            assert name in proposal.hypothesis
            assert re.search(rf"{re.escape(name)}\D{{0,12}}{value:.4g}", proposal.hypothesis)

    def test_supplies_words_not_numbers_of_record(self, ideator: Ideator, context: Context) -> None:
        """Tag, summary and expectation are well formed; the expectation is finite."""
        proposal = ideator.propose(context)
        assert proposal is not None
        assert names.TAG_PATTERN.match(proposal.tag)
        assert proposal.summary.strip()
        assert -1.0 < proposal.expected_gain < 1000.0

    def test_leaves_the_context_alone(self, ideator: Ideator, context: Context) -> None:
        """Asking changes nothing that the engine holds."""
        before = (context.base, context.history, dict(context.device.limits))
        ideator.propose(context)
        assert (context.base, context.history, dict(context.device.limits)) == before

    def test_repair_differs_from_what_failed(self, ideator: Ideator, context: Context) -> None:
        """A repair is None, or applies to the same base and is another candidate."""
        proposal = ideator.propose(context)
        assert proposal is not None
        failed = candidate_of(proposal, context)
        repaired = ideator.repair(context, proposal, make_failure(failed, log="error: no"))
        if repaired is None:
            return
        assert repaired.base == proposal.base
        assert guards.identity(candidate_of(repaired, context)) != guards.identity(failed)

    def test_gives_up_only_in_agreed_ways(self, ideator: Ideator, context: Context) -> None:
        """When nothing is admissible, the answer is None or BackendDown, or a proposal."""
        closed = replace(context, is_new=lambda _candidate: False)
        try:
            proposal = ideator.propose(closed)
        except BackendDown:
            return
        assert proposal is None or isinstance(proposal, Proposal)


class FilteringContract(IdeatorContract):
    """For ideators that read the guards in force and never propose what they refuse."""

    def test_is_deterministic(self, ideator: Ideator, context: Context) -> None:
        """The same context gives the same proposal."""
        assert ideator.propose(context) == ideator.propose(context)

    def test_proposes_only_new_candidates(self, ideator: Ideator, context: Context) -> None:
        """What ``is_new`` refuses does not come again."""
        first = ideator.propose(context)
        assert first is not None
        tried = guards.identity(candidate_of(first, context))
        following = ideator.propose(
            replace(context, is_new=lambda candidate: guards.identity(candidate) != tried)
        )
        assert following is not None
        assert guards.identity(candidate_of(following, context)) != tried

    def test_heeds_the_lints(self, ideator: Ideator, context: Context) -> None:
        """What the workbench flags is not proposed."""
        first = ideator.propose(context)
        assert first is not None
        bad = candidate_of(first, context)
        following = ideator.propose(
            replace(context, lint=lambda candidate: ["bad"] if candidate == bad else [])
        )
        assert following is not None
        assert candidate_of(following, context) != bad

    def test_changes_structure_when_it_must(self, ideator: Ideator, context: Context) -> None:
        """After two macro-only rounds something else than macros changes."""
        proposal = ideator.propose(replace(context, must_be_structural=True))
        assert proposal is not None
        assert not guards.is_macro_only(candidate_of(proposal, context), context.base.candidate)

    @pytest.mark.parametrize("category", list(Category))
    def test_avoids_a_category(
        self, ideator: Ideator, context: Context, category: Category
    ) -> None:
        """The category that the escalation rules out is not proposed."""
        proposal = ideator.propose(replace(context, avoid_category=category))
        assert proposal is None or proposal.category is not category

    def test_gives_up_only_in_agreed_ways(self, ideator: Ideator, context: Context) -> None:
        """With everything tried the answer is None, in finite time."""
        assert ideator.propose(replace(context, is_new=lambda _candidate: False)) is None
