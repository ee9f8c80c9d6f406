"""Sessions that were imported from files of other programs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two tables; nothing that is there changes."""
    op.create_table(
        "imported_sessions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("imported_at", sa.Integer(), nullable=False),
        sa.Column("gpu", sa.String(), nullable=False),
        sa.Column("dsl", sa.String(), nullable=False),
        sa.Column("shape_key", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("findings", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("gpu", "dsl", "shape_key", "model"),
    )
    op.create_table(
        "imported_rows",
        sa.Column("import_id", sa.String(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("raw", sa.Text(), nullable=False),
        sa.Column("iteration", sa.Integer(), nullable=True),
        sa.Column("kernel", sa.String(), nullable=False),
        sa.Column("tflops", sa.Float(), nullable=True),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("bottleneck", sa.String(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("stated_at", sa.String(), nullable=False),
        sa.Column("suspect", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["import_id"], ["imported_sessions.id"]),
        sa.PrimaryKeyConstraint("import_id", "ordinal"),
    )
