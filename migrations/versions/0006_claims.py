"""Claims: which run that shares a server's database measures a problem.

A released revision never changes, and never imports the models: they move on, it must not. There is no way down: a
user goes back by the copy that `tuner db upgrade` made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "claim",
        sa.Column("claim_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.Integer(), nullable=False),
        sa.Column("begun", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["device_id"], ["device.device_id"], name=op.f("fk_claim_device_id")),
        sa.ForeignKeyConstraint(
            ["environment_id"], ["environment.environment_id"], name=op.f("fk_claim_environment_id")
        ),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.problem_id"], name=op.f("fk_claim_problem_id")),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("fk_claim_run_id")),
        sa.PrimaryKeyConstraint("claim_id", name=op.f("pk_claim")),
        sa.UniqueConstraint("problem_id", "device_id", "environment_id", "protocol", name=op.f("uq_claim_problem_id")),
    )
