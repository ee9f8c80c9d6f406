"""Imported sessions in the database: claims of other programs, apart from everything measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, inspect, select

from croq_fsm.storage import schema


@dataclass(frozen=True)
class ImportedSession:
    """A session that somebody else recorded.

    Attributes:
        id: Name.
        imported_at: UTC microseconds.
        gpu: Device key, as its folder was called.
        dsl: DSL, as its folder was called.
        shape_key: Shape key, as its folder was called.
        model: Who proposed.
        findings: Kind of irregularity → how often.
        rows: Rows of its table of results.
        suspect: Rows of any file with a reason against them.
        claimed: Largest rate that its table claims for something kept; never a record.
        claimed_by: Kernel of that claim.
    """

    id: str
    imported_at: int
    gpu: str
    dsl: str
    shape_key: str
    model: str
    findings: dict[str, int]
    rows: int
    suspect: int
    claimed: float | None
    claimed_by: str


def put(connection: Connection, session: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Store a session; ``new``, ``changed`` or ``unchanged`` by its digest."""
    table = schema.imported_sessions
    known = connection.execute(
        select(table.c.digest).where(table.c.id == session["id"])
    ).scalar_one_or_none()
    if known == session["digest"]:
        return "unchanged"
    for old in (schema.imported_rows, schema.imported_sessions):
        key = old.c.import_id if old is schema.imported_rows else old.c.id
        connection.execute(delete(old).where(key == session["id"]))
    connection.execute(insert(table).values(**session))
    if rows:
        connection.execute(insert(schema.imported_rows), rows)
    return "new" if known is None else "changed"


def sessions(connection: Connection) -> list[ImportedSession]:
    """All imported sessions; none in a database of before there were any."""
    if not inspect(connection).has_table("imported_sessions"):
        return []
    table = schema.imported_sessions
    query = select(table).order_by(table.c.gpu, table.c.dsl, table.c.shape_key, table.c.model)
    return [_session(connection, dict(row)) for row in connection.execute(query).mappings()]


def rows_of(connection: Connection, import_id: str) -> list[dict[str, Any]]:
    """Rows of an imported session in their order."""
    table = schema.imported_rows
    query = select(table).where(table.c.import_id == import_id).order_by(table.c.ordinal)
    found = [dict(row) for row in connection.execute(query).mappings()]
    return [{**row, "suspect": json.loads(row["suspect"])} for row in found]


def _session(connection: Connection, row: dict[str, Any]) -> ImportedSession:
    table = schema.imported_rows
    mine = table.c.import_id == row["id"]
    listed = select(func.count()).where(mine, table.c.origin == "tsv")
    doubted = select(func.count()).where(mine, table.c.suspect != "[]")
    best = connection.execute(
        select(table.c.tflops, table.c.kernel)
        .where(mine, table.c.origin == "tsv", table.c.decision == "KEEP", table.c.iteration != 0)
        .order_by(table.c.tflops.desc())
        .limit(1)
    ).first()
    return ImportedSession(
        id=row["id"],
        imported_at=row["imported_at"],
        gpu=row["gpu"],
        dsl=row["dsl"],
        shape_key=row["shape_key"],
        model=row["model"],
        findings=json.loads(row["findings"]),
        rows=connection.execute(listed).scalar_one(),
        suspect=connection.execute(doubted).scalar_one(),
        claimed=best[0] if best else None,
        claimed_by=best[1] if best else "",
    )
