#!/usr/bin/env python3
"""Kill a running session again and again, and resume it: is anything ever lost, doubled, left?

usage: scripts/kill_trial.py [--kills 500] [--seed 1] [--root DIR] [--out FILE.json]

A real session of DSL c on the CPU: real daemon, compiler, kernels, database and git. After a random
while its process is killed with SIGKILL; then everything that was there after the kill before has
to be there unchanged, numbers have to be contiguous, the best kernel must not have gone back, and
no process of the session may live on. The next start resumes it. Each 25 kills, and at the end,
the whole record is audited. Exit status 1 when anything is broken.

Kernels are tiny and blocks short, so that many rounds pass; and a step may be interrupted as often
as this trial does it (limits.resumes_per_step), which would park a real session.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from _survival import Facts, audited, command, facts, fork, lost, make_root, orphans, told

from croq_fsm.root import Root

_SETTINGS = """
[limits]
resumes_per_step = 1000000

[measure]
screen_pairs = 3
pairs = 5
max_pairs = 5
confirm_pairs = 5
pairs_per_process = 5
block_s = 0.001
warmup_s = 0.001
verify_seeds = 1
hidden_shapes = 0
min_effect = 0.02

[storage]
ballast_mb = 1

[contention]
lease_dir = "{lease}"
"""
_START = ("start", "c", "f32", "24x24x24", "--rounds", "1000000")
_AUDIT_EACH = 25
#: Share of the daemons that live for less than a third of the longest time.
_SHORT = 0.85
_NOTHING_TO_RESUME = 2


@dataclass
class Trial:
    """One trial.

    Attributes:
        root: The root.
        log: What the commands say.
        random: When to kill.
        longest_s: Longest life of a daemon.
        known: What was there after the kill before.
        broken: What went wrong.
        ends: Daemons that ended before they were killed, by exit status.
    """

    root: Root
    log: Path
    random: random.Random
    longest_s: float
    known: Facts = field(default_factory=Facts)
    broken: list[str] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    kills: int = 0
    arguments: tuple[str, ...] = _START

    def turn(self) -> None:
        """Start or resume, kill after a while, look."""
        pid = fork(command(self.root, *self.arguments, output=self.log))
        status = self._end(pid)
        self.arguments = ("resume",)
        if status is None:
            self.kills += 1
        else:
            self.ends[status] = self.ends.get(status, 0) + 1
            self._ended(status)
        now = facts(self.root)
        if not now.transitions and not self.known.transitions:
            self.arguments = _START  # killed before there was a session
        self.broken += lost(self.known, now)
        if self.root.database.exists():
            self.broken += [f"process {pid} lives on" for pid in orphans(self.root)]
        self.known = now
        if status is None and self.kills % _AUDIT_EACH == 0:
            self._audit()

    def _end(self, pid: int) -> int | None:
        """Exit status of the daemon if it ended by itself; None when it was killed."""
        until = time.monotonic() + self._life_s()
        while time.monotonic() < until:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return None if code == -signal.SIGKILL else code

    def _life_s(self) -> float:
        """Mostly too short for a whole round, now and then long enough for several steps."""
        short = self.random.random() < _SHORT
        low, high = (0.0, self.longest_s / 3) if short else (self.longest_s / 3, self.longest_s)
        return self.random.uniform(low, high)

    def _ended(self, status: int) -> None:
        """All ideas tried: the next session begins. Anything else has no business to happen."""
        if status in (0, _NOTHING_TO_RESUME):
            self.arguments = _START
        else:
            tail = self.log.read_text(encoding="utf-8", errors="replace")[-600:]
            self.broken.append(f"a daemon ended with {status}: {tail}")

    def _audit(self) -> None:
        found = audited(self.root)
        self.broken += found
        rounds = len(self.known.rounds)
        print(f"{self.kills} kills, {rounds} rounds, {len(self.broken)} broken", flush=True)

    def finish(self) -> None:
        """One more start that is left alone for a round, then the last audit."""
        pid = fork(command(self.root, "resume", "--rounds", "1", output=self.log))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code not in (0, _NOTHING_TO_RESUME):
            self.broken.append(f"the last resume ended with {code}")
        now = facts(self.root)
        self.broken += lost(self.known, now)
        self.known = now
        self._audit()


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=6.0, help="longest life, seconds")
    parser.add_argument("--root", type=Path, help="a new folder; default: a temporary one")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run the trial and print its figures."""
    chosen = options()
    folder = chosen.root or Path(tempfile.mkdtemp(prefix="croq-kill-"))
    lease = folder.parent / f"{folder.name}-lease"
    lease.mkdir(parents=True)
    root = make_root(folder, _SETTINGS.format(lease=lease))
    chance = random.Random(chosen.seed)  # noqa: S311 - a seed, no secret
    trial = Trial(root, folder.parent / f"{folder.name}.log", chance, chosen.longest)
    began = time.monotonic()
    while trial.kills < chosen.kills:
        trial.turn()
    trial.finish()
    table = {
        "kills": trial.kills,
        "seed": chosen.seed,
        "rounds": len(trial.known.rounds),
        "transitions": len(trial.known.transitions),
        "sessions": len(trial.known.best),
        "daemons that ended by themselves": trial.ends,
        "broken": len(trial.broken),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    told(table, chosen.out)
    for text in trial.broken[:20]:
        print(f"broken: {text}")
    return 1 if trial.broken else 0


if __name__ == "__main__":
    sys.exit(main())
