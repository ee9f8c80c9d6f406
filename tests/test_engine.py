"""The engine over whole sessions, on real SQLite and real git with scripted tools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from croq_fsm.config import load
from croq_fsm.domain.ideas import Proposal
from croq_fsm.domain.states import Decision, Outcome, State
from croq_fsm.errors import BackendDown
from croq_fsm.ideators.contract import Context
from croq_fsm.storage import rebuild
from croq_fsm.storage.layout import Layout
from support.bench import TASK, Bench
from support.scripted import ScriptedIdeator, proposal


def test_a_night_keeps_gains_and_discards_losses(tmp_path: Path) -> None:
    """A gain becomes the best, a loss is discarded, and the session ends when ideas do."""
    ideator = ScriptedIdeator(
        [
            {"TIME_US": "800"},
            {"TIME_US": "900"},
            lambda c: proposal(c.base.iteration, {"TIME_US": "700"}, flags=("-O3",)),
        ]
    )
    bench = Bench(tmp_path, ideator, task=TASK.model_copy(update={"rounds": 3}))
    session = bench.run()
    assert session.state is State.DONE
    assert session.reason == "budget of 3 rounds is used"
    assert session.counts == {Decision.KEEP: 2, Decision.DISCARD: 1}
    rows = bench.file("logs/results.tsv").splitlines()
    assert [row.split("\t")[4] for row in rows[1:]] == ["KEEP", "KEEP", "KEEP", "DISCARD", "KEEP"]
    assert [row.split("\t")[1] for row in rows[1:]] == [f"iter{n:03d}" for n in range(5)]
    assert len(bench.log()) == 3


def test_failures_are_attempts_and_own_no_iteration(tmp_path: Path) -> None:
    """Compile failure, wrong result, crash and hang are named and consume no number."""
    ideator = ScriptedIdeator(
        [
            lambda c: proposal(c.base.iteration, {"STYLE": "1\n"[:1]}, tag="same"),
            *[
                lambda c, f=fault, n=n: proposal(
                    c.base.iteration,
                    {},
                    tag=f.lower(),
                    edit={
                        "kind": "whole_source",
                        "source": f"#define {f} {n}\n" + c.base.candidate.source,
                    },
                )
                for n, fault in enumerate(("NO_COMPILE", "WRONG", "CRASH", "HANG", "LINT"))
            ],
        ]
    )
    bench = Bench(tmp_path, ideator)
    session = bench.run()
    assert session.counts == {
        Decision.DISCARD: 1,
        Decision.COMPILE_FAIL: 2,
        Decision.VERIFY_FAIL: 1,
        Decision.SEGFAULT: 1,
        Decision.HANG: 1,
    }
    assert session.next_iteration == 3
    attempts = [json.loads(line) for line in bench.file("logs/attempt-log.jsonl").splitlines()]
    assert [a["attempt"] for a in attempts] == [
        "attemptAAAA_no_compile",
        "attemptAAAB_wrong",
        "attemptAAAC_crash",
        "attemptAAAD_hang",
        "attemptAAAE_lint",
    ]
    assert "ideas exhausted" in session.reason


def test_an_idea_is_given_up_after_five_attempts(tmp_path: Path) -> None:
    """Repairs stop at the fifth failed attempt of an idea."""
    bad = {"edit": {"kind": "whole_source", "source": "#define NO_COMPILE 0\nint a;\n"}}
    ideator = ScriptedIdeator([lambda c: proposal(c.base.iteration, {}, **bad)])
    tries = iter(range(1, 10))

    def repair(_context: object, failed: object, _failure: object) -> object:
        n = next(tries)
        text = f"#define NO_COMPILE {n}\nint a{n};\n"
        return proposal(1, {}, edit={"kind": "whole_source", "source": text})

    ideator.repair = repair  # type: ignore[assignment, method-assign]
    bench = Bench(tmp_path, ideator, task=TASK.model_copy(update={"rounds": 1}))
    session = bench.run()
    assert session.counts == {Decision.COMPILE_FAIL: 1}
    assert session.next_attempt == 5


def test_repeats_and_wrong_bases_are_refused(tmp_path: Path) -> None:
    """A proposal that repeats, or derives from an inactive base, never reaches a compiler."""
    ideator = ScriptedIdeator(
        [
            {"TIME_US": "800"},
            {"TIME_US": "800"},  # equals its base
            {"TIME_US": "1000"},  # the start kernel again
            lambda _c: proposal(77, {"TIME_US": "10"}),
            lambda c: proposal(c.base.iteration, {"TIME_US": "20"}, metrics=("no.such",)),
            lambda c: proposal(c.base.iteration, {"TIME_US": "30"}, summary="nvcc -O3 x.cu"),
        ]
    )
    bench = Bench(tmp_path, ideator)
    bench.run()
    refused = [s.detail["refused"] for _, s, _ in bench.steps if s.outcome is Outcome.EXHAUSTED]
    text = "\n".join(refused[0])
    for reason in (
        "equals its base",
        "tried before",
        "iter077 is not active",
        "no metric",
        "command line",
    ):
        assert reason in text


def test_macro_only_rounds_end_after_two(tmp_path: Path) -> None:
    """The third macro-only proposal in a row is refused, a structural one is taken."""
    ideator = ScriptedIdeator([{"TIME_US": str(us)} for us in (900, 800, 700)])
    bench = Bench(tmp_path, ideator)
    session = bench.run()
    assert session.round == 2
    assert ideator.seen[2].must_be_structural


def test_contention_postpones_and_never_rejects(tmp_path: Path) -> None:
    """A contended measurement is taken again later and changes no verdict."""
    ideator = ScriptedIdeator([{"TIME_US": "800"}])
    bench = Bench(
        tmp_path,
        ideator,
        config=load(None, {"contention.poll_s": 0.01}),
        task=TASK.model_copy(update={"rounds": 1}),
    )
    bench.workbench.busy = 3
    session = bench.run()
    assert session.counts == {Decision.KEEP: 1}
    assert [s.outcome for _, s, _ in bench.steps].count(Outcome.CONTENDED) == 3


def test_views_equal_their_rebuild(tmp_path: Path) -> None:
    """Every log and snapshot on disk equals what the database says, byte for byte."""
    ideator = ScriptedIdeator(
        [
            {"TIME_US": "800"},
            {"TIME_US": "950"},
            lambda c: proposal(
                c.base.iteration,
                {},
                edit={"kind": "whole_source", "source": "#define WRONG 1\nint x;\n"},
            ),
        ]
    )
    bench = Bench(tmp_path, ideator, task=TASK.model_copy(update={"rounds": 3}))
    session = bench.run()
    with bench.repository.read() as reader:
        layout = Layout(session.device.key, session.task, "summary/{dsl}/summary.md")
        rebuilt = rebuild.rebuild(reader, session, layout)
        artifacts = reader.artifacts(session.id)
    for path, text in {**rebuilt.logs, **rebuilt.snapshots}.items():
        assert (bench.root.path / path).read_text(encoding="utf-8") == text, path
    assert len(artifacts) > 10
    assert all((bench.root.path / a["path"]).is_file() for a in artifacts)


def test_backend_down_moves_on_and_then_waits(tmp_path: Path) -> None:
    """An ideator that is down is asked again after a pause; the night goes on."""
    ideator = ScriptedIdeator([BackendDown("429"), {"TIME_US": "800"}])
    bench = Bench(
        tmp_path,
        ideator,
        config=load(None, {"contention.poll_s": 0.01}),
        task=TASK.model_copy(update={"rounds": 1}),
    )
    session = bench.run()
    assert session.counts == {Decision.KEEP: 1}


def test_a_wrong_start_kernel_ends_the_session_with_a_reason(tmp_path: Path) -> None:
    """A start kernel that computes wrong results is never tuned."""
    bench = Bench(tmp_path, ScriptedIdeator([]), source="#define WRONG 1\n#define TIME_US 5\n")
    session = bench.run()
    assert session.state is State.FAILED
    assert "wrong results" in session.reason


def test_a_bug_in_a_handler_parks_the_session(tmp_path: Path) -> None:
    """A handler that always raises is tried three times and then the session is parked."""

    def explode(_candidate: object, _task: object) -> list[str]:
        raise ZeroDivisionError

    bench = Bench(tmp_path, ScriptedIdeator([{"STYLE": "1"}] * 5))
    bench.workbench.structure = explode  # type: ignore[method-assign,assignment]
    session = bench.run()
    assert session.state is State.FAILED
    assert "begun 3 times" in session.reason


def test_a_kept_commit_holds_only_our_paths(tmp_path: Path) -> None:
    """What the user has staged stays staged and stays out of our commits."""
    ideator = ScriptedIdeator([{"TIME_US": "800"}])
    bench = Bench(tmp_path, ideator, task=TASK.model_copy(update={"rounds": 1}))
    (bench.root.path / "mine.txt").write_text("user's work", encoding="utf-8")
    git = ["git", "-C", str(bench.root.path)]
    subprocess.run([*git, "add", "mine.txt"], check=True)
    bench.run()
    names = subprocess.run(
        [*git, "log", "--name-only", "--format="], check=True, capture_output=True, text=True
    ).stdout
    assert "mine.txt" not in names
    assert "iter002_speed.c" in names
    staged = subprocess.run(
        [*git, "diff", "--cached", "--name-only"], check=True, capture_output=True, text=True
    ).stdout
    assert staged.split() == ["mine.txt"]


def test_a_cleared_cache_ends_no_night(tmp_path: Path) -> None:
    """When the cache is lost between rounds, kernels are built again and the night goes on."""
    bench: Bench

    def clear(context: Context) -> Proposal:
        for path in bench.root.cache.iterdir():
            path.unlink()
        return proposal(context.base.iteration, {"TIME_US": "900"})

    bench = Bench(
        tmp_path,
        ScriptedIdeator([{"TIME_US": "800"}, clear]),
        task=TASK.model_copy(update={"rounds": 2}),
    )
    session = bench.run()
    assert session.counts == {Decision.KEEP: 1, Decision.DISCARD: 1}


def test_a_winner_must_be_right_on_hidden_shapes(tmp_path: Path) -> None:
    """A kernel that is right on the task's shape alone is refuted before it is kept."""
    source = "#define TIME_US 500\n#define ONLY_SHAPE 64x64x64\nvoid matmul(void) {}\n"
    ideator = ScriptedIdeator(
        [lambda c: proposal(1, {}, edit={"kind": "whole_source", "source": source})]
    )
    bench = Bench(tmp_path, ideator, task=TASK.model_copy(update={"rounds": 1}))
    session = bench.run()
    assert session.counts == {Decision.VERIFY_FAIL: 1}
    with bench.repository.read() as reader:
        assert "hidden-shape" in reader.rounds(session.id)[0].reason
