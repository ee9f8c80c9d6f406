"""Writing the parts of a transition: records, contents, promised effects.

Only ``repository`` calls this, inside the transaction of the transition.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Final, assert_never

from sqlalchemy import Connection, bindparam, insert, select, update
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from croq_fsm.domain import guards
from croq_fsm.domain.records import (
    Attempt,
    BuildDone,
    Effect,
    Facts,
    IdeaTaken,
    Iteration,
    Measured,
    ProfileTaken,
    Record,
    Round,
)
from croq_fsm.domain.source import sha256
from croq_fsm.storage import rows, schema

_OF_FILE: Final = ("path", "kind", "sha256", "size", "mode", "origin", "round")

# Made once: making a statement anew costs more than running it.
_KNOWN = select(schema.blobs.c.size).where(schema.blobs.c.sha256 == bindparam("key"))
_TRIED = sqlite_insert(schema.tried).on_conflict_do_nothing()
_NEW_ARTIFACT = sqlite_insert(schema.artifacts)
_ARTIFACT = _NEW_ARTIFACT.on_conflict_do_update(
    index_elements=["session_id", "path"],
    set_={name: _NEW_ARTIFACT.excluded[name] for name in _OF_FILE if name != "path"},
)


class RecordWriter:
    """Writes the records of one transition."""

    def __init__(
        self, connection: Connection, session_id: str, seq: int, part: int, at: int
    ) -> None:
        self._connection = connection
        self._key = {"session_id": session_id}
        self._seq = {"session_id": session_id, "seq": seq}
        self._part = part
        self._at = at

    def write(self, record: Record) -> None:
        """Dispatch on the kind of record; total by construction."""
        match record:
            case Facts():
                self._facts(record)
            case Iteration():
                self._iteration(record)
            case IdeaTaken():
                self._idea(record)
            case Attempt():
                self._attempt(record)
            case ProfileTaken():
                self._profile(record)
            case BuildDone():
                self._build(record)
            case Measured():
                self._measured(record)
            case Round():
                self._insert(schema.rounds, **self._key, **rows.round_row(record))
            case _:
                assert_never(record)

    def _insert(self, table: Any, **values: Any) -> None:
        self._connection.execute(insert(table), values)

    def _facts(self, record: Facts) -> None:
        values: dict[str, Any] = {}
        if record.device is not None:
            values |= {"device": record.device.model_dump_json(), "gpu": record.device.key}
        if record.dialect is not None:
            values["dialect"] = rows.dumps(record.dialect)
        if record.noise is not None:
            values["noise"] = record.noise
        if record.task is not None:
            values["task"] = record.task.model_dump_json()
        if record.tried is not None:
            self._tried(record.tried, 0)
        if values:
            self._connection.execute(
                update(schema.sessions)
                .where(schema.sessions.c.id == self._key["session_id"])
                .values(**values)
            )

    def _iteration(self, record: Iteration) -> None:
        self._insert(
            schema.iterations,
            **self._key,
            number=record.number,
            name=record.name,
            round=record.round,
            decision=record.decision.name,
            candidate=None if record.candidate is None else self._json_blob(record.candidate),
            build=None if record.build is None else record.build.model_dump_json(),
            structure=rows.structure_text(record.structure),
            seconds=record.seconds,
            library_seconds=record.library_seconds,
            estimate=None if record.estimate is None else record.estimate.model_dump_json(),
            measurement=record.measurement,
            self_reported=int(record.self_reported),
        )
        if record.candidate is not None:
            # After a repair this is another candidate than the one of the idea.
            self._tried(guards.identity(record.candidate), record.round)

    def _idea(self, record: IdeaTaken) -> None:
        self._insert(
            schema.ideas,
            **self._key,
            round=record.round,
            fingerprint=record.idea.fingerprint,
            idea=record.idea.model_dump_json(),
            refused=rows.dumps(record.refused),
        )
        self._tried(record.normalised, record.round)

    def _attempt(self, record: Attempt) -> None:
        self._insert(
            schema.attempts,
            **self._key,
            ordinal=record.ordinal,
            round=record.round,
            number=record.number,
            name=record.name,
            kind=record.kind.name,
            message=record.message,
            log=put_blob(self._connection, record.log.encode()),
            candidate=self._json_blob(record.candidate),
            at=self._at,
        )
        self._tried(record.normalised, record.round)

    def _profile(self, record: ProfileTaken) -> None:
        profile = record.profile
        self._insert(
            schema.profiles,
            **self._seq,
            round=record.round,
            iteration=record.iteration,
            binary=profile.binary,
            full_set=int(profile.full),
            bottleneck=profile.bottleneck.name,
            confidence=profile.confidence,
            profile=profile.model_dump_json(),
            csv=put_blob(self._connection, record.csv.encode()) if record.csv else "",
        )

    def _build(self, record: BuildDone) -> None:
        self._insert(
            schema.builds,
            **self._seq,
            round=record.round,
            key=record.build.key,
            build=record.build.model_dump_json(),
            log=put_blob(self._connection, record.log.encode()),
            generated=put_blob(self._connection, record.generated.encode()),
        )

    def _measured(self, record: Measured) -> None:
        checks = record.verification
        self._insert(
            schema.measurements,
            **self._seq,
            part=self._part,
            round=record.round,
            kind=record.kind,
            samples=rows.pack_samples(record.samples),
            verification=None if checks is None else checks.model_dump_json(),
            environment=None if record.environment is None else rows.dumps(record.environment),
        )

    def _tried(self, normalised: str, round_: int) -> None:
        self._connection.execute(_TRIED, {**self._key, "normalised": normalised, "round": round_})

    def _json_blob(self, value: Any) -> str:
        return put_blob(self._connection, value.model_dump_json().encode())


def open_intent(
    connection: Connection, key: dict[str, Any], part: int, effect: Effect, at: int
) -> None:
    """Promise an effect, with the content that it needs and the files it will leave."""
    artifacts = effect.payload.get("artifacts", ())
    if artifacts:
        _put_artifacts(connection, key["session_id"], artifacts)
    # Contents are in ``blobs`` now; the promise itself stays small.
    lean = [{name: v for name, v in a.items() if name != "text"} for a in artifacts]
    payload = {**effect.payload, "artifacts": lean} if artifacts else effect.payload
    promise = {"part": part, "kind": effect.kind, "payload": rows.dumps(payload), "opened_at": at}
    connection.execute(insert(schema.intents), {**key, **promise})


def put_blob(connection: Connection, data: bytes) -> str:
    """Store content once and return its SHA-256."""
    key = sha256(data)
    if connection.execute(_KNOWN, {"key": key}).first() is None:
        blob = {"sha256": key, "size": len(data), "data": zlib.compress(data)}
        connection.execute(insert(schema.blobs), blob)
    return key


def _put_artifacts(
    connection: Connection, session_id: str, artifacts: Iterable[dict[str, Any]]
) -> None:
    """Record files of a view; their texts, if they have any, become blobs."""
    for artifact in artifacts:
        if artifact.get("text") is not None:
            put_blob(connection, artifact["text"].encode())
    connection.execute(
        _ARTIFACT,
        [{"session_id": session_id, **{name: a[name] for name in _OF_FILE}} for a in artifacts],
    )
