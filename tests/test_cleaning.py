"""``clean`` moves what is named into the trash and back; nothing is deleted, no chain is cut."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from croq_fsm import cleaning
from croq_fsm.cleaning import Plan
from croq_fsm.domain.states import State, Status
from croq_fsm.errors import LockHeld, UsageError
from croq_fsm.root import RootLock
from croq_fsm.storage import auditing, restoring, trash
from croq_fsm.storage.expected import cache_reader
from support import night
from support.night import Night


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished night."""
    bench = night.make(tmp_path_factory.mktemp("night"), rounds=2)
    return bench.root.path, bench.session_id


@pytest.fixture(scope="module")
def going(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """An interrupted session."""
    bench = night.interrupted(tmp_path_factory.mktemp("going"))
    return bench.root.path, bench.session_id


@pytest.fixture
def ended(original: tuple[Path, str], tmp_path: Path) -> Night:
    """A copy of the night."""
    return Night.copy(*original, tmp_path / "copy")


@pytest.fixture
def active(going: tuple[Path, str], tmp_path: Path) -> Night:
    """A copy of the interrupted session."""
    return Night.copy(*going, tmp_path / "active")


def _rebuild(copy: Night) -> restoring.Restored:
    with auditing.opened(copy.root.database) as auditor:
        cached = cache_reader(copy.root.cache)
        return restoring.restore(auditor, copy.root.path, cached, None, dry_run=False)


def _files(copy: Night) -> set[str]:
    """Files below the root that are no state and no git."""
    root = copy.root.path
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] not in (".git", ".croq_fsm")
    }


def _clean(copy: Night, which: str, dsl: str | None = None) -> Plan:
    with cleaning.opened(copy.root) as cleaner:
        plan: Plan = getattr(cleaner, f"plan_{which}")(dsl)
        if not plan.is_empty:
            cleaner.carry_out(plan)
    return plan


def _status(copy: Night) -> tuple[State, Status, str]:
    with auditing.opened(copy.root.database) as auditor:
        session = auditor.session(copy.session)
    return session.state, session.status, session.reason


def test_active_work_is_set_aside_and_the_record_stays_valid(active: Night) -> None:
    """The session ends in FAILED with a reason; checkpoints go, sources and logs stay."""
    before = _files(active)
    _clean(active, "active")
    state, status, reason = _status(active)
    assert (state, status) == (State.FAILED, Status.ENDED)
    assert "set aside by 'croq-fsm clean'" in reason
    gone = before - _files(active)
    assert {Path(path).name for path in gone} == {
        "scripted.json",
        "current_idea.json",
        "summary.md",
    }
    assert active.report().problems == ()
    assert _clean(active, "active").is_empty


def test_what_was_set_aside_can_be_reopened(going: tuple[Path, str], tmp_path: Path) -> None:
    """Reopened, the session goes on where it stood, and its record with two more rows holds."""
    copy = Night.copy(*going, tmp_path / "root")
    _clean(copy, "active")
    bench = night.reopened(tmp_path, State.IMPLEMENT)
    session = bench.run()
    bench.close()
    assert (session.state, session.round) == (State.DONE, 2)
    assert copy.ask("SELECT count(*) FROM transitions WHERE outcome = 'set_aside'") == [(1,)]
    assert copy.report().problems == ()


def test_a_cleaning_can_be_undone(active: Night) -> None:
    """Files and status are as before, byte for byte; a second undo finds nothing."""
    before = {name: (active.root.path / name).read_bytes() for name in _files(active)}
    stand = _status(active)
    _clean(active, "active")
    with cleaning.opened(active.root) as cleaner:
        done = cleaner.undo()
        assert done.sessions == (active.session,)
        assert done.kept == ()
        with pytest.raises(UsageError, match="brought back"):
            cleaner.undo()
    assert _status(active) == stand
    assert {name: (active.root.path / name).read_bytes() for name in _files(active)} == before
    assert active.report().problems == ()


def test_what_lies_there_by_now_is_not_overwritten(active: Night) -> None:
    """Undo leaves a file in the trash when a new one has its place, and says so."""
    _clean(active, "active")
    path = active.root.path / "summary/c/summary.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("new")
    with cleaning.opened(active.root) as cleaner:
        assert cleaner.undo().kept == ("summary/c/summary.md",)
    assert path.read_text() == "new"


def test_a_valid_session_is_never_touched_by_invalid_only(active: Night) -> None:
    """A session that validate passes keeps every byte and its status."""
    before = {name: (active.root.path / name).read_bytes() for name in _files(active)}
    stand = _status(active)
    assert _clean(active, "invalid").is_empty
    assert {name: (active.root.path / name).read_bytes() for name in _files(active)} == before
    assert _status(active) == stand


def test_a_broken_record_is_put_out_of_use(active: Night) -> None:
    """After invalid-only the session has ended with the rule that it broke, and validate passes."""
    active.sql("UPDATE sessions SET streak = 5")
    assert active.kinds() == {"sum-streak"}
    _clean(active, "invalid")
    _, status, reason = _status(active)
    assert status is Status.ENDED
    assert reason.endswith("sum-streak")
    report = active.report()
    assert report.errors == ()
    assert {p.kind for p in report.warnings} == {"sum-streak"}
    with cleaning.opened(active.root) as cleaner:
        cleaner.undo()
    assert active.kinds() == {"sum-streak"}


def test_a_row_that_cannot_be_read_is_put_out_of_use(active: Night) -> None:
    """Even a session whose row is no session any more can be cleaned."""
    active.sql("UPDATE sessions SET task = '{'")
    _clean(active, "invalid")
    assert active.kinds() == set()
    ((status,),) = active.ask("SELECT status FROM sessions")
    assert status == "ENDED"


def test_a_changed_file_is_moved_and_the_session_goes_on(active: Night) -> None:
    """When only files differ, the record is whole: they move, and rebuild writes them again."""
    log = active.file("logs/results.tsv")
    right = log.read_bytes()
    log.write_text("polluted")
    _clean(active, "invalid")
    assert not log.exists()
    assert _status(active)[1] is Status.ACTIVE
    assert active.report().errors == ()
    assert _rebuild(active).written == (str(log.relative_to(active.root.path)),)
    assert log.read_bytes() == right


def test_a_missing_file_is_reported_when_its_session_went_on(active: Night) -> None:
    """The excuse of a cleaning ends with the next step of the session."""
    active.file("srcs/iter002_speed.c").write_text("polluted")
    _clean(active, "invalid")
    assert active.kinds() == set()
    active.sql("UPDATE sessions SET seq = seq + 1")
    assert "artifact-missing" in active.kinds()


def test_a_link_is_moved_and_not_what_it_points_to(active: Night, tmp_path: Path) -> None:
    """Nothing outside the root is touched, even when a folder below it is a link."""
    logs = active.file("logs/results.tsv").parent
    outside = tmp_path / "outside"
    logs.rename(outside)
    logs.symlink_to(outside)
    _clean(active, "invalid")
    assert (outside / "results.tsv").is_file()
    assert not logs.is_symlink()
    assert active.kinds() == set()


def test_a_path_that_leaves_the_root_is_not_followed(active: Night, tmp_path: Path) -> None:
    """A damaged row must not make clean move a file of somebody else."""
    other = tmp_path / "mine.c"
    other.write_text("mine")
    active.sql("UPDATE artifacts SET path = '../mine.c' WHERE path LIKE '%iter002%.c'")
    assert "artifact-outside" in active.kinds()
    _clean(active, "invalid")
    assert other.read_text() == "mine"


def test_what_a_crash_left_is_cleared_away(ended: Night) -> None:
    """Temporary files and folders of dead children go; files that only look similar stay."""
    folder = ended.file("logs/results.tsv").parent
    (folder / ".results.tsv.123.tmp").write_text("torn")
    (folder / ".mine.tmp").write_text("not ours")
    (ended.root.inbox / "1-a.tmp").write_text("torn")
    (ended.root.work / "bench-abcd_123").mkdir()
    (ended.root.work / "keep").mkdir()
    plan = _clean(ended, "invalid")
    assert plan.sessions == ()
    assert {Path(p).name for p in plan.loose} == {
        ".results.tsv.123.tmp",
        "1-a.tmp",
        "bench-abcd_123",
    }
    assert (folder / ".mine.tmp").exists()
    assert (ended.root.work / "keep").is_dir()


def test_reset_moves_all_files_of_a_dsl_and_no_other(ended: Night) -> None:
    """All files of the DSL's sessions are in the trash; rebuild brings them back from the rows."""
    before = _files(ended)
    assert _clean(ended, "all", "croqtile").is_empty
    _clean(ended, "all", "c")
    assert _files(ended) == set()
    assert ended.report().problems == ()
    assert _clean(ended, "all", "c").is_empty
    assert _rebuild(ended).lost == ()
    assert _files(ended) == before
    assert ended.report().problems == ()


def test_an_ended_session_keeps_its_reason(ended: Night) -> None:
    """Cleaning the files of an ended session changes nothing about how it ended."""
    stand = _status(ended)
    _clean(ended, "all")
    assert _status(ended) == stand


def test_a_daemon_at_work_keeps_clean_out(ended: Night) -> None:
    """While somebody holds the lock, clean raises the error with exit code 3."""
    lock = RootLock(ended.root, "daemon")
    try:
        with pytest.raises(LockHeld), cleaning.opened(ended.root):
            pass
    finally:
        lock.release()


def test_an_empty_root_has_nothing_to_clean(ended: Night) -> None:
    """Without a database every plan is empty."""
    shutil.rmtree(ended.root.state)
    with cleaning.opened(ended.root) as cleaner:
        for which in ("active", "all", "invalid"):
            plan: Plan = getattr(cleaner, f"plan_{which}")(None)
            assert plan.is_empty


def test_a_crash_before_the_files_moved_is_harmless(active: Night) -> None:
    """Manifest and database written, files still there: undo brings the session back."""
    stand = _status(active)
    with cleaning.opened(active.root) as cleaner:
        plan = cleaner.plan_active(None)
        fill, trash.fill = trash.fill, _cut
        try:
            with pytest.raises(KeyboardInterrupt):
                cleaner.carry_out(plan)
        finally:
            trash.fill = fill
        assert active.report().problems == ()
        assert cleaner.undo().back == ()
    assert _status(active) == stand
    assert active.report().problems == ()


def _cut(*_arguments: object) -> list[str]:
    raise KeyboardInterrupt
