"""Pure values and rules: names, shapes, sources, edits, guards, decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from croq_fsm.domain import decision, escalation, guards, names, source
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.decision import Policy
from croq_fsm.domain.hidden import hidden_tasks
from croq_fsm.domain.ideas import Replace, SearchReplace, SetMacros, WholeSource, apply_edit
from croq_fsm.domain.measurement import Estimate
from croq_fsm.domain.operators import MATMUL
from croq_fsm.domain.shapes import ceil_div, format_shape, parse_shape
from croq_fsm.domain.states import Decision
from croq_fsm.errors import EditError, UsageError
from support.bench import TASK

_POLICY = Policy(
    min_effect=0.005, screen_margin=0.05, noise=0.004, pairs=12, max_pairs=36, confirm_pairs=12
)


@pytest.mark.parametrize(("ordinal", "letters"), [(0, "AAAA"), (1, "AAAB"), (26, "AABA")])
def test_attempts_are_lettered(ordinal: int, letters: str) -> None:
    """Attempts count in letters and never look like iterations."""
    assert names.attempt_name(ordinal, "tile") == f"attempt{letters}_tile"


@given(st.text(max_size=60))
def test_any_text_makes_a_legal_tag(text: str) -> None:
    """A tag derived from any text keeps the contract."""
    assert names.TAG_PATTERN.match(names.clean_tag(text))


@pytest.mark.parametrize(
    "bad", ["", "4x", "axbxc", "1x2", "0x1x1", "1x1x99999999999", "1X2X3", "\u0663x5x5", "5x5x5\n"]
)
def test_bad_shapes_say_what_is_wanted(bad: str) -> None:
    """A shape that cannot be read is refused with the form that is wanted."""
    with pytest.raises(UsageError, match="MxNxK|must be between"):
        parse_shape(bad, ("m", "n", "k"))


@given(st.lists(st.integers(1, 2**31 - 1), min_size=3, max_size=3))
def test_shapes_round_trip(sizes: list[int]) -> None:
    """What is written can be read."""
    assert parse_shape(format_shape(tuple(sizes)), ("m", "n", "k")) == tuple(sizes)


@given(st.integers(0, 2**60), st.integers(1, 2**30))
def test_ceil_div_is_exact(a: int, b: int) -> None:
    """Rounded up, also beyond the precision of a float."""
    assert ceil_div(a, b) == -(-a // b)


def test_comments_and_blanks_do_not_make_a_new_candidate() -> None:
    """Two texts that differ in comments, blanks and line breaks are one candidate."""
    a = "#define N  4 // four\nint f( int a ) { return a /* x */ + N; }\n"
    b = "#define N 4\n\nint f(int a){\n  return a+N;\n}\n"
    assert source.normalised_hash(a) == source.normalised_hash(b)


def test_blanks_inside_literals_count() -> None:
    """Text in quotes is never touched."""
    assert source.normalised_hash('f("a b");') != source.normalised_hash('f("a  b");')


def test_a_macro_is_set_and_the_rest_stays() -> None:
    """Only the value of the macro changes, byte for byte."""
    text = "// N\n#define N  4   // tile\n#define NN 5\n"
    assert source.set_macros(text, {"N": "8"}) == "// N\n#define N  8   // tile\n#define NN 5\n"


@pytest.mark.parametrize("macros", [{"X": "1"}, {"N": ""}, {"N": "1\n#define M 2"}])
def test_a_macro_edit_that_does_not_fit_is_refused(macros: dict[str, str]) -> None:
    """Unknown macros and smuggled lines are refused."""
    with pytest.raises(EditError):
        source.set_macros("#define N 4\n", macros)


@pytest.mark.parametrize("search", ["a", "zz", ""])
def test_a_search_must_match_once(search: str) -> None:
    """Absent, ambiguous and empty searches are refused."""
    with pytest.raises(EditError):
        apply_edit(SearchReplace(edits=(Replace(search=search, replace="b"),)), "aa")


@pytest.mark.parametrize("text", ["", " \n", "int a;\0", "int \u202ea;", "x" * (1 << 20) + "y"])
def test_sources_that_hide_something_are_refused(text: str) -> None:
    """Empty, huge and deceptive sources are refused."""
    with pytest.raises(EditError):
        apply_edit(WholeSource(source=text), "int a;")


def test_a_macro_change_is_no_structural_change() -> None:
    """Macro values are parameters; flags are structure."""
    base = Candidate(source="#define N 4\nint a[N];\n")
    macro = Candidate(source=apply_edit(SetMacros(macros={"N": "8"}), base.source))
    assert guards.is_macro_only(macro, base)
    assert not guards.is_macro_only(Candidate(source=base.source, flags=("-O3",)), base)


@pytest.mark.parametrize(
    "text", ["cublasSgemm(a);", "#include <cublas_v2.h>", "cblas_sgemm (1);", "sgemm_(x);"]
)
def test_library_calls_are_refused(text: str) -> None:
    """A candidate that calls the reference is no candidate."""
    assert guards._LIBRARY_CALL.search(text)


def _estimate(ratio: float, half: float, pairs: int = 12) -> Estimate:
    return Estimate(ratio=ratio, low=ratio - half, high=ratio + half, pairs=pairs)


@pytest.mark.parametrize(
    ("phase", "estimate", "kind", "verdict"),
    [
        ("screen", _estimate(0.90, 0.02, 5), "decided", Decision.DISCARD),
        ("screen", _estimate(0.97, 0.02, 5), "more", None),
        ("screen", _estimate(0.30, 0.02, 5), "more", None),
        ("screen", _estimate(0.30, 0.02, 10), "decided", Decision.DISCARD),
        ("pairs", _estimate(1.03, 0.01), "confirm", None),
        ("pairs", _estimate(1.00, 0.003), "decided", Decision.DISCARD),
        ("pairs", _estimate(1.006, 0.01), "more", None),
        ("pairs", _estimate(1.006, 0.01, 36), "decided", Decision.DISCARD),
        ("pairs", _estimate(0.99, 0.012), "decided", Decision.DISCARD),
        ("pairs", _estimate(1.002, 0.006), "decided", Decision.DISCARD),
        ("confirm", _estimate(1.03, 0.01), "decided", Decision.KEEP),
        ("confirm", _estimate(1.001, 0.003), "decided", Decision.DISCARD),
        ("confirm", _estimate(1.008, 0.01), "more", None),
        ("confirm", _estimate(1.008, 0.01, 36), "decided", Decision.DISCARD),
        ("confirm", _estimate(0.98, 0.03), "decided", Decision.DISCARD),
    ],
)
def test_decide_is_a_function_of_the_evidence(
    phase: str, estimate: Estimate, kind: str, verdict: Decision | None
) -> None:
    """Each phase has its rule; what stays unclear leaves the incumbent."""
    ruling = decision.rule(phase, estimate, _POLICY)  # type: ignore[arg-type]
    assert (ruling.kind, ruling.decision) == (kind, verdict)


def test_a_gain_below_the_noise_floor_is_not_confirmed() -> None:
    """A ratio inside the noise of the device is no gain however tight its interval."""
    noisy = Policy(0.005, 0.05, 0.02, 12, 36, 12)
    ruling = decision.rule("confirm", _estimate(1.01, 0.002, 36), noisy)
    assert ruling.decision is Decision.DISCARD
    assert "noise floor" in ruling.reason


def test_a_confirmation_takes_no_fewer_pairs_than_the_decision() -> None:
    """A gain that took many pairs to see is not asked to show again in a few."""
    assert decision.rule("pairs", _estimate(1.03, 0.01, 24), _POLICY).next_pairs == 24


@given(st.floats(0.5, 2.0), st.floats(1e-4, 0.2), st.integers(3, 36))
def test_measuring_comes_to_an_end(ratio: float, half: float, pairs: int) -> None:
    """Whatever is seen, the cap is never exceeded, and at the cap there is a decision."""
    for phase in ("pairs", "confirm"):
        ruling = decision.rule(phase, _estimate(ratio, half * ratio, pairs), _POLICY)  # type: ignore[arg-type]
        if ruling.kind == "more":
            assert 0 < ruling.next_pairs <= 36 - pairs
        elif ruling.kind == "confirm":
            assert phase == "pairs"
        assert pairs < 36 or ruling.kind != "more"


def test_what_the_cap_left_undecided_says_so() -> None:
    """An interval that still holds the bar at the cap is no statement, and no gain."""
    ruling = decision.rule("pairs", _estimate(1.03, 0.04, 36), _POLICY)
    assert ruling.decision is Decision.DISCARD
    assert "undecided after 36 pairs" in ruling.reason


def test_old_noise_does_not_bar_the_way_to_a_confirmation() -> None:
    """A noise floor of a bad hour is measured anew beside the candidate, not believed for ever."""
    noisy = Policy(0.005, 0.05, 0.8, 12, 36, 12)
    assert decision.rule("pairs", _estimate(1.5, 0.1), noisy).kind == "confirm"


def test_the_greedy_policy_is_marked_as_such() -> None:
    """The protocol's literal rule keeps any higher median and says that it did."""
    greedy = replace(_POLICY, greedy=True)
    assert decision.rule("pairs", _estimate(1.001, 0.01), greedy).kind == "confirm"
    kept = decision.rule("confirm", _estimate(1.001, 0.01), greedy)
    assert kept.decision is Decision.KEEP
    assert "greedy policy" in kept.reason


@given(st.lists(st.integers(1, 5000), min_size=3, max_size=3), st.integers(0, 99))
def test_hidden_shapes_are_other_smaller_and_as_aligned(sizes: list[int], seed: int) -> None:
    """A hidden shape differs, is never larger, and keeps the alignment that a tile may rely on."""
    task = TASK.model_copy(update={"shape": tuple(sizes)})
    for other in hidden_tasks(task, seed, 2):
        assert other.shape != task.shape
        for size, hidden in zip(sizes, other.shape, strict=True):
            step = min(size & -size, 256, max(1, size // 2))
            assert 0 < hidden <= size
            assert hidden % step == 0


def test_the_ladder_rises_with_the_streak() -> None:
    """Each threshold of the escalation is reached."""
    assert [escalation.level(n) for n in (0, 2, 3, 5, 7, 8, 9, 10, 99)] == [
        0,
        0,
        1,
        2,
        3,
        4,
        4,
        5,
        5,
    ]


def test_the_error_bound_grows_with_the_reduction() -> None:
    """Honest rounding fits, half an output does not."""
    small, large = (MATMUL.error_bound((64, 64, k), "f16") for k in (64, 16384))
    assert small < large < 0.01
