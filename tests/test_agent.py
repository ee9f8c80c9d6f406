"""The ideator agent with real child processes: what it leaves counts, nothing that it says."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from ideator_contract import candidate_of, make_context, make_failure

from croq_fsm.config import Deadlines
from croq_fsm.domain.calls import CallOutcome
from croq_fsm.domain.ideas import Proposal
from croq_fsm.errors import (
    BackendBarred,
    BackendDown,
    BadReply,
    Drained,
    HarnessChanged,
    UsageError,
)
from croq_fsm.ideators import agent as agents
from croq_fsm.ideators.agent import COMMANDS, AgentIdeator
from croq_fsm.ideators.services import Services
from croq_fsm.toolchain.process import NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.toolchain.survivors import marked
from support.calls import MemoryLedger

IDEA = {
    "tag": "register_sum",
    "summary": "keep the sum in a register",
    "hypothesis": "ipc is 1.1, so most cycles wait",
    "metrics": ["ipc"],
    "category": "compute",
    "expected_gain": 0.1,
}
#: Parts of fake agents, in Python.
EDIT = (
    "k=open('kernel.c').read();"
    "open('kernel.c','w').write(k.replace('float sum','register float sum'));"
)
TELL = f"import json; json.dump({IDEA!r}, open('idea.json','w'));"

Made = Callable[..., AgentIdeator]


@pytest.fixture
def ledger() -> MemoryLedger:
    """Where the runs of a test are."""
    return MemoryLedger()


@pytest.fixture
def stop() -> threading.Event:
    """The daemon's wish to drain."""
    return threading.Event()


@pytest.fixture
def made(tmp_path: Path, ledger: MemoryLedger, stop: threading.Event) -> Made:
    """Makes an agent of a Python program."""

    def make(program: str, **settings: object) -> AgentIdeator:
        command = (sys.executable, "-c", program, "{prompt}")
        ideator = AgentIdeator({"command": command, "name": "fake", **settings})
        deadlines = Deadlines(kill_grace_s=0.2)
        runner = LocalRunner("agent-test", NullJournal(), stop, deadlines)
        ideator.equip(Services(ledger=ledger, runner=runner, folder=tmp_path / "work"))
        return ideator

    return make


def left(tmp_path: Path) -> list[Path]:
    """What lies in the folder of work files."""
    return list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("workspace", ["plain", "git"])
def test_an_edit_with_its_reasons_is_a_proposal(
    made: Made, ledger: MemoryLedger, tmp_path: Path, workspace: str
) -> None:
    """The changed kernel and idea.json become a proposal; nothing stays behind."""
    proposal = made(EDIT + TELL, workspace=workspace).propose(make_context())
    assert proposal is not None
    assert "register float sum" in candidate_of(proposal, make_context()).source
    assert (proposal.tag, proposal.metrics) == ("register_sum", ("ipc",))
    assert ledger.outcomes == [CallOutcome.OK]
    assert left(tmp_path) == []


def test_it_sees_the_task_and_no_standard_input(made: Made, tmp_path: Path) -> None:
    """The task description holds the profile and the rules; standard input is at its end."""
    seen = tmp_path / "seen"
    program = (
        "import sys,os; found=[f for f in sorted(os.listdir('.')) if f[:4]!='tmp-'];"
        f"open({str(seen)!r},'w').write(repr((sys.stdin.read(), sys.argv[1], found,"
        "open('TASK.md').read())));"
    )
    with pytest.raises(BadReply, match=r"without changing kernel\.c"):
        made(program).propose(make_context(hints=("larger tiles",)))
    text = seen.read_text(encoding="utf-8")
    assert text.startswith("('', 'Read TASK.md")
    assert "['TASK.md', 'kernel.c']" in text
    for word in ("ipc = 1.1", "larger tiles", "Rules in force"):
        assert word in text


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("pass", "without changing kernel.c"),
        ("print('done, 3x faster!')", "without changing kernel.c"),
        (TELL, "without changing kernel.c"),
        (EDIT, "wrote no idea.json"),
        (EDIT + "open('idea.json','w').write('It is faster.')", "no JSON object"),
        (EDIT + TELL + "import os; os.remove('kernel.c')", "is gone or no plain file"),
        (TELL + "import os; os.remove('kernel.c'); os.symlink('/etc/passwd','kernel.c')", "plain"),
        (TELL + "import os; os.remove('kernel.c'); os.mkfifo('kernel.c')", "no plain file"),
        (TELL + "open('kernel.c','wb').write(b'\\xff\\xfe')", "no UTF-8 text"),
        (TELL + "open('kernel.c','w').write('x'*2000000)", "exceeds 1048576 bytes"),
        (TELL + "open('kernel.c','w').write('')", "source is empty"),
        (TELL + "open('kernel.c','a').write('/*\\u202e*/int a;')", "bidirectional"),
        (EDIT + TELL.replace("'tag'", "'tflops': 900.0, 'tag'"), "field tflops is unknown"),
    ],
)
def test_what_it_leaves_must_be_an_edit(
    made: Made, ledger: MemoryLedger, tmp_path: Path, program: str, reason: str
) -> None:
    """Exit status 0 and words prove nothing; each bad result has its reason."""
    with pytest.raises(BadReply, match=reason):
        made(program).propose(make_context())
    assert ledger.outcomes == [CallOutcome.MALFORMED]
    assert left(tmp_path) == []


def test_what_is_no_kernel_is_refused_with_the_findings(made: Made) -> None:
    """The workbench's lints are told before anything is compiled."""
    context = make_context(lint=lambda _candidate: ["the source defines no function"])
    with pytest.raises(BadReply, match="the source defines no function"):
        made(EDIT + TELL).propose(context)


def test_one_that_sleeps_for_ever_is_killed_with_its_tree(
    made: Made, ledger: MemoryLedger, tmp_path: Path
) -> None:
    """At the deadline the agent dies, deaf as it is, and so does what it started."""
    program = (
        "import signal,subprocess,sys,time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen([sys.executable,'-c','import time; time.sleep(600)'],"
        "start_new_session=True); time.sleep(600)"
    )
    with pytest.raises(BackendDown, match="was killed"):
        made(EDIT + TELL + program, deadline_s=1.0).propose(make_context())
    assert ledger.outcomes == [CallOutcome.TIMEOUT]
    assert marked("CROQ_RUN_ID", "agent-test") == []
    assert left(tmp_path) == []


def test_a_stop_ends_it(made: Made, ledger: MemoryLedger, stop: threading.Event) -> None:
    """A daemon that drains does not wait for an agent."""
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(Drained):
        made("import time; time.sleep(600)").propose(make_context())
    assert ledger.outcomes == [CallOutcome.CANCELLED]


def test_a_failing_one_is_down_with_its_last_words(made: Made, ledger: MemoryLedger) -> None:
    """A status that is not 0 is a failure even when the kernel was changed; words are cleaned."""
    program = EDIT + TELL + "import sys; sys.exit('\\x1b[31mno credit\\x1b[0m')"
    with pytest.raises(BackendDown, match="exited 1: no credit"):
        made(program).propose(make_context())
    assert ledger.outcomes == [CallOutcome.SERVER]


def test_other_files_are_ignored_and_reported(made: Made, ledger: MemoryLedger) -> None:
    """A harness that it writes beside the kernel has no effect, and is told."""
    program = EDIT + TELL + "open('bench.c','w').write('int main(){}'); open('notes','w')"
    assert made(program).propose(make_context()) is not None
    end = ledger.ended[ledger.begun[0].id]
    assert "ignored what else it left: 'bench.c', 'notes'" in end.detail


def test_the_real_harness_is_watched(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that changes what measures it ends the session, now and at every later question."""
    harness = tmp_path / "measure"
    harness.mkdir()
    (harness / "bench.c").write_text("honest", encoding="utf-8")
    monkeypatch.setattr(agents, "HARNESS", harness)
    program = EDIT + TELL + f"open({str(harness / 'bench.c')!r},'w').write('forged')"
    ideator = made(program)
    for _ in range(2):
        with pytest.raises(HarnessChanged, match="changed files of the harness"):
            ideator.propose(make_context())


def test_only_named_variables_are_passed_on(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets of the daemon reach an agent only by name."""
    monkeypatch.setenv("MY_AGENT_KEY", "canary-1")
    monkeypatch.setenv("OTHER_API_KEY", "canary-2")
    seen = tmp_path / "seen"
    program = f"import os; open({str(seen)!r},'w').write(repr(dict(os.environ)))"
    with pytest.raises(BadReply):
        made(program, env=("MY_AGENT_KEY",)).propose(make_context())
    text = seen.read_text(encoding="utf-8")
    assert "canary-1" in text
    assert "canary-2" not in text


def test_a_repair_lends_the_ideas_words(made: Made) -> None:
    """A repair needs the kernel and an empty idea.json; the failure is in the task."""
    context = make_context()
    proposal = made(EDIT + TELL).propose(context)
    assert isinstance(proposal, Proposal)
    failure = make_failure(candidate_of(proposal, context), log="error: register is deprecated")
    program = (
        "assert 'register is deprecated' in open('TASK.md').read();"
        + EDIT.replace("register float", "volatile float")
        + "open('idea.json','w').write('{}')"
    )
    mended = made(program).repair(context, proposal, failure)
    assert mended is not None
    assert mended.summary == proposal.summary
    assert "volatile float sum" in candidate_of(mended, context).source


def test_it_may_give_up(made: Made) -> None:
    """An agent with no idea left says so."""
    program = "open('idea.json','w').write('{\"give_up\": \"nothing left\"}')"
    assert made(program).propose(make_context()) is None


def test_a_missing_program_bars_at_once(made: Made, tmp_path: Path) -> None:
    """An agent that is not installed is not tried again and again."""
    ideator = made("pass", command=("no-such-agent-anywhere", "{prompt}"))
    with pytest.raises(BackendBarred, match="cannot be started"):
        ideator.propose(make_context())
    assert left(tmp_path) == []


def test_runs_of_a_day_are_bounded(made: Made) -> None:
    """The number of runs is a budget."""
    ideator = made(EDIT + TELL, calls_per_day=1)
    assert ideator.propose(make_context()) is not None
    with pytest.raises(BackendBarred, match="calls_per_day is 1"):
        ideator.propose(make_context())


@pytest.mark.parametrize("name", COMMANDS)
def test_known_agents_are_given_the_prompt_as_one_argument(name: str) -> None:
    """Each known agent's command has exactly one word for the prompt."""
    ideator = AgentIdeator({"agent": name})
    assert ideator.name == name
    assert list(COMMANDS[name]).count("{prompt}") == 1


@pytest.mark.parametrize(
    "settings", [{}, {"agent": "skynet"}, {"command": ["x"], "env": ["A=secret"]}]
)
def test_bad_settings_are_usage_errors(settings: dict[str, object]) -> None:
    """What cannot be run is refused when it is loaded, without repeating values."""
    with pytest.raises(UsageError) as caught:
        AgentIdeator(settings)
    assert "secret" not in str(caught.value)
    assert json.dumps(settings) not in str(caught.value)
