"""Ideators of other packages: found by metadata, held to the contract, kept from doing harm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from ideator_contract import candidate_of, check, make_context, make_failure

from croq_fsm.domain.ideas import Proposal
from croq_fsm.errors import BackendDown, BadReply, UsageError
from croq_fsm.ideators.contract import Context, Failure
from croq_fsm.ideators.load import known, load, open_ideator
from croq_fsm.ideators.replay import ReplayIdeator
from croq_fsm.ideators.services import Services
from support.bench import Bench
from support.rules import proves
from support.scripted import ScriptedIdeator

PLUGIN = '''
"""An ideator of another package: takes the addressing out of the innermost loop."""

from croq_fsm.domain.ideas import Proposal, Replace, SearchReplace
from croq_fsm.domain.states import Category


class Hoister:
    name = "hoister"

    def __init__(self, settings):
        self.word = settings.get("word", "register float")
        self.services = None

    def equip(self, services):
        self.services = services

    def propose(self, context):
        edit = SearchReplace(edits=(Replace(search="float sum", replace=f"{self.word} sum"),))
        value = context.profile.metric("ipc")
        return Proposal(
            tag="hoist", base=context.base.iteration, edit=edit,
            summary="keep the sum in a register",
            hypothesis=f"ipc is {value:.4g}, so loads are waited for", metrics=("ipc",),
            category=Category.COMPUTE, expected_gain=0.05,
        )

    def repair(self, context, proposal, failure):
        return None
'''
METADATA = "Metadata-Version: 2.1\nName: croq-hoister\nVersion: 1.0\n"
POINTS = "[croq_fsm.ideators]\nhoister = croq_hoister:Hoister\nrules = croq_hoister:Hoister\n"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package as an installer leaves it, on the path."""
    site = tmp_path / "site"
    info = site / "croq_hoister-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "croq_hoister.py").write_text(PLUGIN, encoding="utf-8")
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    (info / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "croq_hoister", raising=False)
    return site


def test_an_installed_package_is_found_and_keeps_the_contract(installed: Path) -> None:
    """A registered ideator is listed, loaded with its settings, equipped, and checked by a line."""
    assert "hoister" in known()
    services = Services(deadline_s=7.0)
    ideator = open_ideator("hoister", {"hoister": {"word": "volatile float"}}, services)
    assert ideator.services is services  # type: ignore[attr-defined]
    proposal = ideator.propose(make_context())
    assert proposal is not None
    assert "volatile float sum" in candidate_of(proposal, make_context()).source
    check(lambda: load("hoister", {}))


def test_the_contract_is_checked_from_outside(installed: Path, tmp_path: Path) -> None:
    """The one line works in a process of its own, where nothing of these tests is."""
    line = (
        "from croq_fsm.ideators.testing import check; from croq_hoister import Hoister;"
        "check(lambda: Hoister({})); print('kept')"
    )
    top = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-c", line],
        env={"PYTHONPATH": f"{installed}:{top}", "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "kept\n", done.stderr


@pytest.mark.parametrize(
    ("old", "new", "promise"),
    [
        ('name = "hoister"', 'name = "My Hoister"', "has_a_name_for_paths"),
        ('metrics=("ipc",)', 'metrics=("speed",)', "hypothesis_quotes_what_was_measured"),
        ("base=context.base.iteration", "base=99", "passes_the_guards"),
        ("{value:.4g}", "high", "hypothesis_quotes_what_was_measured"),
        ("return None", "return proposal", "repair_differs_from_what_failed"),
        ("expected_gain=0.05", "expected_gain=5000.0", "passes_the_guards"),
    ],
)
def test_a_broken_promise_is_named(old: str, new: str, promise: str) -> None:
    """The check fails for each way of breaking the contract, and says which promise it was."""
    assert old in PLUGIN
    scope: dict[str, type] = {}
    exec(PLUGIN.replace(old, new), scope)  # noqa: S102 - text of this file
    with pytest.raises(AssertionError, match=f"^{promise}: "):
        check(lambda: scope["Hoister"]({}))


class Guest:
    """An ideator that does something it should not."""

    name = "guest"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def propose(self, context: Context) -> Proposal | None:
        """The answer, whatever it is."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """The same."""
        return self.propose(context)


@proves("own records")
@pytest.mark.parametrize(
    "answer", [ZeroDivisionError("oops"), {"tflops": 900}, "KEEP", UsageError("no"), 1.5]
)
def test_a_defect_of_a_guest_ends_in_order(tmp_path: Path, answer: object) -> None:
    """A plug-in that fails or answers nonsense costs the session its ideas, not its order."""
    bench = Bench(tmp_path, ScriptedIdeator([]))
    bench.ideator = Guest(answer)  # type: ignore[assignment]
    session = bench.run()
    bench.close()
    assert session.state.name == "DONE"
    assert session.round == 0


def test_what_is_recorded_can_be_replayed(tmp_path: Path) -> None:
    """Every kind of answer is written down around any ideator and played in the same order."""
    path = tmp_path / "recording.jsonl"
    context = make_context(round=1)
    rules = open_ideator("rules", {"record": {"path": path}}, Services())
    first = rules.propose(context)
    assert first is not None
    failure = make_failure(candidate_of(first, context))
    mended = rules.repair(context, first, failure)
    assert rules.name == "rules"
    for error in (BackendDown("no network"), BadReply("only prose")):
        guest = open_ideator("rules", {"record": {"path": path}}, Services())
        object.__setattr__(guest, "_ideator", Guest(error))
        with pytest.raises(type(error)):
            guest.propose(make_context(round=2))
    replayed = ReplayIdeator({"path": path})
    assert replayed.propose(context) == first
    assert replayed.repair(context, first, failure) == mended
    with pytest.raises(BackendDown, match="no network"):
        replayed.propose(context)
    with pytest.raises(BadReply, match="only prose"):
        replayed.propose(context)
    assert replayed.propose(context) is None


def test_a_resumed_replay_goes_on_at_its_round(tmp_path: Path) -> None:
    """Lines of refused answers do not shift a recording: the round of each line counts."""
    path = tmp_path / "recording.jsonl"
    recorder = open_ideator("rules", {"record": {"path": path}}, Services())
    tags = ("first", "second", "third")
    for number, tag in zip((1, 1, 2), tags, strict=True):
        given = recorder.propose(make_context(round=number))
        assert given is not None
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f'"tag": "{given.tag}"', f'"tag": "{tag}"'), encoding="utf-8")
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join((lines[0], '{"bad": "prose", "round": 1}', *lines[1:])))
    past = type("P", (), {"round": 1})()
    resumed = ReplayIdeator({"path": path}).propose(make_context(history=(past,)))
    assert resumed is not None
    assert resumed.tag == "third"
