"""Replaying recorded proposals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from ideator_contract import IdeatorContract, candidate_of, make_context, make_failure

from croq_fsm.domain.ideas import NoEdit, Proposal
from croq_fsm.domain.states import Category, Decision
from croq_fsm.errors import BackendDown, UsageError
from croq_fsm.ideators.contract import Ideator, Past
from croq_fsm.ideators.replay import ReplayIdeator


def recorded(tag: str, base: int = 1) -> Proposal:
    """A proposal as it was recorded, on a base of its own session."""
    return Proposal(
        tag=tag,
        base=base,
        edit=NoEdit(),
        flags=(f"-f{tag}",),
        summary=f"try {tag}",
        hypothesis="ipc is 1.1: something is idle",
        metrics=("ipc",),
        category=Category.MISC,
        expected_gain=0.1,
    )


def write(path: Path, lines: Sequence[object]) -> Path:
    """A recording of these lines."""
    texts = [
        line.model_dump_json() if isinstance(line, Proposal) else json.dumps(line) for line in lines
    ]
    path.write_text("\n".join(["# a recording", "", *texts, ""]), encoding="utf-8")
    return path


class TestContract(IdeatorContract):
    """The contract holds for a recording with a repair."""

    @pytest.fixture
    def ideator(self, tmp_path: Path) -> Ideator:
        """One proposal and one repair."""
        line = {
            "proposal": recorded("one").model_dump(mode="json"),
            "repairs": [recorded("mended").model_dump(mode="json")],
        }
        return ReplayIdeator({"path": write(tmp_path / "p.jsonl", [line])})


def past(number: int) -> Past:
    """Some round."""
    return Past(
        round=number,
        base=1,
        tag="old",
        summary="old",
        category=Category.MISC,
        levers=(),
        macro_only=False,
        decision=Decision.DISCARD,
        ratio=None,
        reason="",
    )


def test_plays_one_per_call_then_ends(tmp_path: Path) -> None:
    """Proposals come in order, on the round's base, and None after the last."""
    path = write(tmp_path / "p.jsonl", [recorded("one"), recorded("two")])
    ideator = ReplayIdeator({"path": str(path)})
    played = [ideator.propose(make_context()) for _ in range(3)]
    assert [p and (p.tag, p.base) for p in played] == [("one", 3), ("two", 3), None]


def test_a_resumed_session_goes_on_where_it_was(tmp_path: Path) -> None:
    """A fresh process skips as many lines as rounds are stored."""
    path = write(tmp_path / "p.jsonl", [recorded("one"), recorded("two")])
    proposal = ReplayIdeator({"path": path}).propose(make_context(history=(past(1),)))
    assert proposal is not None
    assert proposal.tag == "two"


def test_replays_a_dead_backend(tmp_path: Path) -> None:
    """A line that says down raises BackendDown with its text, once."""
    path = write(tmp_path / "p.jsonl", [{"down": "quota"}, recorded("after")])
    ideator = ReplayIdeator({"path": path})
    with pytest.raises(BackendDown, match="quota"):
        ideator.propose(make_context())
    proposal = ideator.propose(make_context())
    assert proposal is not None
    assert proposal.tag == "after"


def test_repairs_come_by_attempt_then_end(tmp_path: Path) -> None:
    """The first failed attempt gets the first recorded repair, the next one None."""
    line = {
        "proposal": recorded("one").model_dump(mode="json"),
        "repairs": [recorded("mended").model_dump(mode="json")],
    }
    ideator = ReplayIdeator({"path": write(tmp_path / "p.jsonl", [line])})
    context = make_context()
    proposal = ideator.propose(context)
    assert proposal is not None
    failure = make_failure(candidate_of(proposal, context))
    repaired = ideator.repair(context, proposal, failure)
    assert repaired is not None
    assert (repaired.tag, repaired.base) == ("mended", 3)
    second = type(failure)(**{**vars(failure), "attempt": 2})
    assert ideator.repair(context, repaired, second) is None


def test_takes_the_name_of_the_recorded_ideator(tmp_path: Path) -> None:
    """The name in the settings becomes the model of the file layout."""
    path = write(tmp_path / "p.jsonl", [recorded("one")])
    assert ReplayIdeator({"path": path, "name": "claude-5"}).name == "claude-5"


@pytest.mark.parametrize("line", ['{"tag": "x"}', "[1]", "no json", "{}", '{"proposal": null}'])
def test_names_the_line_that_is_no_record(tmp_path: Path, line: str) -> None:
    """A bad line is a usage error that says where it is."""
    path = tmp_path / "p.jsonl"
    path.write_text(f"{recorded('one').model_dump_json()}\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="line 2"):
        ReplayIdeator({"path": path})


def test_a_missing_recording_is_a_usage_error(tmp_path: Path) -> None:
    """So are settings without a path."""
    with pytest.raises(UsageError, match="cannot be read"):
        ReplayIdeator({"path": tmp_path / "none.jsonl"})
    with pytest.raises(UsageError, match="path"):
        ReplayIdeator({})
