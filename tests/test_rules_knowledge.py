"""Knowledge as data: reading it, and what evidence does to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ideator_contract import PLAIN_MATMUL, make_context, make_profile

from croq_fsm.domain.states import Bottleneck, Category
from croq_fsm.errors import UsageError
from croq_fsm.ideators.rules.c import CMoves
from croq_fsm.ideators.rules.c_text import fill
from croq_fsm.ideators.rules.evidence import quote
from croq_fsm.ideators.rules.knowledge import Bound, Rule, load

RULE = """
[[rule]]
name = "{name}"
category = "tiling"
gain = 0.5
what = "Turn it."
why = "it turns"
"""


def write(folder: Path, text: str) -> Path:
    """A knowledge folder with one file for DSL c."""
    (folder / "c.toml").write_text(text, encoding="utf-8")
    return folder


def test_the_shipped_file_is_sound() -> None:
    """It reads, names only operators that exist, and ``after`` only rules that exist."""
    CMoves()
    rules = load("c").rule
    names = {rule.name for rule in rules}
    assert [a for rule in rules for a in rule.after if a not in names] == []
    assert all(rule.quotes for rule in rules)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule", "no rule file"),
        (RULE.format(name="x1") + "weight = 1\n", "weight"),
        (RULE.format(name="x1").replace("0.5", "-1"), "gain"),
        (RULE.format(name="x1") * 2, "twice: x1"),
    ],
)
def test_a_bad_file_is_a_usage_error(tmp_path: Path, text: str, message: str) -> None:
    """The error says which file and what is wrong with it."""
    with pytest.raises(UsageError, match=message) as caught:
        load("c", write(tmp_path, text))
    assert "c.toml" in str(caught.value)


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    """The path that was looked at is named."""
    with pytest.raises(UsageError, match="does not exist"):
        load("c", tmp_path)


def test_a_rule_for_no_operator_is_refused_at_once(tmp_path: Path) -> None:
    """A misspelt rule would otherwise never be heard of."""
    with pytest.raises(UsageError, match="unknown operators: interchnge"):
        CMoves(write(tmp_path, RULE.format(name="interchnge")))


@pytest.mark.parametrize(
    ("bound", "holds"),
    [
        (Bound(metric="ipc", above=1.0), True),
        (Bound(metric="ipc", above=1.1), False),
        (Bound(metric="ipc", below=1.1), False),
        (Bound(metric="ipc", below=2.0), True),
        (Bound(metric="absent", above=9.0), True),
    ],
)
def test_bounds_read_the_profile(bound: Bound, holds: bool) -> None:
    """A bound is strict; a metric that is absent rules nothing out."""
    assert bound.holds(make_profile(ipc=1.1)) is holds


def test_expectation_follows_the_evidence() -> None:
    """A rule expects more on its own bottleneck, and less the nearer the peak."""
    rule = Rule(
        name="x1",
        category=Category.TILING,
        gain=1.0,
        bottlenecks=(Bottleneck.COMPUTE,),
        what="w",
        why="y",
    )
    far = make_profile(Bottleneck.COMPUTE, flops__pct_of_peak=20.0)
    near = make_profile(Bottleneck.COMPUTE, flops__pct_of_peak=90.0)
    other = make_profile(Bottleneck.MEMORY, flops__pct_of_peak=20.0)
    assert rule.expectation(far) == pytest.approx(0.8)
    assert rule.expectation(near) == pytest.approx(0.1)
    assert rule.expectation(other) == pytest.approx(0.32)


def test_quotes_only_what_was_measured() -> None:
    """Absent metrics are skipped, at most three are quoted, and the class is told."""
    profile = make_profile(ipc=1.234567, time__us=5.0)
    text, names = quote(profile, ("flops.pct_of_peak", "ipc", "time.us"))
    assert names == ("ipc", "time.us")
    assert "ipc is 1.235" in text
    assert "latency_bound" in text
    assert quote(profile, ("none",))[1] == ("ipc", "time.us")
    assert quote(make_profile().model_copy(update={"metrics": ()}), ("ipc",))[1] == ()


def test_a_rule_waits_for_what_it_comes_after() -> None:
    """Register tiles expect little until the compiler has been told the machine."""
    early = make_context(PLAIN_MATMUL)
    late = make_context(PLAIN_MATMUL, ("-O3", "-march=native", "-mprefer-vector-width=512"))

    def expected(context: object) -> float:
        moves = CMoves().proposals(context)  # type: ignore[arg-type]
        return next(p.expected_gain for p in moves if p.levers[0] == "register_tile")

    assert expected(early) < 0.2 * expected(late)


def test_texts_need_all_their_switches() -> None:
    """A text never guesses: a missing switch or word is an error."""
    with pytest.raises(KeyError):
        fill("c_softmax.c", {}, {})
