"""The policy of the rules ideator: what it picks among the moves, and what it repairs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from ideator_contract import (
    PLAIN_MATMUL,
    FilteringContract,
    Session,
    candidate_of,
    make_context,
    make_failure,
    make_profile,
)

from croq_fsm.domain import guards
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import NoEdit, Proposal, Replace, SetMacros, WholeSource
from croq_fsm.domain.states import Category, Decision
from croq_fsm.errors import UsageError
from croq_fsm.ideators.contract import Context, Ideator, Past
from croq_fsm.ideators.rules import RulesIdeator, c_matmul_search
from croq_fsm.ideators.rules.c_matmul_family import Tiles
from croq_fsm.ideators.rules.c_matmul_text import render
from croq_fsm.ideators.rules.moves import SOURCES, Moves, moves_for

TILED = render(Tiles(vector=64, mr=8, blocked=True, pack_a=True, pack_b=True))
BLOCKED_BY_AUTHOR = "#define TILE 32\n#define STAGES 4\n" + PLAIN_MATMUL


class TestOnAPlainKernel(FilteringContract):
    """The contract, from a kernel that the family does not know."""

    @pytest.fixture(autouse=True)
    def _near(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only the nearest members, so that exhausting them takes no time."""
        monkeypatch.setattr(c_matmul_search, "_FARTHEST", 1)

    @pytest.fixture
    def ideator(self) -> Ideator:
        """Rules with their shipped settings."""
        return RulesIdeator({})


class TestOnATiledKernel(TestOnAPlainKernel):
    """The contract, from a member of the family."""

    @pytest.fixture
    def context(self) -> Context:
        """A good kernel near the peak."""
        profile = make_profile(flops__pct_of_peak=80.0, bandwidth__pct_of_peak=20.0, ipc=2.5)
        return make_context(TILED, ("-O3", "-march=native"), profile=profile)


class TestOnAForeignKernel(TestOnAPlainKernel):
    """The contract, from a kernel whose author left macros to turn."""

    @pytest.fixture
    def context(self) -> Context:
        """A kernel that is neither plain nor ours."""
        return make_context(BLOCKED_BY_AUTHOR, profile=make_profile(flops__pct_of_peak=40.0))


def proposal(tag: str, gain: float, **changes: Any) -> Proposal:
    """A proposal on the base of ``make_context``; another flag makes another candidate."""
    fields: dict[str, Any] = {
        "tag": tag,
        "base": 3,
        "edit": NoEdit(),
        "flags": (f"-f{tag}",),
        "summary": f"try {tag}",
        "hypothesis": "ipc is 1.1, so something is idle",
        "metrics": ("ipc",),
        "category": Category.MISC,
        "expected_gain": gain,
        "levers": (tag,),
    }
    return Proposal(**fields | changes)


class FixedMoves:
    """Moves that are always the same."""

    def __init__(self, *moves: Proposal) -> None:
        self.moves = moves
        self.made = 0

    def proposals(self, context: Context) -> Iterator[Proposal]:
        """The moves, counting how many were asked for."""
        for move in self.moves:
            self.made += 1
            yield move


def with_moves(moves: Moves, **settings: Any) -> RulesIdeator:
    """A rules ideator over given moves."""
    ideator = RulesIdeator(settings)
    ideator._moves["c"] = moves
    return ideator


def past(tag: str, decision: Decision, number: int = 1) -> Past:
    """A round that turned the operator ``tag``."""
    return Past(
        round=number,
        base=3,
        tag=tag,
        summary=tag,
        category=Category.MISC,
        levers=(tag,),
        macro_only=False,
        decision=decision,
        ratio=None,
        reason="",
    )


def test_takes_the_largest_expectation() -> None:
    """Among admissible moves the one with the highest expected gain wins, whatever its place."""
    ideator = with_moves(FixedMoves(proposal("small", 0.1), proposal("large", 0.5)))
    chosen = ideator.propose(make_context())
    assert chosen is not None
    assert chosen.tag == "large"


def test_failures_lower_an_operator() -> None:
    """An operator that failed before must expect more than one that did not."""
    ideator = with_moves(FixedMoves(proposal("tried", 0.5), proposal("fresh", 0.4)))
    chosen = ideator.propose(make_context(history=(past("tried", Decision.DISCARD),)))
    assert chosen is not None
    assert chosen.tag == "fresh"


def test_successes_raise_an_operator() -> None:
    """An operator that was kept is preferred to one of equal expectation."""
    ideator = with_moves(FixedMoves(proposal("fresh", 0.4), proposal("kept", 0.4)))
    chosen = ideator.propose(make_context(history=(past("kept", Decision.KEEP),)))
    assert chosen is not None
    assert chosen.tag == "kept"


def test_a_gain_within_the_noise_is_half_a_success() -> None:
    """An operator that looked faster, but not certainly, is preferred to one that looked slower."""
    rounds = (
        replace(past("slower", Decision.DISCARD), ratio=0.9),
        replace(past("likely", Decision.DISCARD), ratio=1.2),
    )
    ideator = with_moves(FixedMoves(proposal("slower", 0.4), proposal("likely", 0.4)))
    chosen = ideator.propose(make_context(history=rounds))
    assert chosen is not None
    assert chosen.tag == "likely"


def test_the_very_change_that_failed_waits() -> None:
    """Another step of an operator goes before the one that failed on an earlier base."""
    again, other = (proposal(tag, 0.4, levers=("size",)) for tag in ("size_8", "size_16"))
    failed = replace(past("size", Decision.DISCARD), tag="size_8")
    chosen = with_moves(FixedMoves(again, other)).propose(make_context(history=(failed,)))
    assert chosen is not None
    assert chosen.tag == "size_16"


def test_a_hint_that_names_a_lever_is_heard() -> None:
    """A user who names an operator gets it tried, though others expect more."""
    moves = FixedMoves(*(proposal(f"m{n}", 1.0) for n in range(20)), proposal("pack_b", 0.1))
    chosen = with_moves(moves).propose(make_context(hints=("Try pack_b now!",)))
    assert chosen is not None
    assert chosen.tag == "pack_b"
    unmoved = with_moves(moves).propose(make_context(hints=("good night",)))
    assert unmoved is not None
    assert unmoved.tag == "m0"


def test_makes_no_more_moves_than_it_ranks() -> None:
    """Moves are made lazily: the window bounds how many are asked for."""
    moves = FixedMoves(*(proposal(f"m{n}", 0.1) for n in range(50)))
    with_moves(moves, window=4).propose(make_context())
    assert moves.made == 4


def test_explores_only_when_escalated() -> None:
    """At level 0 the best move is taken under every seed; higher up others are, too."""
    moves = FixedMoves(*(proposal(f"m{n}", 1.0 / (n + 1)) for n in range(8)))
    ideator = with_moves(moves, explore=0.2)

    def tags(level: int) -> set[str]:
        contexts = [make_context(escalation=level, rng_seed=seed) for seed in range(40)]
        return {chosen.tag for c in contexts if (chosen := ideator.propose(c)) is not None}

    assert tags(0) == {"m0"}
    assert len(tags(2)) > 1


def test_a_broken_move_is_passed_over() -> None:
    """An edit that does not apply is dropped, not handed to the engine."""
    broken = proposal("broken", 9.0, edit=SetMacros(macros={"NOWHERE": "1"}))
    chosen = with_moves(FixedMoves(broken, proposal("sound", 0.1))).propose(make_context())
    assert chosen is not None
    assert chosen.tag == "sound"


def test_unknown_settings_are_refused() -> None:
    """A misspelt setting is a usage error and names the key."""
    with pytest.raises(UsageError, match="windw"):
        RulesIdeator({"windw": 3})


def test_unknown_dsl_is_a_usage_error() -> None:
    """A DSL without moves is named together with the known ones."""
    with pytest.raises(UsageError, match="cobol.*croqtile"):
        moves_for("cobol")


def test_missing_moves_are_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moves that are not installed say so and name a way out."""
    monkeypatch.setitem(SOURCES, "fortran", ("croq_fsm.ideators.rules.fortran", "FortranMoves"))
    with pytest.raises(UsageError, match="not installed.*--ideator"):
        moves_for("fortran")


@pytest.mark.parametrize(
    ("log", "flags", "kept"),
    [
        ("cc: error: unrecognized command-line option '-fnope'", ("-O3", "-fnope"), ("-O3",)),
        ("cc: error: unrecognized command line option \u2018-fnope\u2019", ("-fnope",), ()),
        ("choreo: unknown option '--use-warpspec'", ("-a", "--use-warpspec"), ("-a",)),
        ("error: bad value ('mars') for '-march=' switch", ("-march=mars", "-O3"), ("-O3",)),
    ],
)
def test_drops_a_flag_that_the_compiler_does_not_know(
    log: str, flags: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    """The flag that the message names goes, the others stay."""
    context = make_context()
    source = PLAIN_MATMUL + "// changed\nint unused_here;\n"
    idea = proposal("flags", 0.1, edit=WholeSource(source=source), flags=flags)
    failure = make_failure(candidate_of(idea, context), log=log)
    repaired = RulesIdeator({}).repair(context, idea, failure)
    assert repaired is not None
    assert repaired.flags == kept
    assert candidate_of(repaired, context).source == source


def test_no_repair_when_the_rest_is_the_base() -> None:
    """Dropping the only change leaves the base, which is no candidate."""
    context = make_context()
    idea = proposal("flag", 0.1, flags=("-fnope",))
    log = "cc: error: unrecognized command-line option '-fnope'"
    failure = make_failure(candidate_of(idea, context), log=log)
    assert RulesIdeator({}).repair(context, idea, failure) is None


def test_one_stage_less_when_shared_memory_overflows() -> None:
    """The stage macro of the failed candidate goes down by one."""
    context = make_context(BLOCKED_BY_AUTHOR)
    idea = proposal("deep", 0.1, edit=SetMacros(macros={"STAGES": "5", "TILE": "64"}), flags=())
    log = "k.co:9.1: error: shared memory OUT OF BOUND!"
    failure = make_failure(candidate_of(idea, context), log=log)
    # Five stages less one is what the base has, but its tile is another.
    repaired = RulesIdeator({}).repair(context, idea, failure)
    assert repaired is not None
    assert repaired.edit == SetMacros(macros={"TILE": "64"})


def test_rounds_a_width_to_what_the_message_asks_for() -> None:
    """A macro that must be a multiple becomes the next lower one."""
    context = make_context(BLOCKED_BY_AUTHOR)
    idea = proposal("odd", 0.1, edit=SetMacros(macros={"TILE": "30"}), flags=())
    failure = make_failure(candidate_of(idea, context), log="error: TILE must be a multiple of 8")
    repaired = RulesIdeator({}).repair(context, idea, failure)
    assert repaired is not None
    assert repaired.edit == SetMacros(macros={"TILE": "24"})


def test_halves_what_makes_a_buffer_too_large() -> None:
    """The macro that sizes the array in the message is halved."""
    source = "#define ROWS 7\n#define SIZE 4096\nstatic float pool[SIZE];\n" + PLAIN_MATMUL
    context = make_context(source)
    idea = proposal("huge", 0.1, edit=SetMacros(macros={"SIZE": "8000000", "ROWS": "9"}), flags=())
    log = "k.c:3:14: error: size of array 'pool' is too large"
    repaired = RulesIdeator({}).repair(
        context, idea, make_failure(candidate_of(idea, context), log=log)
    )
    assert repaired is not None
    assert repaired.edit == SetMacros(macros={"ROWS": "9", "SIZE": "4000000"})


def test_wrong_results_cost_the_flags_that_change_values() -> None:
    """After a failed verification the value-changing flags go."""
    context = make_context()
    idea = proposal("fast", 0.1, flags=("-O3", "-ffast-math"))
    failure = make_failure(candidate_of(idea, context), Decision.VERIFY_FAIL)
    repaired = RulesIdeator({}).repair(context, idea, failure)
    assert repaired is not None
    assert repaired.flags == ("-O3",)


def test_a_repair_is_new_and_clean() -> None:
    """A repair that was tried, or that the lints flag, is not handed out."""
    context = make_context()
    idea = proposal("fast", 0.1, flags=("-O3", "-ffast-math"))
    failure = make_failure(candidate_of(idea, context), Decision.VERIFY_FAIL)
    known = replace(context, is_new=lambda _candidate: False)
    flagged = replace(context, lint=lambda _candidate: ["no"])
    assert RulesIdeator({}).repair(known, idea, failure) is None
    assert RulesIdeator({}).repair(flagged, idea, failure) is None


def test_an_unknown_message_gives_the_idea_up() -> None:
    """No guess is made where no repair fits."""
    context = make_context()
    idea = proposal("odd", 0.1)
    failure = make_failure(candidate_of(idea, context), log="error: expected ';'")
    assert RulesIdeator({}).repair(context, idea, failure) is None


def test_a_night_does_not_run_out_of_ideas() -> None:
    """Seventy rounds in which nothing is kept still end with a proposal, each of them new."""
    session = Session(make_context(), lambda _candidate: Decision.DISCARD)
    identities = [guards.identity(c) for _, c in session.play(RulesIdeator({}), 70)]
    assert len(identities) == len(set(identities)) == 70


def test_the_ranked_ideas_come_in_order_of_work() -> None:
    """With every idea kept, loops and flags come before tiles, and tiles before packing."""
    session = Session(make_context(), lambda _candidate: Decision.KEEP)
    order = [p.levers[0] for p, _ in session.play(RulesIdeator({}), 16)]
    wanted = ["interchange", "flag_o3", "flag_native", "register_tile", "pack_b"]
    assert [name for name in order if name in wanted][: len(wanted)] == wanted


def test_patches_of_the_base_stay() -> None:
    """Patches of generated code are inherited, never silently dropped."""
    context = make_context()
    patches = (Replace(search="float", replace="float "),)
    base = replace(context.base, candidate=Candidate(source=PLAIN_MATMUL, patches=patches))
    chosen = RulesIdeator({}).propose(replace(context, base=base))
    assert chosen is not None
    assert chosen.patches == patches
