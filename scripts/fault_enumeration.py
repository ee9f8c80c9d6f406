#!/usr/bin/env python3
"""Break every write-class system call of one full cycle, once each, and resume.

usage: scripts/fault_enumeration.py [--every] [--sample N] [--seed 1] [--kinds KILL,EIO,ENOSPC]
                                    [--jobs 1] [--out FILE.json]

The cycle is a whole session with the real daemon, database, files and git; only compiler and
kernels are scripted, so that it takes a second. strace breaks one call at a time:

  KILL     the process dies instead of the call
  EIO      the call fails with an I/O error
  ENOSPC   the call fails for want of space

at each call that writes, syncs, makes, renames or removes a file of the root, in the daemon and in
each git process that it starts. After each fault, the daemon has to have ended for a reason that it
names (or to have gone on); then the session is resumed, has to come to the same end as an
undisturbed one, and its record has to pass the audit. Exit status 1 when one does not; 77 when
strace is not there or may not trace.

Of a run of the same call on the same file, for example the pages of one commit, the first and the
last are taken; --every takes all. --sample N takes N faults at random out of these; --jobs N tries
N at one time.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from _survival import Facts, audited, command, facts, fork, git, lost, make_root, told

from croq_fsm import daemon
from croq_fsm.domain.ideas import Proposal
from croq_fsm.ideators import load
from croq_fsm.ideators.contract import Context, Failure
from croq_fsm.root import Root
from support.scripted import ScriptedWorkbench, proposal

SKIPPED: Final = 77
_KINDS: Final = ("KILL", "EIO", "ENOSPC")
_CALLS: Final = (
    "write,pwrite64,writev,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir,"
    "mkdir,mkdirat,ftruncate,fallocate,chmod,fchmod,link,linkat,symlink,utimensat,"
    "copy_file_range,sendfile"
)
_DEADLINE_S: Final = 60.0
_SETTINGS: Final = '[storage]\nballast_mb = 1\n{more}[contention]\nlease_dir = "{lease}"\n'
_START: Final = ("start", "c", "f32", "64x64x64", "--rounds", "2")
#: A line of strace: call, arguments.
_LINE: Final = re.compile(r"^(?:\d+ +)?(\w+)\((.*)")
_UNEXPECTED: Final = "unexpected"


class CannotTrace(Exception):
    """strace is missing, or may not attach here."""


class Ideator:
    """Proposes by the number of rounds done, so that a resumed session hears the same."""

    name = "scripted"

    def propose(self, context: Context) -> Proposal:
        """A little faster each time, by other macros and flags in turn."""
        done = len(context.history)
        macros = {"TIME_US": str(int(800 * 0.95**done))}
        return proposal(context.base.iteration, macros, flags=("-O3",) if done % 2 else ())

    def repair(self, context: Context, failed: Proposal, failure: Failure) -> None:
        """Nothing fails here."""


@dataclass(frozen=True)
class Point:
    """A place to break.

    Attributes:
        call: System call.
        number: Its how-manieth call of that name.
        on_file: Whether it is on a file of the root.
        git: Number of the git process, or 0 for the daemon.
        ends_run: Whether it is the first or last of a run of the same call on the same file.
    """

    call: str
    number: int
    on_file: bool
    git: int = 0
    ends_run: bool = True


@dataclass
class Stage:
    """A folder with one root in it, for one fault.

    Attributes:
        folder: Holds the root, the lease, the log, and the stand-in for git.
        settings: More settings of the table ``storage``.
    """

    folder: Path
    settings: str = ""
    root: Root = field(init=False)

    def __post_init__(self) -> None:
        """Make everything."""
        lease = self.folder / "lease"
        lease.mkdir(parents=True)
        settings = _SETTINGS.format(lease=lease, more=self.settings)
        self.root = make_root(self.folder / "root", settings)
        self.log = self.folder / "log"
        self.log.touch()

    def work(self, *arguments: str) -> Callable[[], int]:
        """A command with scripted tools and the stand-in for git on the path."""
        inner = command(self.root, *arguments, output=self.log)

        def run() -> int:
            os.environ["PATH"] = f"{self.folder / 'bin'}:{os.environ['PATH']}"
            daemon.open_workbench = lambda *_: ScriptedWorkbench(self.root.cache)  # type: ignore[assignment]
            load.load = lambda *_: Ideator()  # type: ignore[assignment,return-value]
            return inner()

        return run

    def stand_in(self, which: int, options: str) -> None:
        """Put a git on the path that is traced in its ``which``-th run; -1 for all of them."""
        real = shutil.which("git")
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / "git"
        script.write_text(
            f"#!/bin/sh\nn=$(($(cat {folder}/n 2>/dev/null || echo 0) + 1))\necho $n > {folder}/n\n"
            f"if [ {which} = -1 ] || [ $n = {which} ]; then "
            f'exec strace -y -o {folder}/trace.$n {options} {real} "$@"; fi\nexec {real} "$@"\n',
            encoding="utf-8",
        )
        script.chmod(0o755)

    def run(self, *arguments: str) -> int:
        """Run undisturbed; exit status."""
        shutil.rmtree(self.folder / "bin", ignore_errors=True)
        return _waited(fork(self.work(*arguments)))

    def run_traced(self, options: list[str], *arguments: str) -> int:
        """Run under strace from its first call on; exit status."""
        gate = os.pipe()
        pid = fork(self.work(*arguments), gate)
        tracer = subprocess.Popen(
            ["strace", "-p", str(pid), "-o", str(self.folder / "trace"), *options],
            stderr=subprocess.PIPE,
            text=True,
        )
        said = tracer.stderr.readline() if tracer.stderr is not None else ""
        for end in gate:
            os.close(end)
        if "attached" not in said:
            os.kill(pid, signal.SIGKILL)
            tracer.kill()
        code = _waited(pid)
        tracer.communicate(timeout=_DEADLINE_S)
        if "attached" not in said:
            raise CannotTrace(said.strip() or "strace did not attach")
        return code


def _waited(pid: int) -> int:
    """Exit status, or minus the signal; a process that hangs is killed and told as 124."""
    until = time.monotonic() + _DEADLINE_S
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 124


def undisturbed() -> tuple[list[Point], tuple[object, ...]]:
    """All points of a cycle, and what it comes to."""
    with tempfile.TemporaryDirectory(prefix="croq-faults-") as name:
        stage = Stage(Path(name))
        stage.stand_in(-1, f"-e trace={_CALLS}")
        code = stage.run_traced(["-y", "-e", f"trace={_CALLS}"], *_START)
        if code:
            raise CannotTrace(f"the cycle itself ends with {code}: {stage.log.read_text()[-500:]}")
        points = _points(stage.folder / "trace", stage.root, 0)
        runs = int((stage.folder / "bin" / "n").read_text())
        for run in range(1, runs + 1):
            points += _points(stage.folder / "bin" / f"trace.{run}", stage.root, run)
        return points, outcome(stage.root)


def _points(trace: Path, root: Root, process: int) -> list[Point]:
    counts: Counter[str] = Counter()
    seen: list[tuple[str, int, str, bool]] = []
    for line in trace.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None or match[1] not in _CALLS.split(","):
            continue
        counts[match[1]] += 1
        # Git names files relative to the root, which is where it works.
        named = str(root.path) in match[2] or '".git' in match[2]
        seen.append((match[1], counts[match[1]], match[2].partition(",")[0], named))
    found = []
    for i, (call, number, what, named) in enumerate(seen):
        around = (seen[i - 1] if i else None, seen[i + 1] if i + 1 < len(seen) else None)
        inside = all(s is not None and (s[0], s[2]) == (call, what) for s in around)
        found.append(Point(call, number, named, process, not inside))
    return found


def outcome(root: Root) -> tuple[object, ...]:
    """What must not depend on the fault: rounds with their times, commits, the end."""
    connection = sqlite3.connect(f"file:{root.database}?mode=ro", uri=True)
    try:
        rounds = connection.execute(
            "SELECT round, iteration, kernel, decision, seconds FROM rounds ORDER BY round"
        ).fetchall()
        sessions = connection.execute("SELECT state, reason FROM sessions").fetchall()
        promised = connection.execute("SELECT count(*) FROM intents WHERE done_at IS NULL")
        waiting = promised.fetchone()[0]
    finally:
        connection.close()
    subjects = git(root, "log", "--reverse", "--format=%s").stdout
    return tuple(rounds), tuple(sessions), subjects, waiting


@dataclass(frozen=True)
class Fault:
    """A point and what happens there."""

    point: Point
    kind: str

    def __str__(self) -> str:
        """How it is told."""
        where = f" in git process {self.point.git}" if self.point.git else ""
        return f"{self.kind} at {self.point.call} {self.point.number}{where}"

    @property
    def options(self) -> list[str]:
        """For strace."""
        what = "signal=KILL" if self.kind == "KILL" else f"error={self.kind}"
        return ["-e", f"trace={self.point.call}",
                "-e", f"inject={self.point.call}:{what}:when={self.point.number}"]  # fmt: skip


def tried(fault: Fault, expected: tuple[object, ...]) -> tuple[int, list[str]]:
    """Commit one fault and resume; exit status of the hurt daemon, and what is broken."""
    with tempfile.TemporaryDirectory(prefix="croq-faults-") as name:
        stage = Stage(Path(name))
        if fault.point.git:
            stage.stand_in(fault.point.git, " ".join(fault.options))
            code = _waited(fork(stage.work(*_START)))
        else:
            code = stage.run_traced(fault.options, *_START)
        broken = _bad_end(fault, code, stage)
        before = facts(stage.root)
        again = _resumed(stage, before)
        if again:
            broken.append(f"resume ended with {again}: {stage.log.read_text()[-600:]}")
        broken += lost(before, facts(stage.root))
        if outcome(stage.root) != expected:
            broken.append(f"it came to {outcome(stage.root)}")
        return code, broken + audited(stage.root)


def _bad_end(fault: Fault, code: int, stage: Stage) -> list[str]:
    """A daemon ends by the kill, or by itself with a reason; a traceback is no reason."""
    said = stage.log.read_text(errors="replace")
    if fault.kind == "KILL" and not fault.point.git and code != -signal.SIGKILL:
        return [f"it was not killed, but ended with {code}"]
    if _UNEXPECTED in said or code == 124:  # noqa: PLR2004 - as timeout(1) tells it
        return [f"it ended with {code} without a reason: {said[-600:]}"]
    return []


def _resumed(stage: Stage, before: Facts) -> int:
    """Go on to the end; a session that was never made is started."""
    if before.transitions or _has_session(stage.root):
        return stage.run("resume") if _is_open(stage.root) else 0
    return stage.run(*_START)


def _has_session(root: Root) -> bool:
    return _asked(root, "SELECT count(*) FROM sessions") > 0


def _is_open(root: Root) -> bool:
    """Whether anything is left to do."""
    unfinished = _asked(root, "SELECT count(*) FROM sessions WHERE status <> 'ENDED'")
    return unfinished + _asked(root, "SELECT count(*) FROM intents WHERE done_at IS NULL") > 0


def _asked(root: Root, query: str) -> int:
    if not root.database.exists():
        return 0
    connection = sqlite3.connect(f"file:{root.database}?mode=ro", uri=True)
    try:
        return int(connection.execute(query).fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def faults_of(points: list[Point], kinds: Sequence[str], *, every: bool) -> list[Fault]:
    """Kills and errors at the calls on files of the root: what a crash can leave different."""
    chosen = [point for point in points if point.on_file and (every or point.ends_run)]
    return [Fault(point, kind) for point in chosen for kind in kinds]


def _kinds(text: str) -> tuple[str, ...]:
    """Kinds of faults, separated by commas."""
    kinds = tuple(text.split(","))
    if not set(kinds) <= set(_KINDS):
        raise argparse.ArgumentTypeError(f"known kinds: {', '.join(_KINDS)}")
    return kinds


def main() -> int:
    """Enumerate, break, resume, count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", type=_kinds, default=_KINDS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if shutil.which("strace") is None:
        print("skipped: strace is not installed")
        return SKIPPED
    try:
        points, expected = undisturbed()
    except CannotTrace as exc:
        print(f"skipped: {exc}")
        return SKIPPED
    return enumerate_all(points, expected, chosen)


def enumerate_all(
    points: list[Point], expected: tuple[object, ...], chosen: argparse.Namespace
) -> int:
    """Try the faults and print the figures."""
    all_faults = faults_of(points, chosen.kinds, every=chosen.every)
    faults = all_faults
    if chosen.sample is not None:
        chance = random.Random(chosen.seed)  # noqa: S311 - a seed, no secret
        faults = chance.sample(faults, min(chosen.sample, len(faults)))
    began, ends, broken = time.monotonic(), Counter[str](), 0
    with ProcessPoolExecutor(chosen.jobs) as pool:
        results = pool.map(partial(tried, expected=expected), faults)
        for number, (fault, (code, problems)) in enumerate(zip(faults, results, strict=True), 1):
            ends[f"{fault.kind} {code}"] += 1
            broken += bool(problems)
            for text in problems:
                print(f"broken: {fault}: {text}", flush=True)
            if number % 100 == 0:
                print(f"{number} of {len(faults)} faults, {broken} broken", flush=True)
    table = {
        "calls on files by the daemon": sum(not p.git and p.on_file for p in points),
        "calls on files by git": sum(bool(p.git) and p.on_file for p in points),
        "points taken": len({f.point for f in all_faults}),
        "faults tried": len(faults),
        "faults by kind": dict(Counter(f.kind for f in faults)),
        "exit status of the hurt daemon": dict(sorted(ends.items())),
        "resumed to the undisturbed end": len(faults) - broken,
        "broken": broken,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    told(table, chosen.out)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
