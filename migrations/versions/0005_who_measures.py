"""Who measures: a run's sign of life and machine, and the GPU of a trial.

A released revision never changes, and never imports the models: they move on, it must not. There is no way down: a
user goes back by the copy that `tuner db upgrade` made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("run", sa.Column("heartbeat_at", sa.Text(), nullable=True))
    op.add_column("run", sa.Column("node", sa.Text(), nullable=True))
    op.add_column("trial", sa.Column("gpu_uuid", sa.Text(), nullable=True))
