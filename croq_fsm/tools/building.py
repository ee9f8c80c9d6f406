"""``co2cu`` and ``build-iter``: a source that was written by hand becomes the candidate in hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from croq_fsm.daemon import Daemon
from croq_fsm.domain import guards
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.ideas import Proposal, Replace
from croq_fsm.domain.session import Session
from croq_fsm.domain.source import sha256
from croq_fsm.domain.states import State
from croq_fsm.domain.task import SUFFIXES
from croq_fsm.errors import CandidateError, UsageError
from croq_fsm.storage import files
from croq_fsm.tools import plans
from croq_fsm.tools.answers import Answer
from croq_fsm.tools.hand import AttemptFailed, Drive, Hand
from croq_fsm.tools.places import keyed, session_of

_BUILT: Final = frozenset({State.MEASURE, State.DECIDE, State.STORE})
_FAILED: Final = 1
_LOG_SHOWN: Final = 2000


@dataclass(frozen=True)
class Sources:
    """What ``build-iter`` was given.

    Attributes:
        given: The source named; for ``croqtile`` the generated one may be.
        out: Where the caller expects the binary; says which session it is.
        flags: Compiler flags, or None for those of the last translation.
    """

    given: Path
    out: str | None
    flags: str | None

    def kernel(self, suffix: str) -> Path:
        """The source in the DSL: the one named, or the one beside it."""
        return self.given if self.given.suffix == suffix else self.given.with_suffix(suffix)


def co2cu(daemon: Daemon, path: Path, arch: str, flags: str | None) -> Answer:
    """Translate a Choreo kernel and leave the generated source beside it.

    Raises:
        UsageError: The file is of no session, or its DSL has no generated source.
    """
    with daemon.repository.read() as reader:
        session = session_of(reader, keyed(str(path)))
    workbench = daemon.workbench(session.task.dsl, daemon.config)
    if workbench.generated_suffix != ".cu":
        raise UsageError(f"DSL {session.task.dsl} generates no .cu; 'tool build-iter' builds it")
    candidate = Candidate(source=_text(path), flags=tuple((flags or "").split()))
    own = daemon.config.croqtile.arch
    warnings = [] if arch.replace("sm90", "sm_90") == own else [
        f"--arch {arch} is ignored: the configuration has {own}"
    ]  # fmt: skip
    try:
        build = workbench.build(candidate, session.task)
    except CandidateError as exc:
        return Answer({"co": str(path), "status": "failed", "message": str(exc),
                       "log": exc.log[-_LOG_SHOWN:]}, code=2, warnings=warnings)  # fmt: skip
    target = path.with_suffix(".cu")
    _leave(daemon, target, workbench.read(build.generated))
    kept = json.dumps({"source": sha256(candidate.source), "flags": list(candidate.flags)})
    plans.keep(daemon.repository, session, plans.FLAGS, kept, int(daemon.clock.now() * 1e6))
    values = {
        "co": str(path),
        "cu": str(target),
        "result": build.generated,
        "commands": list(build.commands),
        "compilers": build.compilers,
        "status": "ready",
    }
    return Answer(values, warnings=warnings)


def build_iter(daemon: Daemon, sources: Sources) -> Answer:
    """Take the source as the planned idea, or as its repair, and build it.

    Exit code 1: guards refuse it, or it does not compile; both can be mended and built again.

    Raises:
        UsageError: There is no plan, or the session is elsewhere.
    """
    with daemon.repository.read() as reader:
        session = session_of(reader, keyed(sources.out, str(sources.given)))
    plan = plans.open_plan(daemon.repository, session)
    if plan is None:
        raise UsageError("no idea is planned in this round; call 'tool checkpoint write' first")
    source, flags, patches = _candidate(daemon, session, sources)
    with daemon.repository.read() as reader:
        base = reader.iteration(session.id, plan.base).candidate
    proposal = plan.proposal(source, flags, patches, base.source if base else "")
    drive = _drive(daemon, session, proposal)
    # A repair begins where a build has already been: what was there before does not count.
    after = session.seq + 1 if drive.repairing else 0
    try:
        session = drive.until(session, lambda s: s.seq >= after and s.state in _BUILT)
    except AttemptFailed as exc:
        return _attempt_failed(session, exc)
    return _told(session, sources)


def _candidate(
    daemon: Daemon, session: Session, sources: Sources
) -> tuple[str, tuple[str, ...], tuple[Replace, ...]]:
    suffix = SUFFIXES[session.task.dsl]
    source = _text(sources.kernel(suffix))
    kept = plans.kept_flags(daemon.repository, session, sha256(source))
    flags = kept if sources.flags is None else tuple(sources.flags.split())
    if sources.given.suffix == suffix:
        return source, flags, ()
    workbench = daemon.workbench(session.task.dsl, daemon.config)
    build = workbench.build(Candidate(source=source, flags=flags), session.task)
    generated = workbench.read(build.generated).decode()
    return source, flags, plans.patches_between(generated, _text(sources.given))


def _drive(daemon: Daemon, session: Session, proposal: Proposal) -> Drive:
    """A first try, a repair of what failed, or the same again.

    Raises:
        UsageError: The session is at a step that takes no source.
    """
    hand = Hand(session.task.model)
    if session.state is State.IDEATE:
        hand.proposal = proposal
        return Drive(daemon, hand)
    if session.state not in (State.IMPLEMENT, State.MEASURE) or session.work.candidate is None:
        raise UsageError(f"session {session.id} is at {session.state}; store this round first")
    source = proposal.edit.source if proposal.edit.kind == "whole_source" else ""
    candidate = Candidate(source=source, flags=proposal.flags, patches=proposal.patches)
    if guards.identity(candidate) == guards.identity(session.work.candidate):
        return Drive(daemon, hand)
    hand.mended = proposal
    return Drive(daemon, hand, repairing=session.state is State.MEASURE)


def _leave(daemon: Daemon, target: Path, data: bytes) -> None:
    """A file of the user's repository, whole or not at all."""
    try:
        relative = target.resolve().relative_to(daemon.root.path)
    except ValueError as exc:
        raise UsageError(f"{target} is outside of {daemon.root.path}") from exc
    files.write(daemon.root.path, str(relative), data)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"source {path} cannot be read: {exc}") from exc


def _attempt_failed(session: Session, exc: AttemptFailed) -> Answer:
    attempt = exc.attempt
    values = {
        "status": "attempt_failed",
        "attempt": attempt.number,
        "kind": attempt.kind.name,
        "message": attempt.message,
        "log": exc.log,
        "session": session.id,
    }
    return Answer(values, code=_FAILED, note="mend the source and build again, or store the round")


def _told(session: Session, sources: Sources) -> Answer:
    work = session.work
    values: dict[str, Any] = {
        "status": "built",
        "session": session.id,
        "state": session.state.name,
        "iter": work.idea.name if work.idea else None,
        "out": sources.out,
    }
    if session.state is not State.MEASURE or work.build is None:
        reason = work.verdict.reason if work.verdict else session.reason
        return Answer({**values, "status": "given_up", "message": reason}, code=_FAILED)
    build = work.build
    values |= {
        "binary_sha256": build.binary_sha256,
        "commands": list(build.commands),
        "remarks": list(build.remarks[:10]),
        "resources": build.resources,
        "cached": build.cached,
    }
    return Answer(values)
