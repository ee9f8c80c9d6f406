"""Tables of the database. Times are UTC microseconds; values of the domain are JSON text.

States, outcomes and decisions are stored by name. Large texts live once, compressed, in
``blobs`` under their SHA-256.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from croq_fsm.domain.calls import CallOutcome
from croq_fsm.domain.states import Decision, State, Status

#: ``PRAGMA application_id`` of our databases: the bytes "croq".
APPLICATION_ID: Final = 0x63726F71

metadata = MetaData()


def _one_of(column: str, names: list[str]) -> CheckConstraint:
    listed = ", ".join(f"'{name}'" for name in names)
    return CheckConstraint(f"{column} IN ({listed})", name=f"ck_{column}")


_STATES = [state.name for state in State]
_DECISIONS = [decision.name for decision in Decision]

sessions = Table(
    "sessions",
    metadata,
    Column("id", String, primary_key=True),
    Column("created_at", Integer, nullable=False),
    Column("updated_at", Integer, nullable=False),
    Column("fsm_version", Integer, nullable=False),
    Column("dsl", String, nullable=False),
    Column("shape_key", String, nullable=False),
    Column("model", String, nullable=False),
    Column("gpu", String, nullable=False),
    Column("task", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("dialect", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("config_hash", String, nullable=False),
    Column("seed", Integer, nullable=False),
    # Where the machine stands; compared and set with each transition.
    Column("state", String, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("reason", Text, nullable=False),
    Column("work", Text, nullable=False),
    # Begins of (state, seq), counted before the handler runs; parks poison sessions.
    Column("begun_seq", Integer, nullable=False),
    Column("begins", Integer, nullable=False),
    # Sums over the history, so that no round costs more than the one before.
    Column("round", Integer, nullable=False),
    Column("next_iteration", Integer, nullable=False),
    Column("next_attempt", Integer, nullable=False),
    Column("streak", Integer, nullable=False),
    Column("macro_run", Integer, nullable=False),
    Column("counts", Text, nullable=False),
    Column("log_sizes", Text, nullable=False),
    Column("best_iteration", Integer),
    Column("noise", Float),
    Column("library_seconds", Float),
    _one_of("state", _STATES),
    _one_of("status", [status.name for status in Status]),
)

transitions = Table(
    "transitions",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("at", Integer, nullable=False),
    Column("run_id", String, nullable=False),
    Column("from_state", String, nullable=False),
    Column("outcome", String, nullable=False),
    Column("to_state", String, nullable=False),
    Column("round", Integer, nullable=False),
    Column("detail", Text, nullable=False),
    PrimaryKeyConstraint("session_id", "seq"),
    Index("ix_transitions_round", "session_id", "round", "at"),
)

ideas = Table(
    "ideas",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("fingerprint", String, nullable=False),
    Column("idea", Text, nullable=False),
    Column("refused", Text, nullable=False),
    PrimaryKeyConstraint("session_id", "round"),
    UniqueConstraint("session_id", "fingerprint"),
)

#: Normalised hashes that must not be tried again: ideas, repairs and the baseline.
tried = Table(
    "tried",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("normalised", String, nullable=False),
    Column("round", Integer, nullable=False),
    PrimaryKeyConstraint("session_id", "normalised"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("number", Integer, nullable=False),
    Column("name", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("message", Text, nullable=False),
    Column("log", String, nullable=False),
    Column("candidate", String, nullable=False),
    Column("at", Integer, nullable=False),
    PrimaryKeyConstraint("session_id", "ordinal"),
    Index("ix_attempts_round", "session_id", "round"),
    _one_of("kind", _DECISIONS),
)

rounds = Table(
    "rounds",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("round", Integer, nullable=False),
    Column("iteration", Integer),
    Column("kernel", String, nullable=False),
    Column("base", Integer, nullable=False),
    Column("decision", String, nullable=False),
    Column("seconds", Float),
    Column("tflops", Float),
    Column("ratio", Float),
    Column("bottleneck", String, nullable=False),
    Column("category", String, nullable=False),
    Column("macro_only", Integer, nullable=False),
    Column("summary", Text, nullable=False),
    Column("hypothesis", Text, nullable=False),
    Column("expected_gain", Float, nullable=False),
    Column("levers", Text, nullable=False),
    Column("tag", String, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("ideator", String, nullable=False),
    Column("stored_at", Integer, nullable=False),
    Column("wall_s", Float, nullable=False),
    PrimaryKeyConstraint("session_id", "round"),
    UniqueConstraint("session_id", "iteration"),
    _one_of("decision", _DECISIONS),
)

iterations = Table(
    "iterations",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("name", String, nullable=False),
    Column("round", Integer, nullable=False),
    Column("decision", String, nullable=False),
    Column("candidate", String),
    Column("build", Text),
    Column("structure", Text, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("library_seconds", Float),
    Column("estimate", Text),
    Column("measurement", Integer, nullable=False),
    Column("self_reported", Integer, nullable=False),
    PrimaryKeyConstraint("session_id", "number"),
    Index("ix_iterations_speed", "session_id", "structure", "seconds"),
)

profiles = Table(
    "profiles",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("iteration", Integer, nullable=False),
    Column("binary", String, nullable=False),
    Column("full_set", Integer, nullable=False),
    Column("bottleneck", String, nullable=False),
    Column("confidence", String, nullable=False),
    Column("profile", Text, nullable=False),
    Column("csv", String, nullable=False),
    PrimaryKeyConstraint("session_id", "seq"),
    Index("ix_profiles_binary", "session_id", "binary"),
    Index("ix_profiles_round", "session_id", "round"),
)

builds = Table(
    "builds",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("key", String, nullable=False),
    Column("build", Text, nullable=False),
    Column("log", String, nullable=False),
    Column("generated", String, nullable=False),
    PrimaryKeyConstraint("session_id", "seq"),
    Index("ix_builds_key", "session_id", "key", "seq"),
)

measurements = Table(
    "measurements",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("part", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("kind", String, nullable=False),
    Column("samples", LargeBinary),
    Column("verification", Text),
    Column("environment", Text),
    PrimaryKeyConstraint("session_id", "seq", "part"),
    Index("ix_measurements_round", "session_id", "round"),
    # The few at an end of a session.
    Index("ix_measurements_final", "session_id", "seq", sqlite_where=text("kind = 'final'")),
)

#: Files under ``tuning/``: where they are, what they must hold, and where it can be had.
artifacts = Table(
    "artifacts",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("path", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("sha256", String, nullable=False),
    Column("size", Integer, nullable=False),
    Column("mode", Integer, nullable=False),
    # ``blob`` (text in this database) or ``cache:<relative path>`` (binaries, reports).
    Column("origin", String, nullable=False),
    Column("round", Integer, nullable=False),
    PrimaryKeyConstraint("session_id", "path"),
    Index("ix_artifacts_round", "session_id", "round"),
)

blobs = Table(
    "blobs",
    metadata,
    Column("sha256", String, primary_key=True),
    Column("size", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

intents = Table(
    "intents",
    metadata,
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("part", Integer, nullable=False),
    Column("kind", String, nullable=False),
    Column("payload", Text),
    Column("opened_at", Integer, nullable=False),
    Column("done_at", Integer),
    Column("result", Text),
    PrimaryKeyConstraint("session_id", "seq", "part"),
    # The open ones: few, however long the history.
    Index("ix_intents_open", "session_id", "seq", "part", sqlite_where=text("done_at IS NULL")),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("pid", Integer, nullable=False),
    Column("boot_id", String, nullable=False),
    Column("host", String, nullable=False),
    Column("started_at", Integer, nullable=False),
    Column("ended_at", Integer),
    Column("ending", Text),
)

children = Table(
    "children",
    metadata,
    Column("child_id", String, primary_key=True),
    Column("run_id", ForeignKey("runs.run_id"), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("start_time", Float, nullable=False),
    Column("label", String, nullable=False),
    Column("argv", Text, nullable=False),
    Column("deadline_s", Float, nullable=False),
    Column("started_at", Integer, nullable=False),
    Column("ended_at", Integer),
    Column("ending", Text),
    Index("ix_children_run", "run_id", "ended_at"),
    # Those that nobody saw end: few, however long the history.
    Index("ix_children_open", "run_id", sqlite_where=text("ended_at IS NULL")),
)

messages = Table(
    "messages",
    metadata,
    Column("id", String, primary_key=True),
    Column("session_id", String),
    Column("kind", String, nullable=False),
    Column("text", Text, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("taken_at", Integer, nullable=False),
    Index("ix_messages_session", "session_id", "kind"),
)

#: Calls of ideators to models and agents, each written before it is started.
calls = Table(
    "calls",
    metadata,
    Column("id", String, primary_key=True),
    Column("session_id", ForeignKey("sessions.id"), nullable=False),
    Column("run_id", String, nullable=False),
    Column("round", Integer, nullable=False),
    Column("ideator", String, nullable=False),
    Column("provider", String, nullable=False),
    Column("model", String, nullable=False),
    Column("purpose", String, nullable=False),
    Column("prompt_sha256", String, nullable=False),
    Column("started_at", Integer, nullable=False),
    Column("outcome", String, nullable=False),
    Column("input_tokens", Integer),
    Column("output_tokens", Integer),
    Column("usd", Float),
    # What counts against a budget: all that is reserved, until the end is known.
    Column("charged_tokens", Integer, nullable=False),
    Column("charged_usd", Float, nullable=False),
    Column("answer_sha256", String, nullable=False),
    Column("latency_s", Float),
    Column("detail", Text, nullable=False),
    Index("ix_calls_session", "session_id", "started_at"),
    Index("ix_calls_time", "started_at"),
    _one_of("outcome", [outcome.name for outcome in CallOutcome]),
)

#: Sessions of other programs, as their files told them. Nothing in here is a measurement.
imported_sessions = Table(
    "imported_sessions",
    metadata,
    Column("id", String, primary_key=True),
    Column("imported_at", Integer, nullable=False),
    Column("gpu", String, nullable=False),
    Column("dsl", String, nullable=False),
    Column("shape_key", String, nullable=False),
    Column("model", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("findings", Text, nullable=False),
    UniqueConstraint("gpu", "dsl", "shape_key", "model"),
)

imported_rows = Table(
    "imported_rows",
    metadata,
    Column("import_id", ForeignKey("imported_sessions.id"), nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("origin", String, nullable=False),
    Column("line", Integer, nullable=False),
    Column("raw", Text, nullable=False),
    Column("iteration", Integer),
    Column("kernel", String, nullable=False),
    Column("tflops", Float),
    Column("decision", String, nullable=False),
    Column("bottleneck", String, nullable=False),
    Column("summary", Text, nullable=False),
    Column("stated_at", String, nullable=False),
    # Why nobody should believe the row: a list of names, empty where nothing is known.
    Column("suspect", Text, nullable=False),
    PrimaryKeyConstraint("import_id", "ordinal"),
)
