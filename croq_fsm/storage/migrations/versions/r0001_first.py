"""First schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("sha256"),
    )
    op.create_table(
        "messages",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("taken_at", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_messages_session", "messages", ["session_id", "kind"], unique=False)
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("boot_id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("started_at", sa.Integer(), nullable=False),
        sa.Column("ended_at", sa.Integer(), nullable=True),
        sa.Column("ending", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("run_id"),
    )
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("created_at", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Integer(), nullable=False),
        sa.Column("fsm_version", sa.Integer(), nullable=False),
        sa.Column("dsl", sa.String(), nullable=False),
        sa.Column("shape_key", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("gpu", sa.String(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("config_hash", sa.String(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("work", sa.Text(), nullable=False),
        sa.Column("begun_seq", sa.Integer(), nullable=False),
        sa.Column("begins", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("next_iteration", sa.Integer(), nullable=False),
        sa.Column("next_attempt", sa.Integer(), nullable=False),
        sa.Column("streak", sa.Integer(), nullable=False),
        sa.Column("macro_run", sa.Integer(), nullable=False),
        sa.Column("counts", sa.Text(), nullable=False),
        sa.Column("log_sizes", sa.Text(), nullable=False),
        sa.Column("best_iteration", sa.Integer(), nullable=True),
        sa.Column("noise", sa.Float(), nullable=True),
        sa.Column("library_seconds", sa.Float(), nullable=True),
        sa.CheckConstraint(
            "state IN ('INIT', 'BASELINE', 'PROFILE', 'IDEATE', 'IMPLEMENT', 'MEASURE', 'DECIDE', 'STORE', 'DONE', 'FAILED')",
            name="ck_state",
        ),
        sa.CheckConstraint("status IN ('ACTIVE', 'PAUSED', 'ENDED')", name="ck_status"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "artifacts",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("mode", sa.Integer(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "path"),
    )
    op.create_table(
        "attempts",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("log", sa.String(), nullable=False),
        sa.Column("candidate", sa.String(), nullable=False),
        sa.Column("at", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('KEEP', 'DISCARD', 'COMPILE_FAIL', 'VERIFY_FAIL', 'SEGFAULT', 'HANG', 'RUN_FAIL')",
            name="ck_kind",
        ),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "ordinal"),
    )
    op.create_table(
        "builds",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("build", sa.Text(), nullable=False),
        sa.Column("log", sa.String(), nullable=False),
        sa.Column("generated", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "seq"),
    )
    op.create_table(
        "children",
        sa.Column("child_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("start_time", sa.Float(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("argv", sa.Text(), nullable=False),
        sa.Column("deadline_s", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Integer(), nullable=False),
        sa.Column("ended_at", sa.Integer(), nullable=True),
        sa.Column("ending", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["runs.run_id"],
        ),
        sa.PrimaryKeyConstraint("child_id"),
    )
    op.create_index("ix_children_run", "children", ["run_id", "ended_at"], unique=False)
    op.create_table(
        "ideas",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("idea", sa.Text(), nullable=False),
        sa.Column("refused", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "round"),
        sa.UniqueConstraint("session_id", "fingerprint"),
    )
    op.create_table(
        "intents",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("opened_at", sa.Integer(), nullable=False),
        sa.Column("done_at", sa.Integer(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "seq", "part"),
    )
    op.create_index("ix_intents_open", "intents", ["session_id", "done_at"], unique=False)
    op.create_table(
        "iterations",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("candidate", sa.String(), nullable=True),
        sa.Column("build", sa.Text(), nullable=True),
        sa.Column("structure", sa.Text(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("library_seconds", sa.Float(), nullable=True),
        sa.Column("estimate", sa.Text(), nullable=True),
        sa.Column("measurement", sa.Integer(), nullable=False),
        sa.Column("self_reported", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "number"),
    )
    op.create_index(
        "ix_iterations_speed", "iterations", ["session_id", "structure", "seconds"], unique=False
    )
    op.create_table(
        "measurements",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("samples", sa.LargeBinary(), nullable=True),
        sa.Column("verification", sa.Text(), nullable=True),
        sa.Column("environment", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "seq", "part"),
    )
    op.create_table(
        "profiles",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=False),
        sa.Column("binary", sa.String(), nullable=False),
        sa.Column("full_set", sa.Integer(), nullable=False),
        sa.Column("bottleneck", sa.String(), nullable=False),
        sa.Column("confidence", sa.String(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("csv", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "seq"),
    )
    op.create_index("ix_profiles_binary", "profiles", ["session_id", "binary"], unique=False)
    op.create_table(
        "rounds",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=True),
        sa.Column("kernel", sa.String(), nullable=False),
        sa.Column("base", sa.Integer(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=True),
        sa.Column("tflops", sa.Float(), nullable=True),
        sa.Column("ratio", sa.Float(), nullable=True),
        sa.Column("bottleneck", sa.String(), nullable=False),
        sa.Column("category", sa.String(), nullable=False),
        sa.Column("macro_only", sa.Integer(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("hypothesis", sa.Text(), nullable=False),
        sa.Column("expected_gain", sa.Float(), nullable=False),
        sa.Column("levers", sa.Text(), nullable=False),
        sa.Column("tag", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ideator", sa.String(), nullable=False),
        sa.Column("stored_at", sa.Integer(), nullable=False),
        sa.Column("wall_s", sa.Float(), nullable=False),
        sa.CheckConstraint(
            "decision IN ('KEEP', 'DISCARD', 'COMPILE_FAIL', 'VERIFY_FAIL', 'SEGFAULT', 'HANG', 'RUN_FAIL')",
            name="ck_decision",
        ),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "round"),
        sa.UniqueConstraint("session_id", "iteration"),
    )
    op.create_table(
        "transitions",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("at", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("from_state", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("to_state", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "seq"),
    )
    op.create_table(
        "tried",
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("normalised", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["session_id"],
            ["sessions.id"],
        ),
        sa.PrimaryKeyConstraint("session_id", "normalised"),
    )
