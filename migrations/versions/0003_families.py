"""Families: which range of M each winner of a ladder serves, and what that was measured to lose at random Ms.

The view tuned_gemm gains `first_m` and `last_m`, the Ms that its row's config serves: M itself where that is no range.

A released revision never changes, and never imports the models: they move on, it must not. There is no way down: a
user goes back by the copy that `tuner db upgrade` made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "family",
        sa.Column("family_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("checked", sa.Integer(), nullable=False),
        sa.Column("regret_geomean", sa.Float(), nullable=True),
        sa.Column("regret_worst", sa.Float(), nullable=True),
        sa.Column("decided_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("family_id", name="pk_family"),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name="fk_family_run_id"),
        sa.ForeignKeyConstraint(["device_id"], ["device.device_id"], name="fk_family_device_id"),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.environment_id"], name="fk_family_environment_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.problem_id"], name="fk_family_problem_id"),
        sa.UniqueConstraint("run_id", "problem_id", name="uq_family_run_id"),
    )
    op.create_table(
        "family_range",
        sa.Column("family_range_id", sa.Integer(), nullable=False),
        sa.Column("family_id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("first_m", sa.Integer(), nullable=False),
        sa.Column("last_m", sa.Integer(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("family_range_id", name="pk_family_range"),
        sa.ForeignKeyConstraint(["family_id"], ["family.family_id"], name="fk_family_range_family_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.problem_id"], name="fk_family_range_problem_id"),
        sa.UniqueConstraint("family_id", "problem_id", name="uq_family_range_family_id"),
        sa.CheckConstraint("evidence IN ('measured', 'estimated')", name="evidence"),
    )
    op.execute(sa.text("DROP VIEW tuned_gemm"))
    op.execute(sa.text(_tuned_gemm()))


def _tuned_gemm() -> str:
    sqlite = op.get_context().dialect.name == "sqlite"

    def parameter(name: str) -> str:
        if sqlite:
            return f"json_extract(config.parameters, '$.{name}') AS \"{name}\""
        return f"CAST(CAST(config.parameters AS json) ->> '{name}' AS integer) AS \"{name}\""

    ties = "json_array_length(winner.ties)" if sqlite else "json_array_length(CAST(winner.ties AS json))"
    tile = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SPLIT_K", "num_stages", "num_warps")
    # Every name below is a literal of this file.
    return f"""
CREATE VIEW tuned_gemm AS
SELECT
    device.name AS gpu,
    device.slug AS device,
    device.arch AS arch,
    problem.m AS m,
    COALESCE(served.first_m, problem.m) AS first_m,
    COALESCE(served.last_m, problem.m) AS last_m,
    problem.n AS n,
    problem.k AS k,
    problem.a_dtype AS dtype,
    problem.b_dtype AS b_dtype,
    problem.out_dtype AS out_dtype,
    problem.layout AS layout,
    problem.aligned AS aligned,
    problem.epilogue AS epilogue,
    problem.precision AS "precision",
    kernel.name AS kernel,
    kernel.version AS kernel_version,
    {", ".join(parameter(name) for name in tile)},
    config.parameters AS parameters,
    winner.median_us AS us,
    2.0 * problem.m * problem.n * problem.k / winner.median_us * 1e-6 AS tflops,
    winner.default_us / winner.median_us AS vs_default,
    winner.vendor_us / winner.median_us AS vs_vendor,
    {ties} AS ties,
    environment.triton AS triton,
    environment.torch AS torch,
    environment.backend AS backend,
    environment.driver AS driver,
    run.protocol AS protocol,
    run.tool_version AS tool_version,
    winner.decided_at AS decided_at
FROM winner
JOIN device ON device.device_id = winner.device_id
JOIN environment ON environment.environment_id = winner.environment_id
JOIN problem ON problem.problem_id = winner.problem_id
JOIN config ON config.config_id = winner.config_id
JOIN kernel ON kernel.kernel_id = config.kernel_id
JOIN run ON run.run_id = winner.run_id
LEFT JOIN (
    SELECT family.device_id, family.environment_id, family_range.problem_id, family_range.first_m, family_range.last_m
    FROM family_range
    JOIN family ON family.family_id = family_range.family_id
    WHERE family_range.family_range_id IN (
        SELECT MAX(family_range.family_range_id)
        FROM family_range
        JOIN family ON family.family_id = family_range.family_id
        GROUP BY family.device_id, family.environment_id, family_range.problem_id
    )
) AS served
    ON served.device_id = winner.device_id
    AND served.environment_id = winner.environment_id
    AND served.problem_id = winner.problem_id
WHERE winner.superseded_by IS NULL AND problem.op = 'matmul'
"""  # noqa: S608
