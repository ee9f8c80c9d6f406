"""Verdicts on outputs, and what failures of a bench mean. No device is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from croqtile_support import ScriptedTalk, task

from croq_fsm.errors import (
    CandidateCrashed,
    CandidateRefused,
    CroqError,
    DiskFull,
    EnvironmentMissing,
)
from croq_fsm.toolchain.croqtile_bench import (
    Case,
    LibraryError,
    Trusted,
    bench_error,
    candid,
    cases,
    judge_output,
    library_error,
    run_case,
    verdict,
)

CASE = Case("normal-seed-1", "verify", "normal", 1, 2e-3, 0.128)
SEEN: dict[str, object] = {
    "ok": True,
    "inputs": "ab",
    "inputs_intact": True,
    "guard_damage": 0,
    "repeatable": True,
    "threads_added": 0,
}
JUDGED: dict[str, object] = {
    "ok": True,
    "inputs": "ab",
    "rel_error": 2e-4,
    "max_error": 0.03,
    "wrong": 0,
    "nan": 0,
    "total": 64,
    "first_wrong": -1,
}


def test_an_honest_output_passes() -> None:
    """A small error, nothing wrong, nothing odd."""
    check = verdict(CASE, SEEN, JUDGED, 8, may_differ=False)
    assert check.passed
    assert (check.rel_error, check.wrong, check.total) == (2e-4, 0, 64)


@pytest.mark.parametrize(
    ("judged", "says"),
    [
        ({"rel_error": 3e-3}, "exceeds"),
        ({"wrong": 1, "first_wrong": 19, "got": 0, "want": 5}, r"\[2, 3\]: 0 instead of 5"),
        ({"nan": 7}, "7 elements were not written"),
        ({"rel_error": None}, "no numbers"),
        ({"total": 0}, "no numbers"),
        ({"inputs": "cd"}, "inputs of the two programs differ"),
    ],
)
def test_a_wrong_output_fails(judged: dict[str, object], says: str) -> None:
    """Error, wrong elements, unwritten elements, missing numbers, other inputs."""
    check = verdict(CASE, SEEN, {**JUDGED, **judged}, 8, may_differ=False)
    assert not check.passed
    assert says.replace("\\", "") in check.detail


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        ({"inputs_intact": False}, "changed its inputs"),
        ({"guard_damage": 2}, "outside of its buffers"),
        ({"repeatable": False}, "a race"),
        ({"threads_added": 1}, "started a thread"),
        ({"inputs_intact": None}, "changed its inputs"),
    ],
)
def test_odd_behaviour_fails(seen: dict[str, object], says: str) -> None:
    """What the bench saw counts as much as the numbers."""
    check = verdict(CASE, {**SEEN, **seen}, JUDGED, 8, may_differ=False)
    assert not check.passed
    assert says in check.detail


def test_atomics_may_differ_in_their_last_bits() -> None:
    """Then the numbers alone decide."""
    assert verdict(CASE, {**SEEN, "repeatable": False}, JUDGED, 8, may_differ=True).passed


def test_the_ladder_has_exact_inputs_first_and_all_seeds() -> None:
    """Index-coded inputs allow no error at all; normal ones the operator's bound."""
    ladder = cases(task(), (3, 5))
    assert [(c.dist, c.seed) for c in ladder] == [("index", 3), ("normal", 3), ("normal", 5)]
    assert ladder[0].relative == ladder[0].absolute == 0.0
    bound = task().op.error_bound(task().shape, "f16")
    assert ladder[1].relative == bound
    assert ladder[1].absolute == bound * 64.0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("cuda: cudaErrorIllegalAddress in the candidate: x", CandidateCrashed),
        ("cuda: cudaErrorLaunchFailure in timed launches: x", CandidateCrashed),
        ("cuda: cudaErrorInvalidValue in launch of the candidate: x", CandidateRefused),
        ("cuda: cudaErrorMemoryAllocation in allocate an operand: x", EnvironmentMissing),
        ("cannot write the output file /x", DiskFull),
        ("cuda: cudaErrorNoDevice in allocate scratch: x", EnvironmentMissing),
        ("unknown request: x", CandidateRefused),
    ],
)
def test_failures_of_a_bench_are_told_apart(text: str, error: type[CroqError]) -> None:
    """Device faults, refused launches, and what is the environment's."""
    assert type(bench_error(text)) is error
    with pytest.raises(error):
        candid({"ok": False, "error": text})


def test_failures_of_the_judge_are_never_a_candidates() -> None:
    """The trusted program's refusal speaks of the environment."""
    with pytest.raises(EnvironmentMissing, match="broken"):
        Trusted(ScriptedTalk({"ok": False, "error": "broken"})).ask({}, 1.0)


def test_requests_carry_the_case() -> None:
    """Both programs are told the same seed and distribution; only the judge the bounds."""
    bench, judge = ScriptedTalk(SEEN), ScriptedTalk(JUDGED)
    run_case(CASE, bench, Path("x"), 1.0)
    judge_output(CASE, judge, Path("x"), 1.0)
    shared = {"seed": 1, "dist": "normal", "out": "x"}
    assert shared.items() <= bench.requests[0].items()
    assert {**shared, "relative": 2e-3, "absolute": 0.128}.items() <= judge.requests[0].items()
    assert "relative" not in bench.requests[0]


def test_the_protocols_table_is_sent_and_told() -> None:
    """Its tolerance goes to the judge; elements beyond it are named in the verdict."""
    case = cases(task(), (1,))[-1]
    judge = ScriptedTalk(JUDGED)
    judge_output(case, judge, Path("x"), 1.0)
    assert judge.requests[0]["table_absolute"] == 1.0
    assert judge.requests[0]["table_relative"] == 0.01
    check = verdict(case, SEEN, {**JUDGED, "wrong": 3, "beyond_table": 2}, 8, may_differ=False)
    assert not check.passed
    assert "2 elements are off by more than 1 + 0.01 |x|" in check.detail


def test_an_error_is_held_against_the_librarys_own() -> None:
    """More than N times the library's error fails, however wide the bound is."""
    case = Case("normal-seed-1", "verify", "normal", 1, 1e-2, 1.0, honest=1e-4)
    library = LibraryError(relative=1e-4, factor=4.0)
    for error, passed in ((3.9e-4, True), (4.1e-4, False)):
        judged = {**JUDGED, "rel_error": error}
        check = verdict(case, SEEN, judged, 8, may_differ=False, library=library)
        assert check.passed is passed
        assert ("4 times the library's" in check.detail) is not passed


def test_rounding_of_the_output_is_never_held_against_a_kernel() -> None:
    """A library that happens to be exact does not make an honest kernel wrong."""
    case = Case("normal-seed-1", "verify", "normal", 1, 1e-2, 1.0, honest=5e-4)
    library = LibraryError(relative=1e-9, factor=4.0)
    assert verdict(case, SEEN, JUDGED, 8, may_differ=False, library=library).passed
    judged = {**JUDGED, "rel_error": 6e-4}
    assert not verdict(case, SEEN, judged, 8, may_differ=False, library=library).passed


def test_a_library_that_cannot_run_gives_no_error_to_compare_with() -> None:
    """Absence is no failure of a candidate."""
    assert library_error(CASE, ScriptedTalk({"ok": True, "rel_error": 2e-4}), 1.0) == 2e-4
    assert library_error(CASE, ScriptedTalk({"ok": True, "absent": "none"}), 1.0) is None
