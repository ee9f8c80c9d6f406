"""Calls of models in the database and in the report."""

from __future__ import annotations

from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from croq_fsm.domain.calls import CallBegun, CallEnded, CallOutcome
from croq_fsm.report import calls
from croq_fsm.storage import schema
from croq_fsm.storage.calls import SessionLedger, calls_of
from support.bench import Bench
from support.scripted import ScriptedIdeator

_DAY_S = 86400.0


def begun(name: str, usd: float = 0.5) -> CallBegun:
    """A call that may cost a thousand tokens."""
    return CallBegun(
        id=name,
        ideator="claude",
        provider="anthropic",
        model="claude-9",
        purpose="propose",
        round=1,
        prompt_sha256="0" * 64,
        reserved_tokens=1000,
        reserved_usd=usd,
    )


OK = CallEnded(CallOutcome.OK, 100, 20, 0.01, 120, 0.01, "1" * 64, 2.0)


def test_calls_are_kept_and_summed(tmp_path: Path) -> None:
    """What is in flight counts with all it may cost, by session and by time; ends settle it."""
    bench = Bench(tmp_path, ScriptedIdeator([]))
    now = 1_800_000_000.0
    ledger = SessionLedger(bench.repository, bench.session_id, "run", lambda: now)
    ledger.begin(begun("a"))
    ledger.begin(begun("b"))
    assert (ledger.spent().calls, ledger.spent().tokens, ledger.spent().usd) == (2, 2000, 1.0)
    ledger.end("a", OK)
    assert (ledger.spent().tokens, ledger.spent().usd) == (1120, 0.51)
    other = SessionLedger(bench.repository, bench._create(), "run", lambda: now)
    assert other.spent().calls == 0
    assert other.spent(since=now - _DAY_S).tokens == 1120
    assert other.spent(since=now + 1).calls == 0
    with bench.repository.write() as connection:
        first, second = calls_of(connection, bench.session_id)
    bench.close()
    assert first.ended == OK
    assert second.ended.outcome is CallOutcome.IN_FLIGHT


def test_the_report_tells_what_each_day_cost(tmp_path: Path) -> None:
    """A line a day and model: calls by outcome, tokens, money, and what nobody told."""
    bench = Bench(tmp_path, ScriptedIdeator([]))
    at = [1_800_000_000.0]
    ledger = SessionLedger(bench.repository, bench.session_id, "run", lambda: at[0])
    for name in ("a", "b"):
        ledger.begin(begun(name))
        ledger.end(name, OK)
    ledger.begin(begun("c"))
    at[0] += _DAY_S
    ledger.begin(begun("d"))
    ledger.end("d", CallEnded(CallOutcome.RATE_LIMITED, latency_s=0.5))
    with bench.repository.write() as connection:
        lines = calls.lines(calls_of(connection, bench.session_id))
    bench.close()
    assert lines == [
        (
            "2027-01-15  claude (claude-9): 3 calls (2 ok, 1 in_flight), 240 tokens, 0.0200 USD "
            "(and up to 0.5000 untold), median 2.0 s"
        ),
        (
            "2027-01-16  claude (claude-9): 1 calls (1 rate_limited), 0 tokens, 0.0000 USD, "
            "median 0.5 s"
        ),
    ]
    assert calls.lines([]) == []


def test_the_schema_is_what_the_migrations_make(tmp_path: Path) -> None:
    """No table, column or index is in one of the two only."""
    bench = Bench(tmp_path, ScriptedIdeator([]))
    with bench.engine.connect() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []
    bench.close()
