"""Batches: a family of a batched op may serve a range of batches.

A released revision never changes, and never imports the models: they move on, it must not. There is no way down: a
user goes back by the copy that `tuner db upgrade` made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("family", sa.Column("first_batch", sa.Integer(), nullable=True))
    op.add_column("family", sa.Column("last_batch", sa.Integer(), nullable=True))
