"""``ncu-profile`` and ``profile-extract``: the engine's profile, at the place the caller names."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any, Final

from croq_fsm.daemon import Daemon
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import State
from croq_fsm.errors import EnvironmentMissing, UsageError
from croq_fsm.storage import files
from croq_fsm.storage.inspection import Inspector
from croq_fsm.tools.answers import Answer
from croq_fsm.tools.hand import Drive, Hand
from croq_fsm.tools.places import keyed, session_of

_EMPTY: Final = 2
_UNKNOWN: Final = 3


def ncu_profile(daemon: Daemon, out: str, command: str, launch_count: int | None) -> Answer:
    """Take the profile that the round begins with, or one of the candidate in hand.

    Raises:
        EnvironmentMissing: No profile can be taken; the session says why.
        UsageError: No session, or a binary that it did not build.
    """
    with daemon.repository.read() as reader:
        session = session_of(reader, keyed(command or None, out))
    warnings = [] if launch_count in (None, 1) else ["--launch-count is ignored: it is one"]
    if session.state is State.PROFILE:
        reached = Drive(daemon, Hand(session.task.model)).until(
            session, lambda s: s.state is State.IDEATE
        )
        if reached.state is State.FAILED:
            raise EnvironmentMissing(reached.reason)
        session = reached
    profile, text, name, recorded = _profile(daemon, session, Path(command).name)
    _leave(daemon.root.path, f"{out}.csv", text.encode())
    report = profile.files.get("ncu-rep")
    if report:
        workbench = daemon.workbench(session.task.dsl, daemon.config)
        _leave(daemon.root.path, f"{out}.ncu-rep", workbench.read(report))
    if command and name not in Path(command).name:
        warnings.append(f"--cmd {command} is not run: the base of this round is {name}")
    values = {
        **told(profile, name),
        "csv": f"{out}.csv",
        "ncu_rep": f"{out}.ncu-rep" if report else None,
        "round": session.work.round,
        "recorded": recorded,
    }
    return Answer(values, warnings=warnings)


def profile_extract(inspector: Inspector, path: Path, name: str) -> Answer:
    """The class of a profile that the engine took. Exit code 2: no such file; 3: not the engine's.

    Raises:
        UsageError: The file is of no session.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text.strip():
        return Answer({"status": "empty", "csv": str(path)}, code=_EMPTY)
    session = session_of(inspector, keyed(str(path)))
    for taken in reversed(inspector.profiles(session.id)):
        stored = inspector.last_profile(session.id, taken.round)
        if stored is not None and text in (stored[1], table(stored[0])):
            iteration = inspector.iteration(session.id, stored[2])
            answer = Answer(told(stored[0], iteration.name, csv_path=str(path)))
            if name and not iteration.name.startswith(name.partition("_")[0]):
                answer.warnings.append(f"--iter {name} is ignored: this is of {iteration.name}")
            return answer
    values = {
        "status": "unknown",
        "csv": str(path),
        "message": "no profile of the engine's is this",
    }
    return Answer(values, code=_UNKNOWN)


def told(profile: Profile, name: str, csv_path: str = "") -> dict[str, Any]:
    """A profile as the tools print it; a counter that was not read is absent."""
    values: dict[str, Any] = {
        "iter": name,
        "bottleneck": str(profile.bottleneck),
        "confidence": profile.confidence,
        "evidence": {
            "why": list(profile.evidence),
            "key_metrics": {m.name: m.value for m in profile.metrics},
        },
        "tool": profile.tool,
        "degraded": profile.degraded,
    }
    if csv_path:
        values["evidence"]["ncu_csv"] = csv_path
    return values


def table(profile: Profile) -> str:
    """Metrics of a profiler that leaves no file of its own; the same text that STORE publishes."""
    stream = io.StringIO()
    rows = csv.writer(stream, lineterminator="\n")
    rows.writerow(("metric", "value", "unit"))
    rows.writerow(("tool", profile.tool, ""))
    rows.writerow(("bottleneck", str(profile.bottleneck), profile.confidence))
    rows.writerows((m.name, m.value, m.unit) for m in profile.metrics)
    return stream.getvalue()


def _profile(daemon: Daemon, session: Session, binary: str) -> tuple[Profile, str, str, bool]:
    """Profile, its table, what it is of, and whether the round rests on it."""
    work = session.work
    planned = work.idea.name if work.idea else ""
    if planned and binary.startswith(planned) and work.build is not None:
        workbench = daemon.workbench(session.task.dsl, daemon.config)
        with daemon.lease(workbench):
            fresh = workbench.profile(work.build, session.task, full=False)
        path = fresh.files.get("csv")
        text = workbench.read(path).decode(errors="replace") if path else table(fresh)
        return fresh, text, planned, False
    with daemon.repository.read() as reader:
        taken = reader.last_profile(session.id, work.round)
        if taken is None:
            raise UsageError(f"session {session.id} is at {session.state} and has no profile yet")
        name = reader.iteration(session.id, taken[2]).name
    return taken[0], taken[1] or table(taken[0]), name, True


def _leave(root: Path, path: str, data: bytes) -> None:
    try:
        relative = Path(path).resolve().relative_to(root)
    except ValueError as exc:
        raise UsageError(f"--out {path} is outside of {root}") from exc
    files.write(root, str(relative), data)
