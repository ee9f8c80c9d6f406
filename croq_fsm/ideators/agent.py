"""Proposals of command-line coding agents, or of any command that edits a file.

The agent gets a folder of its own with a copy of the kernel and a task description, nothing on
standard input, and a deadline. What counts is what lies in the folder afterwards: the kernel,
changed, and the reasons in ``idea.json``. Its exit status proves nothing, its words are not
read, and whatever else it changed there is ignored and reported.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import structlog
from pydantic import ConfigDict, Field, ValidationError

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.calls import CallBegun, CallEnded, CallOutcome
from croq_fsm.domain.ideas import Proposal, WholeSource
from croq_fsm.domain.model import Value
from croq_fsm.domain.names import slug
from croq_fsm.domain.source import sha256
from croq_fsm.errors import (
    BackendBarred,
    BackendDown,
    BadReply,
    EnvironmentMissing,
    HarnessChanged,
    UsageError,
)
from croq_fsm.ideators import pack, quoting, reply
from croq_fsm.ideators.contract import Context, Failure
from croq_fsm.ideators.services import Services
from croq_fsm.toolchain.process import Command, Completed, Ending, Runner

_log = structlog.get_logger(__name__)

#: Known agents: argument vectors; ``{prompt}`` and ``{kernel}`` are filled in.
COMMANDS: Final = {
    "claude": ("claude", "-p", "{prompt}", "--permission-mode", "acceptEdits"),
    "codex": ("codex", "exec", "--skip-git-repo-check", "-s", "workspace-write", "{prompt}"),
    "cursor": ("cursor-agent", "-p", "--force", "{prompt}"),
    "opencode": ("opencode", "run", "{prompt}"),
}
#: Variables that each of them may need; passed on when they are set.
VARIABLES: Final = {
    "claude": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "codex": ("OPENAI_API_KEY", "CODEX_HOME"),
    "cursor": ("CURSOR_API_KEY",),
    "opencode": ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"),
}
#: The harness that measures what agents write; none of it is theirs to change.
HARNESS: Final = Path(__file__).resolve().parent.parent / "measure"

_TASK_FILE: Final = "TASK.md"
_IDEA_FILE: Final = "idea.json"
_LARGEST: Final = 1 << 20
_OUTPUT_CAP: Final = 64 << 10
_FLOOD_CAP: Final = 64 << 20
_MOST_NAMED: Final = 10
_DAY_S: Final = 86400.0
_PROMPT: Final = (
    f"Read {_TASK_FILE} in the current folder and do what it says. Edit only {{kernel}} and write "
    f"{_IDEA_FILE}. Work in this folder only; ask nothing."
)
_TASK: Final = f"""\
# Improve one compute kernel by one idea

Edit `{{kernel}}` in this folder so that it computes the same faster. Make exactly one testable \
change that answers to the measured bottleneck, then write `{_IDEA_FILE}`: one JSON object with

- tag: short name, lower case letters, digits and underscores
- summary: what changes, in words
- hypothesis: why it should help; mention each metric by its exact name with what its value tells
- metrics: list of the names of those metrics
- category: tiling, pipeline, memory, compute or misc
- expected_gain: a fraction such as 0.05
- levers: list of names of what is turned
- flags: complete list of extra compiler flags, only when they shall differ
- research_basis: what outside this text the idea rests on; needed when the rules ask for it
- give_up: a reason, and nothing else, when there is nothing left to try

Do not build, run or measure; the engine does that. Change no other file. {quoting.NOTICE}

{{pack}}
"""


class AgentSettings(Value):
    """Section ``[ideators.agent]`` of the configuration.

    Attributes:
        agent: A known one, or ``""`` for ``command``.
        command: Argument vector with ``{prompt}`` and ``{kernel}``; never given to a shell.
        name: Name under which its ideas are recorded; default: the program's.
        env: Names of variables to pass on beside those that every child gets.
        workspace: ``git``: the folder is a repository of its own with one commit.
        deadline_s: Seconds after which the agent and all that it started are killed; never
            more than ``deadlines.ideator_s``.
        context_tokens: Room for the context pack.
        calls_per_day: Most calls of agents and models of all sessions of this root in 24
            hours; 0: no bound.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    agent: Literal["", "claude", "codex", "cursor", "opencode"] = ""
    command: tuple[str, ...] = ()
    name: Annotated[str, Field(pattern=r"^([a-z][a-z0-9.-]*)?$")] = ""
    env: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    workspace: Literal["plain", "git"] = "plain"
    deadline_s: Annotated[float, Field(gt=0)] = 300.0
    context_tokens: Annotated[int, Field(ge=500)] = 24_000
    calls_per_day: Annotated[int, Field(ge=0)] = 200

    @property
    def argv(self) -> tuple[str, ...]:
        """The argument vector."""
        return self.command or COMMANDS.get(self.agent, ())

    @property
    def label(self) -> str:
        """Name under which ideas are recorded."""
        return self.name or slug(self.agent or Path(self.argv[0]).stem)

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of variables that are passed on."""
        return (*VARIABLES.get(self.agent, ()), *self.env)


class AgentIdeator:
    """Lets a command edit a copy of the kernel.

    Args:
        settings: See :class:`AgentSettings`.

    Raises:
        UsageError: The settings are bad.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        try:
            self._settings = AgentSettings.model_validate(settings)
        except ValidationError as exc:
            told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors())
            raise UsageError(f"bad settings in [ideators.agent]: {told}") from None
        if not self._settings.argv:
            raise UsageError(
                "[ideators.agent] needs agent (claude, codex, cursor, opencode) or command"
            )
        self._services = Services()
        self._changed = ""

    @property
    def name(self) -> str:
        """``<model>`` of the file layout."""
        return self._settings.label

    def equip(self, services: Services) -> None:
        """Take the runner, the folder for work files, the ledger and the deadline."""
        self._services = services

    def propose(self, context: Context) -> Proposal | None:
        """What the agent made of the kernel, or None when it gives up.

        Raises:
            BackendDown: It did not end well or in time. BackendBarred: it is not there.
            BadReply: It ended, and what it left is no proposal.
            HarnessChanged: It changed what measures it.
        """
        text = pack.proposal_pack(context, self._settings.context_tokens)
        return self._run("propose", context, text, None)

    def repair(self, context: Context, proposal: Proposal, failure: Failure) -> Proposal | None:
        """Another way to realise the idea; raises like :meth:`propose`."""
        text = pack.repair_pack(context, failure, proposal.summary, self._settings.context_tokens)
        return self._run("repair", context, text, proposal)

    def _run(
        self, purpose: str, context: Context, text: str, of: Proposal | None
    ) -> Proposal | None:
        runner, work = self._services.runner, self._services.folder
        if runner is None or work is None:
            raise BackendBarred("an agent needs a daemon that runs it")
        if self._changed:
            raise HarnessChanged(self._changed)
        self._check_budget()
        with _workspace(work) as folder:
            task = _TASK.format(kernel=pack.kernel_name(context), pack=text)
            self._fill(folder, context, task, runner)
            with self._recorded(purpose, context, task) as told:
                before = _fingerprints(HARNESS)
                completed = self._started(runner, folder, context)
                told.append(_told_of(folder, context))
                self._check_harness(before)
                _check_ending(completed, self.name)
                return _proposal(folder, context, of)

    def _check_harness(self, before: dict[str, str]) -> None:
        if _fingerprints(HARNESS) == before:
            return
        self._changed = (
            f"{self.name} changed files of the harness below {HARNESS}; nothing that is measured "
            "with them counts. Install croq_fsm anew"
        )
        raise HarnessChanged(self._changed)

    def _check_budget(self) -> None:
        limit = self._settings.calls_per_day
        spent = self._services.ledger.spent(since=self._services.now() - _DAY_S)
        if limit and spent.calls >= limit:
            raise BackendBarred(f"{spent.calls} calls in 24 hours; calls_per_day is {limit}")

    def _fill(self, folder: Path, context: Context, task: str, runner: Runner) -> None:
        (folder / pack.kernel_name(context)).write_text(
            context.base.candidate.source, encoding="utf-8", newline=""
        )
        (folder / _TASK_FILE).write_text(task, encoding="utf-8")
        if self._settings.workspace == "git":
            identity = ("-c", "user.name=croq_fsm", "-c", "user.email=croq-fsm@localhost")
            for argv in (
                ("git", "init", "-q"),
                ("git", "add", "-A"),
                ("git", *identity, "commit", "-q", "-m", "The kernel as it is"),
            ):
                runner.run(Command(argv=argv, cwd=folder, deadline_s=30.0, label="git"))

    def _started(self, runner: Runner, folder: Path, context: Context) -> Completed:
        kernel = pack.kernel_name(context)
        prompt = _PROMPT.format(kernel=kernel)
        values = {"{prompt}": prompt, "{kernel}": kernel}
        argv = tuple(_filled(word, values) for word in self._settings.argv)
        passed = {n: os.environ[n] for n in self._settings.variables if n in os.environ}
        command = Command(
            argv=argv,
            cwd=folder,
            deadline_s=min(self._settings.deadline_s, self._services.deadline_s),
            label="agent",
            env=passed,
            output_cap=_OUTPUT_CAP,
            flood_cap=_FLOOD_CAP,
        )
        try:
            return runner.run(command)
        except EnvironmentMissing as exc:
            raise BackendBarred(f"the agent cannot be started: {exc}") from exc

    @contextmanager
    def _recorded(self, purpose: str, context: Context, task: str) -> Iterator[list[str]]:
        """The record of one run; what the list holds at the end is told with it."""
        call = CallBegun(
            id=uuid.uuid4().hex,
            ideator=self.name,
            provider=Path(self._settings.argv[0]).name,
            model="",
            purpose=purpose,
            round=context.round,
            prompt_sha256=sha256(task),
        )
        self._services.ledger.begin(call)
        began, told = time.monotonic(), list[str]()
        outcome, why = CallOutcome.CANCELLED, ""
        try:
            yield told
            outcome = CallOutcome.OK
        except BadReply as exc:
            outcome, why = CallOutcome.MALFORMED, str(exc)
            raise
        except BackendDown as exc:
            late = isinstance(exc, _Late)
            outcome, why = (CallOutcome.TIMEOUT if late else CallOutcome.SERVER), str(exc)
            raise
        finally:
            detail = "; ".join(filter(None, (why, *told)))
            seconds = time.monotonic() - began
            self._services.ledger.end(call.id, CallEnded(outcome, latency_s=seconds, detail=detail))


class _Late(BackendDown):
    """The agent had to be killed."""


@contextmanager
def _workspace(work: Path) -> Iterator[Path]:
    """A folder of its own, gone afterwards."""
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Named so that the next start clears it away when this one is killed.
    folder = Path(tempfile.mkdtemp(prefix="agent-", dir=work))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _fingerprints(folder: Path) -> dict[str, str]:
    """Content of the harness's own sources."""
    return {
        str(path.relative_to(folder)): sha256(path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix not in (".pyc", ".tmp")
    }


def _told_of(folder: Path, context: Context) -> str:
    """What else lies in the folder; it is ignored, and somebody should know."""
    expected = {pack.kernel_name(context), _TASK_FILE, _IDEA_FILE, ".git"}
    others = sorted(p.name for p in folder.iterdir() if p.name not in expected)
    if not others:
        return ""
    named = ", ".join(repr(name)[:60] for name in others[:_MOST_NAMED])
    _log.warning("an agent left files that nobody asked for; they are ignored", files=named)
    return f"ignored what else it left: {named}"


def _check_ending(completed: Completed, name: str) -> None:
    if completed.ending is Ending.DEADLINE:
        raise _Late(f"{name} did not end within {completed.seconds:.0f} s and was killed")
    if completed.ending is not Ending.EXITED or completed.returncode != 0:
        said = quoting.clean(completed.stderr or completed.stdout).strip()[-300:]
        raise BackendDown(f"{name} {completed.ending.value} {completed.returncode}: {said}")


def _proposal(folder: Path, context: Context, of: Proposal | None) -> Proposal | None:
    """The changed kernel with the reasons that lie beside it; None when it gives up."""
    kernel, base = pack.kernel_name(context), context.base
    source, idea = _text_of(folder / kernel), _text_of(folder / _IDEA_FILE)
    if source is None:
        raise BadReply(f"{kernel} is gone or no plain file; edit it in place")
    if idea is None and source == base.candidate.source:
        raise BadReply(f"it ended without changing {kernel}; edit that file")
    if idea is None:
        raise BadReply(f"it changed {kernel} and wrote no {_IDEA_FILE}; give the reasons there")
    found = reply.read(idea, context, of=of)
    if found is None:
        return None
    if source == base.candidate.source and found.flags == base.candidate.flags:
        raise BadReply(f"it ended without changing {kernel}; edit that file")
    return _checked(source, found, context)


def _checked(source: str, found: Proposal, context: Context) -> Proposal:
    """The proposal with the edited kernel; the workbench must see a kernel in it."""
    kernel, base = pack.kernel_name(context), context.base
    values = found.model_dump() | {"edit": WholeSource(source=source), "base": base.iteration}
    try:
        proposal = Proposal.model_validate(values)
    except ValidationError as exc:
        raise BadReply(f"{kernel}: {exc.errors()[0]['msg']}") from exc
    reply.check_fits(proposal, base)
    candidate = Candidate(source=source, flags=found.flags, patches=found.patches)
    problems = context.lint(candidate)
    if problems:
        raise BadReply(f"{kernel} is no kernel: {'; '.join(problems)[:1000]}")
    return proposal


def _text_of(path: Path) -> str | None:
    """Text of a plain file; None when there is none.

    Raises:
        BadReply: It is too large or no text.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = stream.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise BadReply(f"{path.name} exceeds {_LARGEST} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise BadReply(f"{path.name} is no UTF-8 text") from exc
