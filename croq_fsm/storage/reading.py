"""Queries. Used by the states through the daemon's connection and by the faces read-only.

No query grows with the length of the history, except those that say so.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    text,
)

from croq_fsm.domain.build import Candidate
from croq_fsm.domain.measurement import Samples, Verification
from croq_fsm.domain.profile import Profile
from croq_fsm.domain.records import Attempt, Iteration, Round
from croq_fsm.domain.session import Session
from croq_fsm.domain.states import Decision, Outcome, State
from croq_fsm.domain.work import Idea
from croq_fsm.errors import UsageError
from croq_fsm.storage import rows, schema

#: States that use the device, and outcomes that are waits for it.
_ON_DEVICE = tuple(s.name for s in (State.BASELINE, State.PROFILE, State.MEASURE))
_WAITED = tuple(o.name for o in (Outcome.CONTENDED, Outcome.BUSY))


@dataclass(frozen=True)
class StoredMeasurement:
    """Samples or checks with the key under which they are stored."""

    seq: int
    round: int
    kind: str
    samples: Samples | None
    verification: Verification | None
    environment: dict[str, str]


@dataclass(frozen=True)
class OpenIntent:
    """An effect that is promised but not known to be done."""

    session_id: str
    seq: int
    part: int
    kind: str
    payload: dict[str, Any]


def _keyed(table: Any, column: str, *wanted: Any) -> Select[Any]:
    """One session's rows with a value in a column."""
    key = table.c[column] == bindparam("key")
    return select(*(wanted or [table])).where(and_(table.c.session_id == bindparam("session"), key))


# Asked many times a round; making a query anew costs more than asking it.
_SESSION = select(schema.sessions).where(schema.sessions.c.id == bindparam("key"))
_BLOB = select(schema.blobs.c.data).where(schema.blobs.c.sha256 == bindparam("key"))
_ITERATION = _keyed(schema.iterations, "number")
_TRIED = _keyed(schema.tried, "normalised", schema.tried.c.round)
_TAKEN = _keyed(schema.ideas, "fingerprint", schema.ideas.c.round)
_MEASUREMENTS = (
    select(schema.measurements)
    .where(
        and_(
            schema.measurements.c.session_id == bindparam("session"),
            schema.measurements.c.seq.in_(bindparam("keys", expanding=True)),
        )
    )
    .order_by(schema.measurements.c.seq, schema.measurements.c.part)
)

# From one structure to the next by the index, and the fastest of each: as long as there are
# structures, not as long as the history. Asked in order of speed alone, a night that only turned
# numbers would be read whole.
_FASTEST_OTHER = text(
    """
    WITH RECURSIVE kinds(kind) AS (
        SELECT min(structure) FROM iterations WHERE session_id = :session
        UNION ALL
        SELECT (
            SELECT min(structure) FROM iterations
            WHERE session_id = :session AND structure > kinds.kind
        ) FROM kinds WHERE kinds.kind IS NOT NULL
    )
    SELECT * FROM iterations WHERE session_id = :session AND number IN (
        SELECT (
            SELECT number FROM iterations
            WHERE session_id = :session AND structure = kinds.kind AND +number > 0
            ORDER BY seconds LIMIT 1
        ) FROM kinds WHERE kinds.kind IS NOT NULL AND kinds.kind != :structure
    ) ORDER BY seconds, number LIMIT 1
    """
)


class Reader:
    """Typed queries over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def session(self, session_id: str) -> Session:
        """The session. UsageError when there is none of that id (a unique prefix will do)."""
        exact = self._connection.execute(_SESSION, {"key": session_id}).mappings().first()
        if exact is not None:
            return rows.session(exact)
        query = select(schema.sessions).where(schema.sessions.c.id.startswith(session_id)).limit(2)
        found = list(self._all(query))
        if not found:
            raise UsageError(f"no session {session_id!r}; 'croq-fsm status' lists them")
        if len(found) > 1:
            raise UsageError(
                f"{session_id!r} is the beginning of several sessions; give more of it"
            )
        return rows.session(found[0])

    def sessions(self) -> list[Session]:
        """All sessions, newest first; grows with their number."""
        newest = schema.sessions.c.created_at.desc(), schema.sessions.c.id.desc()
        query = select(schema.sessions).order_by(*newest)
        return [rows.session(row) for row in self._all(query)]

    def config(self, session_id: str) -> dict[str, Any]:
        """The effective configuration that the session was started with."""
        query = select(schema.sessions.c.config).where(schema.sessions.c.id == session_id)
        value: dict[str, Any] = json.loads(self._connection.execute(query).scalar_one())
        return value

    def iteration(self, session_id: str, number: int) -> Iteration:
        """A measured kernel. Raises LookupError when there is none of that number."""
        key = {"session": session_id, "key": number}
        row = self._connection.execute(_ITERATION, key).mappings().first()
        if row is None:
            raise LookupError(f"session {session_id} has no iteration {number}")
        return self._iteration(row)

    def iterations(self, session_id: str) -> list[Iteration]:
        """All measured kernels in order; grows with the history."""
        table = schema.iterations
        query = select(table).where(table.c.session_id == session_id).order_by(table.c.number)
        return [self._iteration(row) for row in self._all(query)]

    def fastest_other(self, session_id: str, structure: dict[str, str]) -> Iteration | None:
        """The fastest measured kernel whose structure differs, the library excepted."""
        key = {"session": session_id, "structure": rows.structure_text(structure)}
        row = self._connection.execute(_FASTEST_OTHER, key).mappings().first()
        return None if row is None else self._iteration(row)

    def recent_rounds(self, session_id: str, limit: int) -> list[Round]:
        """The latest rounds, oldest first."""
        table = schema.rounds
        query = (
            select(table)
            .where(table.c.session_id == session_id)
            .order_by(table.c.round.desc())
            .limit(limit)
        )
        return [rows.round_record(row) for row in reversed(list(self._all(query)))]

    def rounds(self, session_id: str) -> list[Round]:
        """All rounds in order; grows with the history."""
        table = schema.rounds
        query = select(table).where(table.c.session_id == session_id).order_by(table.c.round)
        return [rows.round_record(row) for row in self._all(query)]

    def is_tried(self, session_id: str, normalised: str) -> bool:
        """Whether a candidate with this normalised hash was tried in the session."""
        key = {"session": session_id, "key": normalised}
        return self._connection.execute(_TRIED, key).first() is not None

    def has_fingerprint(self, session_id: str, fingerprint: str) -> bool:
        """Whether an idea with this fingerprint was taken in the session."""
        key = {"session": session_id, "key": fingerprint}
        return self._connection.execute(_TAKEN, key).first() is not None

    def last_idea(self, session_id: str) -> tuple[int, Idea] | None:
        """Round and idea that were taken last."""
        table = schema.ideas
        query = (
            select(table.c.round, table.c.idea)
            .where(table.c.session_id == session_id)
            .order_by(table.c.round.desc())
            .limit(1)
        )
        row = self._connection.execute(query).first()
        return None if row is None else (row[0], Idea.model_validate_json(row[1]))

    def profile(self, session_id: str, binary: str, *, full: bool) -> tuple[Profile, str] | None:
        """A stored profile of a binary and its CSV; a full one also answers for the small set."""
        table = schema.profiles
        wanted = [table.c.session_id == session_id, table.c.binary == binary]
        if full:
            wanted.append(table.c.full_set == 1)
        query = (
            select(table.c.profile, table.c.csv)
            .where(and_(*wanted))
            .order_by(table.c.seq.desc())
            .limit(1)
        )
        row = self._connection.execute(query).first()
        if row is None:
            return None
        return Profile.model_validate_json(row[0]), self.text(row[1]) if row[1] else ""

    def last_profile(self, session_id: str, round_: int) -> tuple[Profile, str, int] | None:
        """Profile of a round, its CSV and the iteration that it belongs to."""
        table = schema.profiles
        query = (
            select(table)
            .where(and_(table.c.session_id == session_id, table.c.round == round_))
            .order_by(table.c.seq.desc())
            .limit(1)
        )
        row = next(iter(self._all(query)), None)
        if row is None:
            return None
        csv = self.text(row["csv"]) if row["csv"] else ""
        return Profile.model_validate_json(row["profile"]), csv, row["iteration"]

    def measurements(self, session_id: str, seqs: Iterable[int]) -> list[StoredMeasurement]:
        """Measurements written by the given transitions, in order."""
        key = {"session": session_id, "keys": list(seqs)}
        found = self._connection.execute(_MEASUREMENTS, key).mappings()
        return [_measurement(row) for row in found]

    def measurements_of_round(self, session_id: str, round_: int) -> list[StoredMeasurement]:
        """All measurements of a round, in order."""
        table = schema.measurements
        query = (
            select(table)
            .where(and_(table.c.session_id == session_id, table.c.round == round_))
            .order_by(table.c.seq, table.c.part)
        )
        return [_measurement(row) for row in self._all(query)]

    def attempts_of_round(self, session_id: str, round_: int) -> list[tuple[Attempt, int]]:
        """Failed attempts of a round with the time (UTC µs) at which each was stored."""
        table = schema.attempts
        query = (
            select(table)
            .where(and_(table.c.session_id == session_id, table.c.round == round_))
            .order_by(table.c.ordinal)
        )
        return [(self._attempt(row), row["at"]) for row in self._all(query)]

    def build_texts(self, session_id: str, key: str) -> tuple[str, str]:
        """Build log and generated source of the build with that key; empty when unknown."""
        table = schema.builds
        query = (
            select(table.c.log, table.c.generated)
            .where(and_(table.c.session_id == session_id, table.c.key == key))
            .order_by(table.c.seq.desc())
            .limit(1)
        )
        row = self._connection.execute(query).first()
        return ("", "") if row is None else (self.text(row[0]), self.text(row[1]))

    def artifacts(self, session_id: str) -> list[dict[str, Any]]:
        """All artifact rows; grows with the history."""
        table = schema.artifacts
        query = select(table).where(table.c.session_id == session_id).order_by(table.c.path)
        return [dict(row) for row in self._all(query)]

    def artifact_paths(self, session_id: str, since_round: int) -> list[str]:
        """Paths of artifacts of that round and later ones, binaries excepted."""
        table = schema.artifacts
        query = select(table.c.path).where(
            and_(
                table.c.session_id == session_id,
                table.c.round >= since_round,
                table.c.kind != "binary",
            )
        )
        return sorted(str(row["path"]) for row in self._all(query))

    def open_intents(self, session_id: str | None = None) -> list[OpenIntent]:
        """Effects not known to be done, oldest first."""
        table = schema.intents
        query = select(table).where(table.c.done_at.is_(None)).order_by(table.c.seq, table.c.part)
        if session_id is not None:
            query = query.where(table.c.session_id == session_id)
        return [
            OpenIntent(r["session_id"], r["seq"], r["part"], r["kind"], json.loads(r["payload"]))
            for r in self._all(query)
        ]

    def transitions(self, session_id: str, limit: int | None = None) -> list[dict[str, Any]]:
        """Transition rows, oldest first; the latest ``limit`` of them when given."""
        table = schema.transitions
        query = select(table).where(table.c.session_id == session_id).order_by(table.c.seq.desc())
        if limit is not None:
            query = query.limit(limit)
        return [dict(row) for row in reversed(list(self._all(query)))]

    def turns(self, session_id: str) -> list[tuple[int, str, int]]:
        """Place in the order of all sessions' commits, outcome and round of each transition.

        No clock is asked for the order: one that was set back would turn it round.
        """
        table = schema.transitions
        place: ColumnElement[int] = literal_column("transitions.rowid")
        query = select(place, table.c.outcome, table.c.round).where(
            table.c.session_id == session_id
        )
        rows = self._connection.execute(query.order_by(table.c.seq))
        return [(row[0], row[1], row[2]) for row in rows]

    def round_began_at(self, session_id: str, round_: int) -> int | None:
        """Time (UTC µs) of the first transition of a round."""
        table = schema.transitions
        query = select(func.min(table.c.at)).where(
            and_(table.c.session_id == session_id, table.c.round == round_)
        )
        value: int | None = self._connection.execute(query).scalar_one()
        return value

    def hints(self, session_id: str, limit: int) -> list[str]:
        """The user's latest hints for this session or for all, oldest first."""
        table = schema.messages
        query = (
            select(table.c.text)
            .where(
                and_(
                    table.c.kind == "hint",
                    (table.c.session_id == session_id) | table.c.session_id.is_(None),
                )
            )
            .order_by(table.c.created_at.desc())
            .limit(limit)
        )
        return [str(row["text"]) for row in reversed(list(self._all(query)))]

    def last_message(self, session_id: str, kind: str) -> str | None:
        """Text of the session's latest message of a kind."""
        table = schema.messages
        query = (
            select(table.c.text)
            .where(and_(table.c.session_id == session_id, table.c.kind == kind))
            .order_by(table.c.created_at.desc())
            .limit(1)
        )
        found: str | None = self._connection.execute(query).scalar_one_or_none()
        return found

    def device_seconds(self, session_id: str) -> float:
        """Seconds spent in the states that use the device, back-offs and downtime left out."""
        table = schema.transitions
        steps = (
            select(
                table.c.from_state,
                table.c.outcome,
                table.c.run_id,
                table.c.at,
                func.lag(table.c.at).over(order_by=table.c.seq).label("since"),
                func.lag(table.c.run_id).over(order_by=table.c.seq).label("before"),
            )
            .where(table.c.session_id == session_id)
            .subquery()
        )
        query = select(func.coalesce(func.sum(steps.c.at - steps.c.since), 0)).where(
            and_(
                steps.c.from_state.in_(_ON_DEVICE),
                steps.c.outcome.not_in(_WAITED),
                steps.c.run_id == steps.c.before,
            )
        )
        return float(self._connection.execute(query).scalar_one()) / 1e6

    def tokens(self, session_id: str) -> int:
        """Tokens that calls of the session's ideators count for."""
        table = schema.calls
        query = select(func.coalesce(func.sum(table.c.charged_tokens), 0)).where(
            table.c.session_id == session_id
        )
        return int(self._connection.execute(query).scalar_one())

    def last_run(self) -> dict[str, Any] | None:
        """The latest daemon run."""
        table = schema.runs
        query = select(table).order_by(table.c.started_at.desc()).limit(1)
        row = next(iter(self._all(query)), None)
        return None if row is None else dict(row)

    def open_runs(self, except_for: str) -> list[str]:
        """Runs that never said goodbye, newest first."""
        table = schema.runs
        query = (
            select(table.c.run_id)
            .where(and_(table.c.ended_at.is_(None), table.c.run_id != except_for))
            .order_by(table.c.started_at.desc())
        )
        return [str(row["run_id"]) for row in self._all(query)]

    def open_child_since(self, label: str) -> float | None:
        """UTC seconds at which the oldest child of that label began that nobody saw end."""
        table = schema.children
        query = select(func.min(table.c.started_at)).where(
            and_(table.c.label == label, table.c.ended_at.is_(None))
        )
        found = self._connection.execute(query).scalar_one()
        return None if found is None else found / 1e6

    def decision_counts(self, session_id: str) -> dict[Decision, int]:
        """Rounds by decision, counted from the rows; grows with the history."""
        table = schema.rounds
        query = (
            select(table.c.decision, func.count().label("n"))
            .where(table.c.session_id == session_id)
            .group_by(table.c.decision)
        )
        return {Decision[row["decision"]]: row["n"] for row in self._all(query)}

    def text(self, sha256: str) -> str:
        """A stored text."""
        return self.blob(sha256).decode()

    def blob(self, sha256: str) -> bytes:
        """A stored content. Raises LookupError when it is not there."""
        data = self._connection.execute(_BLOB, {"key": sha256}).scalar_one_or_none()
        if data is None:
            raise LookupError(f"no stored content {sha256}")
        return zlib.decompress(data)

    def _iteration(self, row: RowMapping) -> Iteration:
        candidate = row["candidate"]
        return Iteration(
            number=row["number"],
            name=row["name"],
            round=row["round"],
            decision=Decision[row["decision"]],
            candidate=None if candidate is None else self._candidate(candidate),
            build=rows.build_or_none(row["build"]),
            structure=json.loads(row["structure"]),
            seconds=row["seconds"],
            library_seconds=row["library_seconds"],
            estimate=rows.estimate_or_none(row["estimate"]),
            measurement=row["measurement"],
            self_reported=bool(row["self_reported"]),
        )

    def _attempt(self, row: RowMapping) -> Attempt:
        return Attempt(
            round=row["round"],
            number=row["number"],
            ordinal=row["ordinal"],
            name=row["name"],
            kind=Decision[row["kind"]],
            message=row["message"],
            log=self.text(row["log"]),
            candidate=self._candidate(row["candidate"]),
            normalised="",
        )

    def _candidate(self, sha256: str) -> Candidate:
        return Candidate.model_validate_json(self.blob(sha256))

    def _all(self, query: Select[Any]) -> Iterable[RowMapping]:
        return self._connection.execute(query).mappings()


def _measurement(row: RowMapping) -> StoredMeasurement:
    checks = row["verification"]
    return StoredMeasurement(
        seq=row["seq"],
        round=row["round"],
        kind=row["kind"],
        samples=rows.unpack_samples(row["samples"]),
        verification=None if checks is None else Verification.model_validate_json(checks),
        environment=json.loads(row["environment"] or "{}"),
    )
