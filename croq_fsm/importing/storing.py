"""Read sessions into the database, once."""

from __future__ import annotations

import json
from typing import Any

from croq_fsm.importing.reading import Imported
from croq_fsm.storage import imports
from croq_fsm.storage.repository import Repository


def store(repository: Repository, found: list[Imported], at: int) -> dict[str, str]:
    """Store each session in a transaction of its own; what became of it, by name."""
    done = {}
    for session in found:
        with repository.write() as connection:
            done[session.id] = imports.put(connection, _values(session, at), _rows(session))
    return done


def _values(session: Imported, at: int) -> dict[str, Any]:
    return {
        "id": session.id,
        "imported_at": at,
        "gpu": session.gpu,
        "dsl": session.dsl,
        "shape_key": session.shape_key,
        "model": session.model,
        "digest": session.digest,
        "findings": json.dumps(session.findings),
    }


def _rows(session: Imported) -> list[dict[str, Any]]:
    return [
        {
            "import_id": session.id,
            "ordinal": ordinal,
            "origin": row.origin,
            "line": row.line,
            "raw": row.raw,
            "iteration": row.iteration,
            "kernel": row.kernel,
            "tflops": row.tflops,
            "decision": row.decision,
            "bottleneck": row.bottleneck,
            "summary": row.summary,
            "stated_at": row.stated_at,
            "suspect": json.dumps(list(row.suspect)),
        }
        for ordinal, row in enumerate(session.rows)
    ]
