"""Alembic scripts; run by ``croq_fsm.storage.migrate``, never by hand."""
