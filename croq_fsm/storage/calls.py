"""Calls of ideators in the database: written before they start, closed when they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, RowMapping, func, insert, inspect, select, update

from croq_fsm.domain.calls import Call, CallBegun, CallEnded, CallOutcome, Spent
from croq_fsm.storage import schema

if TYPE_CHECKING:  # readers of this module write nothing
    from croq_fsm.storage.repository import Repository

_LONGEST_DETAIL = 500


@dataclass(frozen=True)
class SessionLedger:
    """The ledger port of one session, on the daemon's repository.

    Attributes:
        repository: The database.
        session_id: Session whose calls these are.
        run_id: This start of the daemon.
        now: UTC seconds.
    """

    repository: Repository
    session_id: str
    run_id: str
    now: Callable[[], float]

    def begin(self, call: CallBegun) -> None:
        """Write the call with all that it may cost, before it is started."""
        values = {
            "id": call.id,
            "session_id": self.session_id,
            "run_id": self.run_id,
            "round": call.round,
            "ideator": call.ideator,
            "provider": call.provider,
            "model": call.model,
            "purpose": call.purpose,
            "prompt_sha256": call.prompt_sha256,
            "started_at": int(self.now() * 1e6),
            "outcome": CallOutcome.IN_FLIGHT.name,
            "charged_tokens": call.reserved_tokens,
            "charged_usd": call.reserved_usd,
            "answer_sha256": "",
            "detail": "",
        }
        with self.repository.write() as connection:
            connection.execute(insert(schema.calls).values(**values))

    def end(self, call_id: str, ended: CallEnded) -> None:
        """Write what came of it."""
        table = schema.calls
        with self.repository.write() as connection:
            connection.execute(
                update(table)
                .where(table.c.id == call_id)
                .values(
                    outcome=ended.outcome.name,
                    input_tokens=ended.input_tokens,
                    output_tokens=ended.output_tokens,
                    usd=ended.usd,
                    charged_tokens=ended.charged_tokens,
                    charged_usd=ended.charged_usd,
                    answer_sha256=ended.answer_sha256,
                    latency_s=ended.latency_s,
                    detail=ended.detail[:_LONGEST_DETAIL],
                )
            )

    def spent(self, *, since: float | None = None) -> Spent:
        """Cost of this session's calls, or of all sessions' since a UTC time."""
        table = schema.calls
        sums = select(
            func.count(),
            func.coalesce(func.sum(table.c.charged_tokens), 0),
            func.coalesce(func.sum(table.c.charged_usd), 0.0),
        )
        query = (
            sums.where(table.c.session_id == self.session_id)
            if since is None
            else sums.where(table.c.started_at >= int(since * 1e6))
        )
        with self.repository.write() as connection:
            calls, tokens, usd = connection.execute(query).one()
        return Spent(calls=calls, tokens=int(tokens), usd=float(usd))


def calls_of(connection: Connection, session_id: str) -> list[Call]:
    """Calls of a session, oldest first; none in a database of before there were any."""
    if not inspect(connection).has_table("calls"):
        return []
    table = schema.calls
    query = select(table).where(table.c.session_id == session_id).order_by(table.c.started_at)
    return [_call(row) for row in connection.execute(query).mappings()]


def _call(row: RowMapping) -> Call:
    return Call(
        begun=CallBegun(
            id=row["id"],
            ideator=row["ideator"],
            provider=row["provider"],
            model=row["model"],
            purpose=row["purpose"],
            round=row["round"],
            prompt_sha256=row["prompt_sha256"],
        ),
        ended=CallEnded(
            outcome=CallOutcome[row["outcome"]],
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            usd=row["usd"],
            charged_tokens=row["charged_tokens"],
            charged_usd=row["charged_usd"],
            answer_sha256=row["answer_sha256"],
            latency_s=row["latency_s"] or 0.0,
            detail=row["detail"],
        ),
        started_at=row["started_at"],
    )
