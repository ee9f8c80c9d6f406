"""``validate`` accepts a true record and names every way in which one can be false."""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from pathlib import Path

import pytest

from croq_fsm.domain.source import sha256
from croq_fsm.errors import DatabaseDamaged, ForeignSchema, UsageError
from croq_fsm.root import Root, RootLock
from croq_fsm.storage import auditing, expected
from croq_fsm.validation import validate
from croq_fsm.validation.sources import foreign_includes
from support import night
from support.bench import git_root
from support.night import CONFIG, Night


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished night."""
    bench = night.make(tmp_path_factory.mktemp("night"))
    return bench.root.path, bench.session_id


@pytest.fixture
def spoilt(original: tuple[Path, str], tmp_path: Path) -> Night:
    """A copy of the night."""
    return Night.copy(*original, tmp_path / "copy")


def test_a_true_record_holds(spoilt: Night) -> None:
    """KEEP, DISCARD, repair and failure: nothing is found, and every kind of round was there."""
    found = spoilt.ask("SELECT DISTINCT decision FROM rounds")
    assert {row[0] for row in found} == {"KEEP", "DISCARD", "VERIFY_FAIL"}
    assert spoilt.ask("SELECT count(*) FROM attempts") == [(2,)]
    report = spoilt.report(ask_git=True)
    assert report.problems == ()
    assert report.sessions == (spoilt.session,)


def test_nothing_is_changed(spoilt: Night) -> None:
    """The database file is the same, byte for byte, and no file has appeared or gone."""

    def fingerprint() -> dict[str, str]:
        return {
            str(path): sha256(path.read_bytes())
            for path in spoilt.root.path.rglob("*")
            if path.is_file() and not path.name.endswith(("-shm", "-wal"))
        }

    before = fingerprint()
    spoilt.sql("UPDATE rounds SET tflops = 99.0 WHERE round = 1")
    lying = fingerprint()
    assert lying != before
    spoilt.report()
    assert fingerprint() == lying


_ROWS = {
    "transition-gap": "DELETE FROM transitions WHERE seq = 5",
    "transition-chain": "UPDATE transitions SET from_state = 'STORE' WHERE seq = 4",
    "illegal-edge": "UPDATE transitions SET outcome = 'TIMED' WHERE seq = 1",
    "session-row": "UPDATE sessions SET seq = seq + 1",
    "session-status": "UPDATE sessions SET status = 'ACTIVE'",
    "round-gap": "DELETE FROM rounds WHERE round = 3",
    "round-without-store": "UPDATE transitions SET round = 9 WHERE from_state = 'STORE' "
    "AND round = 2",
    "iteration-gap": "UPDATE iterations SET number = 9 WHERE number = 6",
    "iteration-order": "UPDATE iterations SET round = 9 WHERE number = 2",
    "baseline-missing": "UPDATE iterations SET round = 1 WHERE number = 1",
    "iteration-name": "UPDATE iterations SET name = 'iter009_x' WHERE number = 2",
    "round-iteration": "UPDATE rounds SET iteration = 7 WHERE round = 5",
    "attempt-gap": "UPDATE attempts SET ordinal = 7 WHERE ordinal = 1",
    "attempt-name": "UPDATE attempts SET name = 'iter009_x' WHERE ordinal = 0",
    "attempt-number": "UPDATE attempts SET number = 6 WHERE ordinal = 0",
    "attempt-count": "UPDATE rounds SET attempts = 2 WHERE round = 1",
    "round-without-profile": "DELETE FROM profiles WHERE round = 2",
    "foreign-profile": "UPDATE profiles SET binary = 'x' WHERE round = 2",
    "too-quick": "UPDATE rounds SET wall_s = 0.0 WHERE round = 1",
    "bottleneck-unsupported": "UPDATE rounds SET bottleneck = 'MEMORY' WHERE round = 2",
    "sum-round": "UPDATE sessions SET round = 7",
    "sum-counts": """UPDATE sessions SET counts = '{"KEEP":3}'""",
    "sum-streak": "UPDATE sessions SET streak = 0",
    "sum-macro-run": "UPDATE sessions SET macro_run = 0",
    "sum-best-iteration": "UPDATE sessions SET best_iteration = 2",
    "sum-next-iteration": "UPDATE sessions SET next_iteration = 3",
    "sum-next-attempt": "UPDATE sessions SET next_attempt = 0",
    "sum-log-sizes": "UPDATE sessions SET log_sizes = '{}'",
    "best-not-kept": "UPDATE sessions SET best_iteration = 3",
    "macro-run": "UPDATE rounds SET macro_only = 1 WHERE round IN (1, 2, 3)",
    "decision-unsupported": "UPDATE rounds SET decision = 'DISCARD' WHERE round = 1",
    "unconfirmed": "UPDATE rounds SET decision = 'KEEP' WHERE round = 2",
    "time-unsupported": "UPDATE iterations SET seconds = seconds / 2 WHERE number = 2",
    "tflops-unsupported": "UPDATE rounds SET tflops = tflops * 2 WHERE round = 1",
    "ratio-unsupported": "UPDATE rounds SET ratio = 1.5 WHERE round = 1",
    "estimate-unsupported": "UPDATE iterations SET estimate = "
    """'{"ratio":1.2,"low":1.1,"high":1.3,"pairs":12}' WHERE number = 2""",
    "no-samples": "DELETE FROM measurements WHERE kind = 'confirm' AND round = 1",
    "unverified": "DELETE FROM measurements WHERE kind = 'verify' AND round = 1",
    "not-remembered": "DELETE FROM tried WHERE round = 2",
    "keep-without-commit": "DELETE FROM intents WHERE kind = 'git'",
    "unreadable-row": "UPDATE sessions SET task = '{'",
    "dangling-row": "UPDATE rounds SET session_id = 'nobody' WHERE round = 6",
    "artifact-outside": "UPDATE artifacts SET path = '../../x.c' WHERE path LIKE '%iter002%.c'",
}


@pytest.mark.parametrize("kind", _ROWS)
def test_a_false_row_is_named(spoilt: Night, kind: str) -> None:
    """One changed row is found, under its own name, with a cure."""
    spoilt.sql(_ROWS[kind])
    found = [p for p in spoilt.report().errors if p.kind == kind]
    assert found
    assert all(p.cure and p.where and p.text for p in found)


def test_a_failed_verification_is_none(spoilt: Night) -> None:
    """A KEEP whose checks say that they failed is unverified, even if checks are there."""
    (text,) = spoilt.ask("SELECT verification FROM measurements WHERE kind='verify' AND round=1")[0]
    checks = json.loads(text)
    checks["checks"][-1]["passed"] = False
    spoilt.sql(
        "UPDATE measurements SET verification = ? WHERE kind = 'verify' AND round = 1",
        json.dumps(checks),
    )
    assert spoilt.kinds() == {"unverified"}


def test_changed_samples_do_not_support_a_keep(spoilt: Night) -> None:
    """Slower samples under a KEEP: decision, estimate and time are all called unsupported."""
    ((seq, data),) = spoilt.ask(
        "SELECT seq, samples FROM measurements WHERE kind = 'confirm' AND round = 1"
    )
    samples = json.loads(zlib.decompress(data))
    for block in samples["blocks"]:
        if block["contestant"] == "candidate":
            block["seconds"] = [1.3 * s for s in block["seconds"]]
    spoilt.sql(
        "UPDATE measurements SET samples = ? WHERE seq = ? AND kind = 'confirm'",
        zlib.compress(json.dumps(samples).encode()),
        seq,
    )
    assert spoilt.kinds() == {"decision-unsupported", "estimate-unsupported", "time-unsupported"}


def test_an_older_nights_decisions_are_told_and_not_called_wrong(spoilt: Night) -> None:
    """What an earlier version of the rules decided leaves a warning, whatever today's rules say."""
    spoilt.sql("UPDATE transitions SET detail = json_remove(detail, '$.rules')")
    spoilt.sql("UPDATE rounds SET decision = 'DISCARD' WHERE round = 1")
    found = spoilt.report().problems
    assert {(p.kind, p.severity) for p in found if "rules" in p.kind} == {
        ("older-rules", "warning")
    }
    assert "decision-unsupported" not in {p.kind for p in found}


def test_the_same_candidate_twice_is_found(spoilt: Night) -> None:
    """Two iterations with one candidate are found, whatever the table of tried hashes says."""
    spoilt.sql(
        "UPDATE iterations SET candidate = (SELECT candidate FROM iterations WHERE number = 2) "
        "WHERE number = 3"
    )
    assert "tried-twice" in spoilt.kinds()


def test_drift_of_the_checkpoint_is_found(spoilt: Night) -> None:
    """A checkpoint whose candidate is not the planned one is no place to resume from."""
    (work,) = spoilt.ask("SELECT work FROM sessions")[0]
    changed = json.loads(work)
    changed["candidate"]["source"] += "int smuggled;\n"
    spoilt.sql("UPDATE sessions SET work = ?", json.dumps(changed))
    assert "checkpoint-drift" in spoilt.kinds()


@pytest.mark.parametrize(
    ("relative", "kind"),
    [
        ("srcs/iter002_speed.c", "artifact"),
        ("perf/timing_iter002.txt", "artifact"),
        ("cmd/run_iter002.sh", "artifact"),
        ("logs/results.tsv", "log"),
        ("memory/rounds.md", "log"),
        ("baseline/task_config.json", "snapshot"),
    ],
)
@pytest.mark.parametrize("how", ["differs", "missing"])
def test_a_changed_file_is_named(spoilt: Night, relative: str, kind: str, how: str) -> None:
    """One byte more, or the file gone: its path is named, and rebuild is the cure."""
    path = spoilt.file(relative)
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b" ")
    (problem,) = spoilt.report().errors
    assert problem.kind == f"{kind}-{how}"
    assert problem.path == str(path.relative_to(spoilt.root.path))
    assert problem.cure == f"croq-fsm rebuild {spoilt.session}"


def test_a_missing_binary_is_a_warning(spoilt: Night) -> None:
    """A binary can be made again; its loss leaves the record valid."""
    spoilt.file("bin/iter002_speed").unlink()
    report = spoilt.report()
    assert report.errors == ()
    assert [p.kind for p in report.warnings] == ["artifact-missing"]


def test_links_are_found_file_and_folder(spoilt: Night, tmp_path: Path) -> None:
    """A link in place of a file or of a folder is a problem, even if the bytes are right."""
    path = spoilt.file("srcs/iter002_speed.c")
    outside = tmp_path / "outside.c"
    path.rename(outside)
    path.symlink_to(outside)
    logs = spoilt.file("logs/results.tsv").parent
    logs.rename(tmp_path / "logs")
    logs.symlink_to(tmp_path / "logs")
    assert spoilt.kinds() == {"artifact-symlink", "log-symlink"}


def test_a_lost_commit_is_found(spoilt: Night) -> None:
    """A KEEP whose promised commit is done, but in no branch, is named with its trailer."""
    git = ["git", "-C", str(spoilt.root.path)]
    subprocess.run([*git, "update-ref", "-d", "HEAD"], check=True)
    found = [p for p in spoilt.report(ask_git=True).errors if p.kind == "commit-missing"]
    assert {p.where for p in found} == {"rounds 0", "rounds 1", "rounds 4"}
    assert all(f"Croq-Attempt: {spoilt.session}/" in p.text for p in found)


def test_a_broken_repository_is_named(spoilt: Night) -> None:
    """When git cannot answer, that is a finding and no traceback."""
    (spoilt.root.path / ".git" / "HEAD").write_text("nonsense\n")
    assert "git-unreadable" in spoilt.kinds(ask_git=True)


def test_open_promises_are_a_warning(spoilt: Night) -> None:
    """A promise that nobody confirmed is a warning, with the files that it names."""
    name = "logs/results.tsv"
    path = spoilt.file(name).relative_to(spoilt.root.path)
    payload = json.dumps({"artifacts": [], "logs": [{"path": str(path)}], "snapshots": []})
    spoilt.sql(
        "UPDATE intents SET done_at = NULL, payload = ? WHERE kind = 'publish' AND seq = "
        "(SELECT max(seq) FROM intents)",
        payload,
    )
    spoilt.file(name).unlink()
    report = spoilt.report()
    assert report.errors == ()
    assert {p.kind for p in report.warnings} == {"open-intent", "log-missing"}
    assert all("resume" in p.cure for p in report.warnings if p.kind == "open-intent")


def test_files_that_a_daemon_writes_are_looked_at_again(spoilt: Night) -> None:
    """Beside a daemon that stands still, a false file is still a problem."""
    spoilt.file("logs/results.tsv").write_text("nonsense")
    lock = RootLock(spoilt.root, "another")
    try:
        assert spoilt.kinds() == {"log-differs"}
    finally:
        lock.release()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('#include "/usr/include/stdio.h"\n', "absolute"),
        ("#include </srv/x.h>\n", "absolute"),
        ('#  include "../../../../../../../../x.h"\n', "leaves the repository"),
        ('#include "../my-paper/x.h"\n', "*-paper"),
        ('#incl\\\nude "/x.h"\n', "absolute"),
        ('asm(".incbin \\"/etc/hostname\\"");\n', "absolute"),
        ('#include "link/x.h"\n', "symbolic link"),
    ],
)
def test_foreign_includes_are_found(tmp_path: Path, text: str, why: str) -> None:
    """Absolute, climbing, linked and *-paper includes are each named."""
    folder = "tuning/gpu/c/srcs/key/model"
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "link").symlink_to("/usr/include")
    (found,) = foreign_includes(text, folder, tmp_path)
    assert why in found


def test_own_includes_are_fine(tmp_path: Path) -> None:
    """Headers of the system and of the repository, and includes in comments, are no finding."""
    text = '#include <math.h>\n#include "mine.h"\n#include "../up.h"\n// #include "/x.h"\n'
    assert foreign_includes(text, "tuning/gpu/c/srcs/key/model", tmp_path) == []


def test_a_foreign_include_in_a_measured_source_is_found(spoilt: Night) -> None:
    """A source that includes a file outside the repository is no place to resume from."""
    (key,) = spoilt.ask("SELECT candidate FROM iterations WHERE number = 5")[0]
    (data,) = spoilt.ask("SELECT data FROM blobs WHERE sha256 = ?", key)[0]
    candidate = json.loads(zlib.decompress(data))
    candidate["source"] = '#include "../../../../../../../x-paper/y.h"\n' + candidate["source"]
    packed = zlib.compress(json.dumps(candidate).encode())
    spoilt.sql("UPDATE blobs SET data = ? WHERE sha256 = ?", packed, key)
    assert "foreign-include" in spoilt.kinds()


def test_a_kernel_from_a_paper_folder_is_found(spoilt: Night) -> None:
    """A start kernel of a sibling *-paper folder is a forbidden source."""
    (task,) = spoilt.ask("SELECT task FROM sessions")[0]
    changed = json.loads(task) | {"kernel": "../tuner-paper/matmul.c"}
    spoilt.sql("UPDATE sessions SET task = ?", json.dumps(changed))
    assert "foreign-kernel" in spoilt.kinds()


def test_no_database_is_no_problem(tmp_path: Path) -> None:
    """Before the first session there is nothing that could be false."""
    root = Root(git_root(tmp_path / "root"), CONFIG.storage)
    assert validate(root).problems == ()
    with pytest.raises(UsageError, match="no database"):
        validate(root, "20260101")


def test_checkpoints_of_nobody_are_a_warning(spoilt: Night) -> None:
    """Without a database, a checkpoint below tuning/ is nothing to resume from."""
    for path in spoilt.root.state.glob("croq.sqlite3*"):
        path.unlink()
    report = spoilt.report()
    assert report.errors == ()
    assert {p.kind for p in report.warnings} == {"checkpoint-without-session"}


def test_a_damaged_database_is_not_audited(spoilt: Night) -> None:
    """Broken pages end in the error for a damaged database, which has an exit code of its own."""
    size = spoilt.root.database.stat().st_size
    with spoilt.root.database.open("r+b") as stream:
        stream.seek(size // 3 // 4096 * 4096)
        stream.write(os.urandom(4096 * 3))
    with pytest.raises(DatabaseDamaged):
        spoilt.report()


def test_a_newer_database_is_refused(spoilt: Night) -> None:
    """A schema of the future is no problem of the record; it has an exit code of its own."""
    spoilt.sql("UPDATE alembic_version SET version_num = 'r9999'")
    with pytest.raises(ForeignSchema, match="r9999"):
        spoilt.report()


def test_only_what_is_asked_for_is_audited(spoilt: Night) -> None:
    """A session by the beginning of its name, a DSL; an unknown name is a usage error."""
    spoilt.sql("UPDATE sessions SET streak = 0")
    assert validate(spoilt.root, spoilt.session[:12]).sessions == (spoilt.session,)
    assert validate(spoilt.root, dsl="croqtile").sessions == ()
    assert validate(spoilt.root, dsl="croqtile").problems == ()
    with pytest.raises(UsageError, match="names 0 sessions"):
        validate(spoilt.root, "nobody")


@pytest.mark.parametrize("clock_moves_s", [1e6, -1e6], ids=["clock runs", "clock is set back"])
def test_the_later_session_owns_shared_paths(
    original: tuple[Path, str], tmp_path: Path, clock_moves_s: float
) -> None:
    """A second session of the same task writes over the files; both records stay valid.

    Which one is later does not depend on the clock.
    """
    copy = Night.copy(*original, tmp_path / "root")
    second = night.again(tmp_path, clock_moves_s)
    report = copy.report()
    assert report.problems == ()
    assert report.sessions == tuple(sorted((copy.session, second)))
    copy.file("logs/results.tsv").write_text("nonsense")
    assert {p.session for p in copy.report().errors} == {second}
    with auditing.opened(copy.root.database) as auditor:
        first = [f.path for f in expected.of_session(auditor, auditor.session(copy.session))]
    assert "logs" in " ".join(first)
