#!/usr/bin/env python3
"""Cut the power again and again, and look at what the disk still has.

usage: sudo python3 scripts/power_cut.py [--cuts 30] [--seed 1] [--out FILE.json]

Power is cut by emulation: the root lies on an ext4 file system in an image file, and the file
system is shut down in the middle of the work by its "goingdown" ioctl (FS_IOC_SHUTDOWN) without
flushing its log. From that moment nothing reaches the image any more, so that whatever was not
synced is gone, names in folders included. Then it is mounted again, which replays its journal. The
cache of a real drive, and sectors that are torn in the middle, are not emulated.

Each cut hits a session with the real daemon, database, files and git; compiler and kernels are
scripted. The daemon tells each transition after it was committed, and each promise (files, commit)
after it was called done, into a pipe that lies outside; that is what it has acknowledged. After the
cut all of it has to be there: at most one transition more. Git has to be able to read the whole
repository, the session has to come to its end on resume, and the record has to pass the audit.

Exit status 1 when one does not; 77 when it is not root or may not mount.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import random
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from _survival import audited, fork, git, told
from fault_enumeration import Stage

from croq_fsm import daemon
from croq_fsm.root import Root
from croq_fsm.storage.repository import Repository

SKIPPED: Final = 77
_ROUNDS: Final = 40
_START: Final = ("start", "c", "f32", "64x64x64", "--rounds", str(_ROUNDS))
_IMAGE_BYTES: Final = 192 << 20
#: _IOR('X', 125, __u32), and its argument for "throw the log away".
_SHUTDOWN: Final = 0x8004587D
_NO_LOG_FLUSH: Final = 2
#: Journal commits of ext4 while the work goes on: seldom, so that a cut finds much unsynced.
_OPTIONS: Final = "loop,commit=30"
_SETTINGS_EXTRA: Final = "min_free_mb = 0\nwait_for_space_s = 0.0\n"


class CannotMount(Exception):
    """This machine does not let us."""


@dataclass
class Disk:
    """An ext4 file system in a file.

    Attributes:
        image: The file.
        place: Where it is mounted.
    """

    image: Path
    place: Path

    def make(self) -> None:
        """Make the file system; raises CannotMount."""
        self.place.mkdir()
        with self.image.open("wb") as stream:
            stream.truncate(_IMAGE_BYTES)
        _must("mkfs.ext4", "-q", "-F", str(self.image))
        self.mount()

    def mount(self) -> None:
        """Mount it; replays the journal."""
        _must("mount", "-o", _OPTIONS, str(self.image), str(self.place))

    def unmount(self) -> None:
        """Unmount; waits a little for the last process to let go."""
        for _ in range(100):
            if not subprocess.run(
                ["umount", str(self.place)], capture_output=True, check=False
            ).returncode:
                return
            time.sleep(0.1)
        raise CannotMount(f"{self.place} stays busy")

    def cut(self) -> None:
        """Nothing reaches the image from now on."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)


def _must(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise CannotMount(f"{command[0]} is not installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMount(f"{' '.join(command[:1])}: {done.stderr.strip()}")


@contextmanager
def disk() -> Iterator[Disk]:
    """A fresh file system, mounted; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="croq-power-") as name:
        made = Disk(Path(name, "image"), Path(name, "disk"))
        made.make()
        try:
            yield made
        finally:
            with contextlib.suppress(CannotMount):
                made.unmount()


@dataclass
class Acknowledged:
    """What the daemon said that it had done.

    Attributes:
        transitions: Highest number of a transition that was committed.
        promises: (transition, kind) of the effects that were called done.
    """

    transitions: int = 0
    promises: set[tuple[int, str]] = field(default_factory=set)

    def hear(self, text: str) -> None:
        """Take lines of the pipe; a last one without its end was cut."""
        for line in text.split("\n")[:-1]:
            kind, _, number = line.partition(" ")
            if kind == "transition":
                self.transitions = max(self.transitions, int(number))
            else:
                self.promises.add((int(number), kind))


class TellingRepository(Repository):
    """The repository; tells what it has committed, after it has."""

    pipe = -1

    def commit_step(self, *arguments: Any, **named: Any) -> Any:
        """Commit, then say so."""
        after = super().commit_step(*arguments, **named)
        os.write(self.pipe, f"transition {after.seq}\n".encode())
        return after

    def close_intent(self, intent: Any, at: int, result: str) -> None:
        """Close, then say so."""
        super().close_intent(intent, at, result)
        os.write(self.pipe, f"{intent.kind} {intent.seq}\n".encode())


@dataclass
class Found:
    """What one cut came to."""

    acknowledged: int = 0
    transitions_lost: int = 0
    promises_lost: int = 0
    unreadable: int = 0
    broken: list[str] = field(default_factory=list)


def one(chance: random.Random) -> Found:
    """One cut at a random moment, then the questions."""
    with disk() as place:
        stage = Stage(place.place / "stage", settings=_SETTINGS_EXTRA)
        _must("sync", "-f", str(place.place))  # the user's repository is older than the night
        acknowledged, said = _work_and_cut(stage, place, chance)
        place.unmount()
        place.mount()
        found = Found(acknowledged.transitions)
        _ask(stage.root, acknowledged, found)
        _resume(stage, found)
        if found.broken:
            found.broken.append(f"the daemon had said: {said[-400:]}")
        return found


def _work_and_cut(stage: Stage, place: Disk, chance: random.Random) -> tuple[Acknowledged, str]:
    """Let the daemon work for a while, cut, and let it find out by itself or kill it."""
    ours, theirs = os.pipe()
    stage.log = Path(place.image.parent, "log")  # what the daemon says must not be lost

    def work() -> int:
        os.close(ours)
        TellingRepository.pipe = theirs
        daemon.Repository = TellingRepository  # type: ignore[misc]
        return stage.work(*_START)()

    pid = fork(work)
    os.close(theirs)
    acknowledged, text = Acknowledged(), ""
    # The first seconds make the database; later ones are rounds. Both are cut.
    until = time.monotonic() + chance.uniform(0.2, 5.0)
    os.set_blocking(ours, False)
    while time.monotonic() < until:
        with contextlib.suppress(BlockingIOError):
            text += os.read(ours, 1 << 16).decode()
        time.sleep(0.002)
    place.cut()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(ours, 1 << 16).decode():
            text += piece
    os.close(ours)
    acknowledged.hear(text)
    return acknowledged, stage.log.read_text(errors="replace") if stage.log.exists() else ""


def _ask(root: Root, acknowledged: Acknowledged, found: Found) -> None:
    """What is there of what was acknowledged?"""
    last, done = _rows(root, found)
    found.transitions_lost = max(0, acknowledged.transitions - last)
    if last > acknowledged.transitions + 1:
        found.broken.append(f"{last} transitions, only {acknowledged.transitions} acknowledged")
    missing = acknowledged.promises - done
    found.promises_lost = len(missing)
    if found.transitions_lost or missing:
        found.broken.append(f"lost: transitions up to {acknowledged.transitions}, {missing}")
    checked = git(root, "fsck", "--full", "--strict")
    if checked.returncode:
        found.unreadable = 1
        found.broken.append(f"git fsck: {checked.stdout}{checked.stderr}")
    heads = git(root, "log", "--all", "--format=%(trailers:key=Croq-Attempt,valueonly)").stdout
    for seq, kind in acknowledged.promises:
        if kind == "git" and f"/{seq}\n" not in heads:
            found.promises_lost += 1
            found.broken.append(f"the commit of transition {seq} is gone")


def _rows(root: Root, found: Found) -> tuple[int, set[tuple[int, str]]]:
    """Highest transition, and the promises that are done, as the database has them."""
    if not root.database.exists():
        return 0, set()
    connection = sqlite3.connect(root.database)
    try:
        verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            found.broken.append(f"integrity_check: {verdict}")
        last = connection.execute("SELECT coalesce(max(seq), 0) FROM transitions").fetchone()[0]
        done = connection.execute("SELECT seq, kind FROM intents WHERE done_at IS NOT NULL")
        return int(last), {(row[0], row[1]) for row in done}
    except sqlite3.DatabaseError as exc:
        if "no such table" not in str(exc):
            found.broken.append(f"database: {exc}")
        return 0, set()
    finally:
        connection.close()


def _resume(stage: Stage, found: Found) -> None:
    """Go on to one more round, and audit the record."""
    arguments = ("resume", "--rounds", "1") if _begun(stage.root) else _short_start()
    code = stage.run(*arguments)
    if code:
        found.broken.append(f"{arguments[0]} ended with {code}: {stage.log.read_text()[-600:]}")
        return
    found.broken += audited(stage.root)


def _short_start() -> tuple[str, ...]:
    return (*_START[:-1], "1")


def _begun(root: Root) -> bool:
    if not root.database.exists():
        return False
    connection = sqlite3.connect(root.database)
    try:
        return bool(connection.execute("SELECT count(*) FROM sessions").fetchone()[0])
    except sqlite3.DatabaseError:
        return False
    finally:
        connection.close()


def main() -> int:
    """Cut, look, count."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    if os.geteuid():
        print("skipped: only root may mount")
        return SKIPPED
    chance = random.Random(chosen.seed)  # noqa: S311 - a seed, no secret
    began = time.monotonic()
    found: list[Found] = []
    try:
        for number in range(1, chosen.cuts + 1):
            found.append(one(chance))
            for text in found[-1].broken:
                print(f"broken: cut {number}: {text}", flush=True)
    except CannotMount as exc:
        print(f"skipped: {exc}")
        return SKIPPED
    told(_table(found, time.monotonic() - began), chosen.out)
    return 1 if any(f.broken for f in found) else 0


def _table(found: list[Found], seconds: float) -> dict[str, Any]:
    return {
        "emulation": "ext4 in an image, FS_IOC_SHUTDOWN without log flush, journal replay",
        "cuts": len(found),
        "cuts before the first transition": sum(f.acknowledged == 0 for f in found),
        "transitions acknowledged": sum(f.acknowledged for f in found),
        "acknowledged transitions lost": sum(f.transitions_lost for f in found),
        "acknowledged promises lost": sum(f.promises_lost for f in found),
        "unreadable repositories": sum(f.unreadable for f in found),
        "cuts with anything broken": sum(bool(f.broken) for f in found),
        "minutes": round(seconds / 60, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
