"""Everything that touches SQLite, and the views of it on disk."""
