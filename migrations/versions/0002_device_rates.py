"""Clock and memory bandwidth of a device, as its driver gives them; NULL where nobody asked the driver.

A released revision never changes, and never imports the models: they move on, it must not. There is no way down: a
user goes back by the copy that `tuner db upgrade` made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("device", sa.Column("clock_mhz", sa.Integer()))
    op.add_column("device", sa.Column("memory_gb_per_s", sa.Integer()))
