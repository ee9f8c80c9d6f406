"""Alembic environment: runs on the connection that ``migrate.upgrade`` hands over."""

from __future__ import annotations

from alembic import context

from croq_fsm.storage.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
# The caller holds one BEGIN IMMEDIATE around everything, so DDL is transactional too.
context.run_migrations()
