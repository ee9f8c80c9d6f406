"""Field trials: failures that users of other tuners reported, and the page that lists them."""

from __future__ import annotations

import ast
import inspect
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import text

from croq_fsm.config import Deadlines, load
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import State
from croq_fsm.engine import Engine
from croq_fsm.errors import Drained
from croq_fsm.ideators.contract import Context
from croq_fsm.ports import Ports
from croq_fsm.storage import migrate
from croq_fsm.storage.engine import writer
from croq_fsm.toolchain.process import Command, Ending, NullJournal
from croq_fsm.toolchain.runner import LocalRunner
from croq_fsm.validation import validate
from states import HANDLERS
from support import night
from support.bench import TASK as ONE
from support.bench import Bench
from support.scripted import ScriptedIdeator
from support.stage import TASK, TOP, Stage, fork, waited

_PAGE = TOP / "docs" / "trials.md"
_ROW = re.compile(r"^\| ([A-Z]\d+) \|.*\| `(test_\w+\.py)::(test_\w+)` \|$", re.MULTILINE)
_IDS = "R1 R2 R3 R4 R5 R6 R9 R11 R12 R13 R15 R16 C1 C3 C4 C6 C7 C8 G2 G3 G5 G7 G8 S1 S2 S3 S6 S7 S8"


def _functions(name: str) -> set[str]:
    """Test functions of a file of this folder."""
    tree = ast.parse((TOP / "tests" / name).read_text(encoding="utf-8"))
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_each_trial_has_a_test_that_exists() -> None:
    """Every id of the four groups is on the page once, with a test that is there."""
    rows = _ROW.findall(_PAGE.read_text(encoding="utf-8"))
    assert [trial for trial, _, _ in rows] == _IDS.split()
    missing = [f"{file}::{name}" for _, file, name in rows if name not in _functions(file)]
    assert missing == []


def _engine(bench: Bench, wrap: Callable[[State, Session, Ports], Step]) -> Engine:
    """The bench's engine with something around each handler."""
    return Engine(
        repository=bench.repository,
        ports_of=bench.ports,
        effects=bench.effects(),
        handlers={s: (lambda sess, ports, s=s: wrap(s, sess, ports)) for s in HANDLERS},
        run_id="test-run",
        stop=bench.stop,
    )


@pytest.mark.parametrize("state", [s for s in State if not s.is_final])
def test_stopped_in_any_state_and_started_again(tmp_path: Path, state: State) -> None:
    """R2: a stop in the middle of a state is no failed try; the next start ends the session."""
    bench = Bench(
        tmp_path,
        ScriptedIdeator([{"TIME_US": "800"}] * 2),
        task=ONE.model_copy(update={"rounds": 1}),
    )

    def stopped(here: State, session: Session, ports: Ports) -> Step:
        if here is state:
            bench.stop.set()
            raise Drained("stop")
        return HANDLERS[here](session, ports)

    with pytest.raises(Drained):
        _engine(bench, stopped).run(bench.session_id)
    left = bench.session()
    assert (left.state, left.begins) == (state, 0)
    bench.stop.clear()
    assert bench.run().state is State.DONE
    bench.close()


def test_the_stack_is_flat(tmp_path: Path) -> None:
    """R3: handlers see the same depth of the stack in the first and in the last round."""
    script = [lambda c, n=n: night.whole(c, f"int a{n};\n", "more") for n in range(12)]
    task = ONE.model_copy(update={"rounds": 12})
    bench = Bench(tmp_path, ScriptedIdeator(script), task=task)
    depths: dict[State, set[int]] = {}

    def watched(state: State, session: Session, ports: Ports) -> Step:
        depths.setdefault(state, set()).add(len(inspect.stack(0)))
        return HANDLERS[state](session, ports)

    assert _engine(bench, watched).run(bench.session_id).round == 12
    assert {state: len(seen) for state, seen in depths.items()} == dict.fromkeys(depths, 1)
    bench.close()


def test_rejected_work_stays_readable(tmp_path: Path) -> None:
    """R5: with all files gone, sources and reasons of failed attempts come back from the rows."""
    bench = night.make(tmp_path)
    files = sorted(bench.root.path.glob("tuning/**/srcs/**/attempt*.c"))
    texts = [path.read_text() for path in files]
    assert any("NO_COMPILE" in source for source in texts)
    assert any("WRONG" in source for source in texts)
    for path in files:
        path.unlink()
    stage = Stage.__new__(Stage)
    stage.folder, stage.root, stage.log = tmp_path, bench.root, tmp_path / "log"
    stage.log.touch()
    (bench.root.path / "croq_fsm.toml").write_text(
        '[storage]\ncompaction_summary = "summary/{dsl}/summary.md"\n', encoding="utf-8"
    )
    assert stage.run("rebuild") == 0, stage.log.read_text()
    assert [path.read_text() for path in files] == texts
    log = bench.file("logs/attempt-log.jsonl")
    assert "NO_COMPILE is set" in log
    assert "12 elements differ" in log


def _revisions() -> list[str]:
    """All revisions, oldest first."""
    versions = TOP / "croq_fsm" / "storage" / "migrations" / "versions"
    return sorted(p.stem.partition("_")[0].removeprefix("r") for p in versions.glob("r*.py"))


@pytest.mark.parametrize("revision", _revisions())
def test_each_earlier_schema_is_brought_up_to_date(tmp_path: Path, revision: str) -> None:
    """R12: from each revision to the newest, after a backup of the old one, with its rows."""
    path = tmp_path / "d.sqlite3"
    engine = writer(path)
    config = migrate._alembic_config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.execute(text(f"PRAGMA application_id = {migrate.APPLICATION_ID}"))
        connection.execute(
            text(
                "INSERT INTO runs (run_id, pid, boot_id, host, started_at) "
                "VALUES ('r', 1, 'b', 'h', 1)"
            )
        )
    assert migrate.upgrade(engine, path) == migrate.head_revision()
    with engine.begin() as connection:
        assert connection.execute(text("SELECT run_id FROM runs")).scalar_one() == "r"
    engine.dispose()
    backups = list(tmp_path.glob("backups/*.sqlite3"))
    assert len(backups) == (revision != migrate.head_revision())


def test_nothing_runs_for_ever_after_a_kill(tmp_path: Path) -> None:
    """R15: the killed run and its open children are called interrupted, and why."""
    stage = Stage(tmp_path / "s")
    pid = fork(stage.work("start", *TASK, "--rounds", "100"))
    until = time.monotonic() + 60
    while time.monotonic() < until and "iter001" not in stage.log.read_text():
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    assert waited(pid) == -signal.SIGKILL
    assert stage.run("resume", "--rounds", "1") == 0, stage.log.read_text()
    connection = sqlite3.connect(stage.root.database)
    runs = [row[0] for row in connection.execute("SELECT ending FROM runs ORDER BY started_at")]
    open_ = connection.execute("SELECT count(*) FROM children WHERE ended_at IS NULL").fetchone()
    connection.close()
    assert runs == ["interrupted: killed or power lost", "clean"]
    assert open_ == (0,)


def test_a_night_in_which_nothing_compiles(tmp_path: Path) -> None:
    """C3: round after round fails to compile; the session ends by its plateau, with a reason."""

    def broken(context: Context) -> object:
        n = len(context.history)
        return night.whole(context, f"#define NO_COMPILE {n}\nint a{n};\n", "broken")

    summary = "summary/{dsl}/summary.md"
    config = load(None, {"limits.plateau_rounds": 4, "storage.compaction_summary": summary})
    bench = Bench(tmp_path, ScriptedIdeator([broken] * 9), config=config)
    session = bench.run()
    assert (session.state, session.reason) == (State.DONE, "plateau: 4 rounds without a KEEP")
    assert session.next_iteration == 2
    bench.close()
    assert validate(bench.root).errors == ()


def test_a_child_that_is_killed_for_memory(tmp_path: Path) -> None:
    """C8: the kernel ends the child and not us; that is a signal, never a wrong number."""
    group = Path(f"/sys/fs/cgroup/memory/croq-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(48 << 20))
    except OSError as exc:
        pytest.skip(f"no memory control group may be made here: {exc}")
    try:
        code = (
            f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            "x = bytearray(1 << 30)\nx[::4096] = b'x' * len(x[::4096])\n"
        )
        runner = LocalRunner("oom-test", NullJournal(), threading.Event(), Deadlines())
        done = runner.run(Command((sys.executable, "-c", code), tmp_path, 60.0, "hungry"))
        assert (done.ending, done.returncode) == (Ending.SIGNALLED, -signal.SIGKILL)
        own = Path("/proc/self/oom_score_adj").read_text(encoding="ascii")
        child = runner.run(Command(("cat", "/proc/self/oom_score_adj"), tmp_path, 60.0, "cat"))
        assert int(child.stdout) > int(own), "the kernel must prefer our children to us"
    finally:
        subprocess.run(["rmdir", str(group)], check=False)


def test_no_setting_of_a_device_is_ever_changed() -> None:
    """G7: nothing asks a driver to lock clocks, set modes, or, unless told to, reset a device."""
    asking = re.compile(
        r"--lock-gpu-clocks|--lock-memory-clocks|(?<![\w-])-lgc\b|--applications-clocks"
        r"|--gpu-reset|--persistence-mode|--compute-mode|nvmlDeviceSet\w+|--clock-control[ =]base"
    )
    found = []
    for folder in ("croq_fsm", "states", "scripts", "config"):
        for path in sorted((TOP / folder).rglob("*")):
            if path.suffix in {".py", ".sh", ".toml", ".cu", ".cuh", ".c", ".h", ".service"}:
                found += [(path.name, m[0]) for m in asking.finditer(path.read_text("utf-8"))]
    # `croq-fsm tool gpu-check --reset` is a request by name; nothing else leads there.
    assert found == [("machine.py", "--gpu-reset")]


def test_readers_beside_a_daemon(tmp_path: Path) -> None:
    """S2: status and validate, again and again, disturb neither the daemon nor themselves."""
    stage = Stage(tmp_path / "s")
    pid = fork(stage.work("start", *TASK, "--rounds", "6"))
    until = time.monotonic() + 60
    while time.monotonic() < until and "iter001" not in stage.log.read_text():
        time.sleep(0.01)
    for _ in range(4):
        assert stage.run("status", "--json") == 0, stage.log.read_text()
        assert stage.run("validate") == 0, stage.log.read_text()
    assert waited(pid) == 0, stage.log.read_text()
