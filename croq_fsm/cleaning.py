"""Clearing work state away: into the trash, with a manifest, and back again.

Nothing is deleted and no history is touched. What ``clean`` does to a session is to end it
with a reason, by a transition of its own, and to move its files out of the way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from sqlalchemy import Engine

from croq_fsm.domain.states import Status
from croq_fsm.root import Root, RootLock
from croq_fsm.storage import auditing, expected, migrate, setting_aside, trash
from croq_fsm.storage.auditing import UNREADABLE, Auditor, Stand
from croq_fsm.storage.engine import translated, writer
from croq_fsm.storage.setting_aside import Aside
from croq_fsm.validation import Problem, validate
from croq_fsm.validation.disk import symlink_on_the_way

#: Temporary files of durable writes, as ``files.write`` names them.
_TEMPORARY: Final = re.compile(r"^\..+\.\d+\.tmp$")


@dataclass(frozen=True)
class Plan:
    """What a cleaning would do.

    Attributes:
        sessions: Sessions that are touched, with the files that go with each.
        loose: Files that no session owns.
    """

    sessions: tuple[Aside, ...] = ()
    loose: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that are moved, each once."""
        named = [path for aside in self.sessions for path in aside.paths]
        return tuple(dict.fromkeys([*named, *self.loose]))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.sessions and not self.loose


@dataclass(frozen=True)
class Undone:
    """What bringing a cleaning back came to.

    Attributes:
        stamp: The cleaning.
        back: Paths that are where they were.
        kept: Paths that stay in the trash, because something new lies in their place.
        sessions: Sessions that are as they were.
    """

    stamp: str
    back: tuple[str, ...]
    kept: tuple[str, ...]
    sessions: tuple[str, ...]


@dataclass
class Cleaner:
    """Works under the root's lock; use it through ``opened``.

    Attributes:
        root: The root.
        engine: The writing engine; None when there is no database.
    """

    root: Root
    engine: Engine | None = None

    def plan_active(self, dsl: str | None) -> Plan:
        """Sessions that have not ended: set aside, and the files that one resumes from."""
        return self._plan(dsl, lambda s: s.status != Status.ENDED.name, everything=False)

    def plan_all(self, dsl: str | None) -> Plan:
        """All sessions: those that have not ended are set aside, and all their files move."""
        return self._plan(dsl, lambda _stand: True, everything=True)

    def plan_invalid(self, dsl: str | None) -> Plan:
        """Sessions that ``validate`` finds broken, and files that no session owns."""
        broken = validate(self.root, dsl=dsl, alone=True).broken
        asides = []
        if broken:
            owned, stands = self._owned(), self._stands(dsl)
            asides = [
                self._broken(stand, owned.get(stand.id, ()), broken[stand.id])
                for stand in stands
                if stand.id in broken
            ]
        return Plan(tuple(asides), tuple(self._left_behind()))

    def carry_out(self, plan: Plan) -> trash.Bag:
        """Manifest first, then the database, then the files.

        A crash in between leaves at worst files in place that could have been moved.

        Raises:
            StaleSession: A session moved on since it was read.
        """
        at = time.time_ns() // 1000
        sessions = tuple(aside.stand.id for aside in plan.sessions)
        bag = trash.announce(self._trash, trash.new_stamp(at), plan.paths, sessions)
        if self.engine is not None:
            with translated(self.root.database):
                setting_aside.set_aside(self.engine, bag.stamp, plan.sessions, at)
        trash.fill(bag, self.root.path)
        return bag

    def undo(self) -> Undone:
        """Bring the latest cleaning back.

        Raises:
            UsageError: There is none.
        """
        bag = trash.newest(self._trash)
        restored: list[str] = []
        if self.engine is not None:
            with translated(self.root.database):
                restored = setting_aside.bring_back(self.engine, bag.stamp, time.time_ns() // 1000)
        back, kept = trash.restore(bag, self.root.path)
        return Undone(bag.stamp, tuple(back), tuple(kept), tuple(restored))

    @property
    def _trash(self) -> Path:
        return self.root.state / "trash"

    def _plan(self, dsl: str | None, chosen: Callable[[Stand], bool], *, everything: bool) -> Plan:
        if self.engine is None:
            return Plan()
        owned = self._owned()
        asides = []
        for stand in filter(chosen, self._stands(dsl)):
            files = [p for p in owned.get(stand.id, ()) if everything or _is_resumable(p)]
            paths = self._movable(files)
            if paths or stand.status != Status.ENDED.name:
                reason = f"set aside by 'croq-fsm clean' on {_today()}"
                asides.append(Aside(stand, reason, paths, ends=True))
        return Plan(tuple(asides))

    def _broken(self, stand: Stand, files: tuple[str, ...], problems: tuple[Problem, ...]) -> Aside:
        """Files that differ are moved; a record that does not hold puts the session out of use."""
        rows = sorted({p.kind for p in problems if not p.path})
        named = [p.path for p in problems if p.path]
        if not rows:
            reason = f"files cleared away by 'croq-fsm clean' on {_today()}"
            return Aside(stand, reason, self._movable(named), ends=False)
        paths = self._movable([*named, *filter(_is_resumable, files)])
        reason = f"set aside by 'croq-fsm clean' on {_today()}: {', '.join(rows)}"
        return Aside(stand, reason, paths, ends=True, broken=True)

    def _movable(self, paths: list[str]) -> tuple[str, ...]:
        """What is there; a link in place of what it points to, which may lie outside."""
        found = []
        for path in filter(_is_below, paths):
            link = symlink_on_the_way(self.root.path, path)
            if link is not None:
                found.append(link.relative_to(self.root.path).as_posix())
            elif (self.root.path / path).is_file():
                found.append(path)
        return tuple(dict.fromkeys(found))

    def _owned(self) -> dict[str, tuple[str, ...]]:
        """Paths by the session that owns them now."""
        found: dict[str, tuple[str, ...]] = {}
        with auditing.opened(self.root.database) as auditor:
            files = [f for stand in auditor.stands() for f in _files(auditor, stand)]
        for file in expected.owned(files).values():
            found[file.session_id] = (*found.get(file.session_id, ()), file.path)
        return found

    def _stands(self, dsl: str | None) -> list[Stand]:
        with auditing.opened(self.root.database) as auditor:
            return [s for s in auditor.stands() if dsl in (None, s.dsl)]

    def _left_behind(self) -> Iterator[str]:
        """What a crash left: temporary files, and the folders of children that are gone."""
        top = self.root.path
        summaries = PurePosixPath(self.root.storage.compaction_summary.format(dsl="*")).parent
        found = [
            *(p for p in (top / "tuning").rglob(".*.tmp") if _TEMPORARY.match(p.name)),
            *(p for p in top.glob(f"{summaries}/.*.tmp") if _TEMPORARY.match(p.name)),
            *self.root.inbox.glob("*.tmp"),
            *self.root.leftovers(),
        ]
        for path in sorted(found):
            if path.is_relative_to(top):
                yield path.relative_to(top).as_posix()


@contextmanager
def opened(root: Root) -> Iterator[Cleaner]:
    """Take the root's lock, and open the database if there is one.

    Raises:
        LockHeld: A daemon works on this root.
        ForeignSchema, DatabaseDamaged: The database is not ours to change.
    """
    with ExitStack() as stack:
        root.prepare()
        stack.callback(RootLock(root, "clean").release)
        engine = None
        if root.database.exists() and root.database.stat().st_size:
            engine = writer(root.database)
            stack.callback(engine.dispose)
            migrate.upgrade(engine, root.database)
        yield Cleaner(root, engine)


def _files(auditor: Auditor, stand: Stand) -> list[expected.Expected]:
    """Files of a session; none when its rows cannot be read."""
    try:
        return expected.of_session(auditor, auditor.session(stand.id))
    except UNREADABLE:
        return []


def _is_resumable(path: str) -> bool:
    """Whether a reader of files would go on from it: checkpoints and the context pack."""
    return "/checkpoints/" in path or not path.startswith("tuning/")


def _is_below(path: str) -> bool:
    """Whether a path, perhaps from a damaged row, stays below the root."""
    return not Path(path).is_absolute() and ".." not in Path(path).parts


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
