"""Calls of ideators to models and agents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table of calls; nothing that is there changes."""
    op.create_table(
        "calls",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("ideator", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("purpose", sa.String(), nullable=False),
        sa.Column("prompt_sha256", sa.String(), nullable=False),
        sa.Column("started_at", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("input_tokens", sa.Integer(), nullable=True),
        sa.Column("output_tokens", sa.Integer(), nullable=True),
        sa.Column("usd", sa.Float(), nullable=True),
        sa.Column("charged_tokens", sa.Integer(), nullable=False),
        sa.Column("charged_usd", sa.Float(), nullable=False),
        sa.Column("answer_sha256", sa.String(), nullable=False),
        sa.Column("latency_s", sa.Float(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "outcome IN ('IN_FLIGHT', 'OK', 'MALFORMED', 'RATE_LIMITED', 'SERVER', 'CONNECTION', 'TIMEOUT', 'AUTH', 'QUOTA', 'OVERFLOW', 'REJECTED', 'CANCELLED')",
            name="ck_outcome",
        ),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_calls_session", "calls", ["session_id", "started_at"], unique=False)
    op.create_index("ix_calls_time", "calls", ["started_at"], unique=False)
