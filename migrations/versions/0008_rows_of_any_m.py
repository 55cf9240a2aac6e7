"""A range of Ms may be served by the winner of any M of its family, and one winner may serve several ranges.

The view tuned_gemm has a row for each range of a winner. What is left of a range where a newer family holds the rest
keeps its row. What lookups do with families that overlap is `tuner.lookup.families.overlaid`.

A released revision never changes, and never imports the models: they move on, it must not. There is no way down: a
user goes back by the copy that `tuner db upgrade` made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

FAMILY_KEY = "n k a_dtype b_dtype out_dtype layout aligned epilogue precision extras"
"""What the problems of one family have in common; M is what differs."""

SERVED = f"""
ranged AS (  -- families of one key on one device have one line, and the smaller place is preferred
    SELECT
        MIN(family.family_id) OVER (
            PARTITION BY family.device_id, {", ".join(f"problem.{name}" for name in FAMILY_KEY.split())}
        ) AS line,
        ROW_NUMBER() OVER (ORDER BY family.decided_at DESC, family.family_id DESC, family_range.first_m) AS place,
        family.family_id AS family_id,
        family.device_id AS device_id,
        problem.problem_id AS problem_id,
        CAST(family_range.first_m AS bigint) AS first_m,
        CAST(family_range.last_m AS bigint) AS last_m
    FROM family_range
    JOIN family ON family.family_id = family_range.family_id
    JOIN problem ON problem.problem_id = family_range.problem_id
    WHERE problem.op = 'matmul'
),
span AS (
    SELECT line, family_id, MIN(place) AS place, MIN(first_m) AS first_m, MAX(last_m) AS last_m
    FROM ranged
    GROUP BY line, family_id
),
standing AS (  -- only for speed without the families that a newer one holds whole, as most older ones are
    SELECT *
    FROM ranged
    WHERE family_id NOT IN (
        SELECT older.family_id
        FROM span AS older
        JOIN span AS newer
            ON newer.line = older.line
            AND newer.place < older.place
            AND newer.first_m <= older.first_m
            AND newer.last_m >= older.last_m
    )
),
edge AS (
    SELECT line, first_m AS m FROM standing UNION SELECT line, last_m + 1 FROM standing
),
step AS (
    SELECT line, m AS first_m, LEAD(m) OVER (PARTITION BY line ORDER BY m) - 1 AS last_m FROM edge
),
candidate AS (
    SELECT
        step.*,
        standing.place,
        standing.device_id,
        standing.problem_id,
        ROW_NUMBER() OVER (PARTITION BY step.line, step.first_m ORDER BY standing.place) AS preference
    FROM step
    JOIN standing
        ON standing.line = step.line AND standing.first_m <= step.first_m AND standing.last_m >= step.first_m
),
held AS (  -- each M by the preferred range that has it
    SELECT *, CASE WHEN place = LAG(place) OVER (PARTITION BY line ORDER BY first_m) THEN 0 ELSE 1 END AS turn
    FROM candidate
    WHERE preference = 1
),
numbered AS (
    SELECT *, SUM(turn) OVER (PARTITION BY line ORDER BY first_m) AS number FROM held
),
piece AS (  -- what is left of each range, which may be several
    SELECT line, place, device_id, problem_id, MIN(first_m) AS first_m, MAX(last_m) AS last_m
    FROM numbered
    GROUP BY line, place, device_id, problem_id, number
),
served AS (
    SELECT
        device_id,
        problem_id,
        CAST(first_m AS integer) AS first_m,
        CAST(last_m AS integer) AS last_m
    FROM piece
)"""  # noqa: S608  every name is a literal of this file
"""By device and the problem of its row, the ranges that lookups use, of which a row may serve several."""


FAMILY_RANGE = sa.Table(
    "family_range",
    sa.MetaData(),
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
    sa.CheckConstraint("evidence IN ('measured', 'estimated')", name="ck_family_range_evidence"),
)
"""The table before, for SQLite, which copies it; Alembic does not find its check."""


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":  # a server replaces it, and keeps who may read it
        op.execute(sa.text("DROP VIEW IF EXISTS tuned_gemm"))
    with op.batch_alter_table("family_range", copy_from=FAMILY_RANGE) as table:
        table.drop_constraint("uq_family_range_family_id", type_="unique")
        table.create_unique_constraint("uq_family_range_family_id", ["family_id", "first_m"])
    op.execute(sa.text(_tuned_gemm()))


def _tuned_gemm() -> str:
    sqlite = op.get_context().dialect.name == "sqlite"

    def parameter(name: str) -> str:
        if sqlite:
            return f"json_extract(config.parameters, '$.{name}') AS \"{name}\""
        return f"CAST(CAST(config.parameters AS json) ->> '{name}' AS integer) AS \"{name}\""

    ties = "json_array_length(winner.ties)" if sqlite else "json_array_length(CAST(winner.ties AS json))"
    tile = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "SPLIT_K", "num_stages", "num_warps")
    create = "CREATE VIEW" if sqlite else "CREATE OR REPLACE VIEW"
    # Every name below is a literal of this file.
    return f"""
{create} tuned_gemm AS
WITH {SERVED}
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
LEFT JOIN served ON served.device_id = winner.device_id AND served.problem_id = winner.problem_id
WHERE winner.superseded_by IS NULL AND problem.op = 'matmul'
"""  # noqa: S608
