"""Retention frees space and never touches the champion, its line, or the work in hand."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from croq_fsm.config import load
from croq_fsm.domain.records import Round
from croq_fsm.domain.states import Bottleneck, Category, Decision
from croq_fsm.storage import retention
from croq_fsm.toolchain.build_cache import BuildCache
from croq_fsm.validation import validate
from support.bench import TASK, Bench
from support.night import whole
from support.scripted import ScriptedIdeator

_ROUND = Round(
    round=1, iteration=2, kernel="iter002_x", base=1, decision=Decision.DISCARD, seconds=1.0,
    tflops=1.0, ratio=1.0, bottleneck=Bottleneck.COMPUTE, category=Category.COMPUTE,
    macro_only=False, summary="", hypothesis="", expected_gain=0.0, levers=(), tag="x", attempts=0,
    reason="", ideator="", stored_at=0, wall_s=0.0,
)  # fmt: skip


@st.composite
def nights(draw: st.DrawFn) -> tuple[list[Round], int]:
    """Rounds in which each kernel derives from any earlier one, some untimed; and any best."""
    rounds: list[Round] = []
    numbers = [1]
    for n in range(1, draw(st.integers(1, 30)) + 1):
        timed = draw(st.booleans())
        number = numbers[-1] + 1 if timed else None
        base = draw(st.sampled_from(numbers))
        rounds.append(dataclasses.replace(_ROUND, round=n, iteration=number, base=base))
        if number is not None:
            numbers.append(number)
    return rounds, draw(st.sampled_from(numbers))


def _artifacts(rounds: list[Round]) -> list[dict[str, object]]:
    """A binary for each timed round, the start kernel's, and a report of each round's base."""
    found: list[dict[str, object]] = [{"path": "bin/iter001_x", "kind": "binary", "round": 0}]
    for r in rounds:
        report = f"perf/ncu_iter{r.base:03d}_x_round{r.round}.ncu-rep"
        found.append({"path": report, "kind": "report", "round": r.round})
        found.append({"path": f"srcs/round{r.round}", "kind": "source", "round": r.round})
        if r.iteration is not None:
            path = f"bin/iter{r.iteration:03d}_x"
            found.append({"path": path, "kind": "binary", "round": r.round})
    return found


@given(nights(), st.integers(0, 12))
@settings(max_examples=300, deadline=None)
def test_the_champion_and_its_line_stay(night: tuple[list[Round], int], keep: int) -> None:
    """Whatever the history: binaries of the line, their newest reports, recent rounds, sources."""
    rounds, best = night
    artifacts = _artifacts(rounds)
    gone = retention.retired(artifacts, rounds, best, keep)
    parents = {r.iteration: r.base for r in rounds}
    here: int | None = best
    while here is not None and here != 1:
        assert f"bin/iter{here:03d}_x" not in gone
        reports = [str(a["path"]) for a in artifacts if f"ncu_iter{here:03d}_" in str(a["path"])]
        assert not reports or reports[-1] not in gone
        here = parents.get(here)
    assert "bin/iter001_x" not in gone
    assert not any(path.startswith("srcs/") for path in gone)
    recent = {a["path"] for a in artifacts if int(str(a["round"])) > rounds[-1].round - keep}
    assert keep == 0 or not gone & recent
    assert keep or not gone


def test_old_binaries_go_and_the_audit_does_not_miss_them(tmp_path: Path) -> None:
    """A loser's binary of an old round goes, all others stay; validate and rebuild are content."""
    settings_ = {"storage.keep_rounds": 1, "storage.compaction_summary": "summary/{dsl}/summary.md"}
    script = [{"TIME_US": "950"}, {"TIME_US": "990"}, lambda c: whole(c, "int a;\n", "other")]
    bench = Bench(
        tmp_path,
        ScriptedIdeator(script),
        task=TASK.model_copy(update={"rounds": 3}),
        config=load(None, settings_),
    )
    session = bench.run()
    with bench.repository.read() as reader:
        gone = retention.retire(bench.root.path, retention.of_session(reader, session))
    assert [Path(path).name for path in gone] == ["iter003_speed"]
    left = {p.name.partition("_")[0] for p in bench.root.path.glob("tuning/**/bin/**/iter*")}
    assert left == {"iter001", "iter002", "iter004"}
    bench.close()
    assert not validate(bench.root).problems


def test_a_trimmed_cache_still_has_the_champion(tmp_path: Path) -> None:
    """With no room at all, the builds of the best kernel's line stay and all others go."""
    bench = Bench(
        tmp_path,
        ScriptedIdeator([{"TIME_US": "900"}, {"TIME_US": "950"}]),
        task=TASK.model_copy(update={"rounds": 2}),
        config=load(None),
    )
    session = bench.run()
    shutil.rmtree(bench.root.cache)
    cache = BuildCache(bench.root.cache)
    with bench.repository.read() as reader:
        keys = {i.number: i.build.key for i in reader.iterations(session.id) if i.build}
        for key in keys.values():
            cache.put(key, {"program": b"x" * 1000}, {})
        gone = retention.trim_cache(bench.root.cache, reader, 0)
    assert session.best_iteration == 2
    # The candidate of the last round is still the work in hand of an ended session.
    assert set(gone) <= {keys[3]}
    assert cache.get(keys[2]) is not None
    assert cache.get(keys[1]) is not None
    bench.close()


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd"])
def test_nothing_outside_is_removed(tmp_path: Path, path: str) -> None:
    """A damaged row cannot make retention remove somebody else's file."""
    outside = tmp_path / "outside"
    outside.touch()
    root = tmp_path / "root"
    root.mkdir()
    assert retention.retire(root, [path]) == []
    assert outside.exists()
