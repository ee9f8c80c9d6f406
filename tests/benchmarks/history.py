"""Long histories without the nights: one round that was really done, written many times.

Each copy is a round of its own: its numbers, names, times, source and hashes follow on the
round before. Small histories made so pass ``validate`` with all their files (a test holds that);
large ones are made by the same code, with three things left out that no measurement here reads:
hashes of sources are made up instead of computed, files below ``tuning/`` are the logs alone, and
builds share the cache entry of the first.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_cost import SerialIdeator

from croq_fsm import daemon
from croq_fsm.domain import guards
from croq_fsm.domain.build import Candidate
from croq_fsm.domain.records import Step
from croq_fsm.domain.session import Session
from croq_fsm.storage import expected, files, rebuild
from croq_fsm.storage.auditing import opened
from croq_fsm.storage.inspection import archive
from support.simulated import Night

#: Rounds that are really done before the last of them is copied.
REAL_ROUNDS = 16
_CHILDREN = 6
_BATCH = 500

Row = dict[str, Any]


def begin(path: Path) -> Night:
    """A night without a limit that was stopped after its first rounds; git is off."""
    night = Night.of(path, rounds=0, seed=3, git__commit=False, limits__plateau_rounds=0)
    night.task = night.task.model_copy(update={"rounds": None})
    continued(night, REAL_ROUNDS)
    return night


def continued(night: Night, rounds: int) -> None:
    """Go on for so many rounds, then drain."""
    with daemon.opened(night.root, night.config) as running:
        with running.repository.read() as reader:
            known = reader.sessions()
        session = known[0] if known else night._create(running)
        last = session.round + rounds

        def observe(_before: Session, _step: Step, after: Session) -> None:
            if after.round >= last:
                running.stop.set()

        running.run_session(session.id, observe, ideator=SerialIdeator())


@dataclass
class Copier:
    """Writes one round again under other numbers.

    Attributes:
        database: Open database.
        exact: Whether hashes of sources are computed.
        session: Row of the session.
        rows: Rows of the copied round, by table.
        steps: Transitions of a round.
        known: Blobs that are there.
    """

    database: sqlite3.Connection
    exact: bool
    session: Row = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    steps: int = 0
    wall_us: int = 0

    def load(self) -> None:
        """Read the last round."""
        self.database.row_factory = sqlite3.Row
        self.session = dict(self.database.execute("SELECT * FROM sessions").fetchone())
        latest = self.session["round"]
        for table in ("transitions", "ideas", "rounds", "iterations", "profiles", "builds",
                      "measurements", "artifacts", "tried"):  # fmt: skip
            self.rows[table] = self._of_round(table, latest)
        seqs = [row["seq"] for row in self.rows["transitions"]]
        found = self.database.execute(
            "SELECT * FROM intents WHERE seq BETWEEN ? AND ?", (min(seqs), max(seqs))
        )
        self.rows["intents"] = [dict(row) for row in found]
        self.steps = len(seqs)
        self.wall_us = round(self.rows["rounds"][0]["wall_s"] * 1e6) + 1
        wanted = [self.rows["iterations"][0]["candidate"]]
        wanted += [a["sha256"] for a in self.rows["artifacts"] if a["origin"] == "blob"]
        for key in wanted:
            data = self.database.execute("SELECT data FROM blobs WHERE sha256 = ?", (key,))
            self.texts[key] = zlib.decompress(data.fetchone()[0]).decode()

    def _of_round(self, table: str, number: int) -> list[Row]:
        found = self.database.execute(f"SELECT * FROM {table} WHERE round = ?", (number,))  # noqa: S608 - a constant
        return [dict(row) for row in found]

    def copy(self, count: int) -> None:
        """Write so many rounds, in transactions of many."""
        for first in range(1, count + 1, _BATCH):
            last = min(first + _BATCH, count + 1)
            batch: dict[str, list[Row]] = {}
            for step in range(first, last):
                for table, row in self._round(step):
                    batch.setdefault(table, []).append(row)
            with self.database:
                for table, written in batch.items():
                    names = ", ".join(written[0])
                    marks = ", ".join(f":{name}" for name in written[0])
                    self.database.executemany(
                        f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})",  # noqa: S608 - constants
                        written,
                    )
        self._finish(count)

    def _round(self, step: int) -> Iterator[tuple[str, Row]]:
        """Rows of the copy that lies ``step`` rounds behind the copied one."""
        old, number = self.session["round"], self.rows["iterations"][0]["number"]
        fresh: dict[str, str] = {
            f"SERIAL_{old:07d}": f"SERIAL_{old + step:07d}",
            f"iter{number:03d}": f"iter{number + step:03d}",
            f"_round{old}.": f"_round{old + step}.",
            f'"round":{old}': f'"round":{old + step}',
        }
        source = self._replaced(self.texts[self.rows["iterations"][0]["candidate"]], fresh)
        fresh |= self._hashes(step, Candidate.model_validate_json(source))
        blobs: dict[str, Row] = {}
        shas = {key: self._blob(text, fresh, blobs) for key, text in self.texts.items()}
        for table, rows in self.rows.items():
            for row in rows:
                yield table, self._row(table, row, step, {**fresh, **shas})
        yield from (("blobs", row) for row in blobs.values())
        yield from (("children", row) for row in self._children(step))

    def _hashes(self, step: int, candidate: Candidate) -> dict[str, str]:
        """New identities for those of the copied round."""
        normalised = self.rows["tried"][0]["normalised"]
        print_ = self.rows["ideas"][0]["fingerprint"]
        if not self.exact:
            return {old: _sha(f"{old}/{step}") for old in (normalised, print_)}
        base = self._base()
        return {
            normalised: guards.identity(candidate),
            print_: guards.fingerprint(candidate, base),
        }

    def _base(self) -> Candidate:
        number = self.rows["rounds"][0]["base"]
        found = self.database.execute(
            "SELECT data FROM blobs JOIN iterations ON blobs.sha256 = iterations.candidate "
            "WHERE number = ?",
            (number,),
        ).fetchone()
        return Candidate.model_validate_json(zlib.decompress(found[0]))

    def _replaced(self, text: str, fresh: dict[str, str]) -> str:
        for old, new in fresh.items():
            text = text.replace(old, new)
        return text

    def _blob(self, text: str, fresh: dict[str, str], blobs: dict[str, Row]) -> str:
        data = self._replaced(text, fresh).encode()
        key = hashlib.sha256(data).hexdigest()
        level = 6 if self.exact else 1
        blobs[key] = {"sha256": key, "size": len(data), "data": zlib.compress(data, level)}
        return key

    def _row(self, table: str, row: Row, step: int, fresh: dict[str, str]) -> Row:
        made = {
            name: self._replaced(value, fresh) if isinstance(value, str) else value
            for name, value in row.items()
        }
        made["session_id"] = row["session_id"]
        shifts = {
            "round": step, "seq": step * self.steps, "number": step, "iteration": step,
            "measurement": step * self.steps, "at": step * self.wall_us,
            "stored_at": step * self.wall_us, "opened_at": step * self.wall_us,
            "done_at": step * self.wall_us,
        }  # fmt: skip
        if table == "profiles":  # of the base, which stays
            del shifts["iteration"]
        for name, shift in shifts.items():
            if made.get(name) is not None and not (table == "artifacts" and name != "round"):
                made[name] = int(made[name]) + shift
        if table == "artifacts" and row["origin"] == "blob":
            made["size"] = len(self._replaced(self.texts[row["sha256"]], fresh).encode())
        return made

    def _children(self, step: int) -> Iterator[Row]:
        """As many as a round on a device starts: compilers, judge, benchmarks."""
        run = self.rows["transitions"][0]["run_id"]
        at = self.session["updated_at"] + step * self.wall_us
        for number in range(_CHILDREN):
            yield {
                "child_id": _sha(f"{step}/{number}")[:32], "run_id": run, "pid": 4711,
                "start_time": 1.0, "label": "bench", "argv": '["bench"]', "deadline_s": 60.0,
                "started_at": at, "ended_at": at, "ending": "exit 0",
            }  # fmt: skip

    def _finish(self, count: int) -> None:
        session = self.session
        counts = json.loads(session["counts"])
        decision = self.rows["rounds"][0]["decision"]
        counts[decision] = counts.get(decision, 0) + count
        macro = self.rows["rounds"][0]["macro_only"]
        with self.database:
            self.database.execute(
                "UPDATE sessions SET round = round + ?, seq = seq + ?, begun_seq = -1, "
                "next_iteration = next_iteration + ?, streak = streak + ?, macro_run = ?, "
                "counts = ?, updated_at = updated_at + ?",
                (count, count * self.steps, count, count, count if macro else 0,
                 json.dumps(counts, sort_keys=True, separators=(",", ":")),
                 count * self.wall_us),
            )  # fmt: skip


def grow(night: Night, rounds: int, *, exact: bool) -> None:
    """Let the history of a night end after so many rounds.

    Args:
        night: From ``begin``.
        rounds: Rounds that it has afterwards.
        exact: Compute all hashes and write all files, so that ``validate`` finds nothing.
    """
    database = sqlite3.connect(night.root.database)
    if not exact:
        database.execute("PRAGMA synchronous = OFF")
    copier = Copier(database, exact)
    copier.load()
    copier.copy(rounds - copier.session["round"])
    database.close()
    _write_logs(night)
    if exact:
        _write_files(night)


def _write_logs(night: Night) -> None:
    """The views, and their sizes in the session's row."""
    with opened(night.root.database) as auditor:
        session = auditor.sessions()[0]
        made = rebuild.rebuild(auditor, session, expected.layout_of(auditor, session))
    for path, text in {**made.logs, **made.snapshots}.items():
        files.write(night.root.path, path, text.encode())
    sizes = {path: len(text.encode()) for path, text in made.logs.items()}
    database = sqlite3.connect(night.root.database)
    with database:
        text = json.dumps(sizes, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        database.execute("UPDATE sessions SET log_sizes = ?", (text,))
    database.close()


def _write_files(night: Night) -> None:
    cached = expected.cache_reader(night.root.cache)
    with archive(night.root.database) as stored, stored.look() as reader:
        for file in expected.of_session(reader, reader.sessions()[0]):
            data = expected.content(reader, file, cached)
            if data is not None:
                files.write(night.root.path, file.path, data, mode=file.mode)


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
