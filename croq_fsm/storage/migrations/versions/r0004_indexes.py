"""Indexes for what each round asks, so that a round costs the same after 100,000 of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add indexes; one that grew with what was done is made anew."""
    op.create_index("ix_transitions_round", "transitions", ["session_id", "round", "at"])
    op.create_index("ix_attempts_round", "attempts", ["session_id", "round"])
    op.create_index("ix_profiles_round", "profiles", ["session_id", "round"])
    op.create_index("ix_builds_key", "builds", ["session_id", "key", "seq"])
    op.create_index("ix_measurements_round", "measurements", ["session_id", "round"])
    op.create_index(
        "ix_measurements_final",
        "measurements",
        ["session_id", "seq"],
        sqlite_where=sa.text("kind = 'final'"),
    )
    op.create_index("ix_artifacts_round", "artifacts", ["session_id", "round"])
    op.drop_index("ix_intents_open", "intents")
    op.create_index(
        "ix_intents_open",
        "intents",
        ["session_id", "seq", "part"],
        sqlite_where=sa.text("done_at IS NULL"),
    )
    op.create_index(
        "ix_children_open",
        "children",
        ["run_id"],
        sqlite_where=sa.text("ended_at IS NULL"),
    )
