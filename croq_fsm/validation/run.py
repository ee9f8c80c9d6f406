"""The whole audit: the rows of each session in one read transaction, then files and git."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from croq_fsm.domain.states import Status
from croq_fsm.errors import CroqError, DatabaseDamaged, UsageError
from croq_fsm.root import Root, is_locked
from croq_fsm.storage import auditing, expected, rebuild, setting_aside
from croq_fsm.storage.auditing import UNREADABLE, Auditor, Stand
from croq_fsm.storage.expected import Expected
from croq_fsm.storage.setting_aside import SET_ASIDE, Cleaned
from croq_fsm.validation import (
    chain,
    commits,
    disk,
    effects,
    evidence,
    novelty,
    numbering,
    record,
    sources,
    sums,
    world,
)
from croq_fsm.validation.problems import Problem, Report
from croq_fsm.validation.record import Record

#: Looks at files that a running daemon may be writing at this moment.
_LOOKS: Final = 3
_PAUSE_S: Final = 0.5
_CURE_DANGLING: Final = "restore a backup from <state>/backups"

Trailers = Callable[[str], dict[str, str]]


@dataclass
class _Audit:
    """What one reading of the database gave.

    Attributes:
        problems: Findings so far.
        files: What has to lie on the disk, of all sessions.
        dsls: DSL by session.
        seqs: Where each session stood.
        pending: Paths that open promises will still write.
        cleaned: What ``clean`` did.
        set_aside: Sessions that ``clean`` found broken and put out of use.
        wanted: Sessions that were asked for.
        simulated: Those of them that are simulated.
    """

    problems: list[Problem] = field(default_factory=list)
    files: list[Expected] = field(default_factory=list)
    dsls: dict[str, str] = field(default_factory=dict)
    seqs: dict[str, int] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    cleaned: Cleaned = field(default_factory=Cleaned)
    set_aside: set[str] = field(default_factory=set)
    wanted: list[str] = field(default_factory=list)
    simulated: list[str] = field(default_factory=list)


def validate(
    root: Root,
    session: str | None = None,
    dsl: str | None = None,
    trailers: Trailers | None = None,
    *,
    alone: bool = False,
) -> Report:
    """_Audit a root, or one session of it.

    Args:
        root: The root.
        session: Id of a session, or a unique beginning of one; None means all.
        dsl: Only sessions of this DSL; None means all.
        trailers: Commits of a session by trailer; None asks git.
        alone: Whether the caller holds the root's lock.

    Raises:
        UsageError: No such session.
        ForeignSchema, DatabaseDamaged: The database cannot be audited.
    """
    asked = trailers or commits.reader(root)

    def running() -> bool:
        return not alone and is_locked(root)

    try:
        audit, on_disk = _look(root, session, dsl, (asked, running()))
    except auditing.NothingYet:
        if session is not None:
            raise
        found = disk.orphans(root.path, (), dsl)
        return Report(root=str(root.path), sessions=(), problems=tuple(found))
    for _ in range(_LOOKS - 1):
        if not running() or all(p.severity == "warning" for p in on_disk):
            break
        time.sleep(_PAUSE_S)
        audit, on_disk = _look(root, session, dsl, (asked, running()))
    if running() and _moved(root, audit):
        why = "a daemon was writing while it was read; look again later"
        on_disk = [p.as_warning(why) for p in on_disk]
    problems = [_tamed(p, audit.set_aside) for p in (*audit.problems, *on_disk)]
    return Report(
        root=str(root.path),
        sessions=tuple(audit.wanted),
        simulated=tuple(audit.simulated),
        problems=tuple(problems),
    )


def _look(
    root: Root, session: str | None, dsl: str | None, means: tuple[Trailers, bool]
) -> tuple[_Audit, list[Problem]]:
    """Read the database, then the disk."""
    audit = _read(root, session, dsl, means)
    return audit, list(_disk(root, audit, dsl if session is None else "-"))


def _read(root: Root, session: str | None, dsl: str | None, means: tuple[Trailers, bool]) -> _Audit:
    audit = _Audit()
    with auditing.opened(root.database) as auditor:
        damage = auditor.damage()
        if damage:
            raise DatabaseDamaged(
                f"{root.database} fails its integrity check: {damage[0]}; copy a backup from "
                f"{root.state / 'backups'} to its place"
            )
        for text in auditor.dangling():
            audit.problems.append(
                Problem(kind="dangling-row", where="database", text=text, cure=_CURE_DANGLING)
            )
        audit.cleaned = setting_aside.cleaned(auditor)
        ended = {s.id for s in auditor.stands() if s.status == Status.ENDED.name}
        audit.set_aside = set(audit.cleaned.broken & ended)
        chosen = None if session is None else _chosen(auditor, session)
        for stand in auditor.stands():
            _session(auditor, audit, stand, (root, chosen, dsl, *means))
    return audit


def _chosen(auditor: Auditor, session: str) -> str:
    """The one session whose id begins so, damaged or not."""
    ids = [s.id for s in auditor.stands() if s.id.startswith(session)]
    if session in ids:
        return session
    if len(ids) != 1:
        raise UsageError(
            f"{session!r} names {len(ids)} sessions, must be one; 'croq-fsm status' lists them"
        )
    return ids[0]


def _session(
    auditor: Auditor,
    audit: _Audit,
    stand: Stand,
    means: tuple[Root, str | None, str | None, Trailers, bool],
) -> None:
    """_Audit one session, or only learn which files it owns."""
    root, chosen, dsl, trailers, running = means
    wanted = chosen in (None, stand.id) and dsl in (None, stand.dsl)
    if wanted:
        audit.wanted.append(stand.id)
    try:
        loaded = record.load(auditor, stand.id)
        rebuilt = rebuild.rebuild(auditor, loaded.session, loaded.layout)
        audit.files += expected.of_session(auditor, loaded.session)
    except UNREADABLE as exc:
        if wanted:
            audit.problems.append(_unreadable(stand.id, exc, stand.dsl))
        return
    audit.dsls[stand.id], audit.seqs[stand.id] = stand.dsl, stand.seq
    audit.pending |= {path for i in loaded.intents for path in i.paths}
    if not wanted:
        return
    audit.simulated += [stand.id] if loaded.session.task.simulated else []
    audit.problems += _rows(loaded, rebuilt, root)
    if not running and not _given_up(loaded):
        audit.problems += effects.open_promises(loaded)
    audit.problems += _guarded(lambda: effects.commits(loaded, trailers), loaded)


def _rows(loaded: Record, rebuilt: rebuild.Rebuilt, root: Root) -> Iterator[Problem]:
    """All checks of rows; one that stumbles over a row reports it and lets the others go on."""
    for check in (
        lambda: chain.check(loaded),
        lambda: numbering.check(loaded),
        lambda: sums.check(loaded, rebuilt),
        lambda: evidence.check(loaded),
        lambda: novelty.check(loaded),
        lambda: sources.check(loaded, root.path),
        lambda: world.check(loaded),
    ):
        yield from _guarded(check, loaded)


def _guarded(check: Callable[[], Iterator[Problem]], loaded: Record) -> Iterator[Problem]:
    try:
        yield from check()
    except UNREADABLE as exc:
        yield _unreadable(loaded.session.id, exc, loaded.session.task.dsl)
    except CroqError as exc:
        yield loaded.problem(
            "git-unreadable", "git", str(exc), cure="mend the repository: git fsck"
        )


def _unreadable(session_id: str, exc: Exception, dsl: str) -> Problem:
    return Problem(
        kind="unreadable-row",
        dsl=dsl,
        session=session_id,
        where=f"session {session_id}",
        text=f"a row cannot be read: {type(exc).__name__}: {str(exc).splitlines()[0]}",
        cure=record.CURE_ROWS,
    )


def _given_up(loaded: Record) -> bool:
    """Whether the user put the session out of use; nobody waits for its effects."""
    return bool(loaded.transitions) and loaded.transitions[-1]["outcome"] == SET_ASIDE


def _disk(root: Root, audit: _Audit, orphans_of: str | None) -> Iterator[Problem]:
    """Files of the sessions that were asked for, as far as no other session owns them now.

    Args:
        root: The root.
        audit: What the database says.
        orphans_of: DSL whose ownerless checkpoints are reported; None means all, "-" none.
    """
    owned = expected.owned(audit.files)
    wanted = [f for f in owned.values() if f.session_id in audit.wanted]
    excused = audit.cleaned.excused(audit.seqs)
    for problem in disk.check(root.path, wanted, audit.dsls, excused):
        pending = problem.path in audit.pending
        yield problem.as_warning("it is promised and not written yet") if pending else problem
    if orphans_of != "-":
        yield from disk.orphans(root.path, owned.keys() | audit.pending, orphans_of)


def _moved(root: Root, audit: _Audit) -> bool:
    """Whether a session went on since its rows were read, or is about to write."""
    if audit.pending:
        return True
    with auditing.opened(root.database) as auditor:
        return any(auditor.session(i).seq != seq for i, seq in audit.seqs.items())


def _tamed(problem: Problem, set_aside: set[str]) -> Problem:
    """A broken session that was set aside harms nobody any more."""
    if problem.session in set_aside and problem.severity == "problem":
        return problem.as_warning("the session was set aside by 'croq-fsm clean'")
    return problem
