"""Alembic revisions: the one truth of the database schema."""
