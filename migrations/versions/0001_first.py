"""The first schema: devices, environments, kernels, problems, configs, runs, trials, winners, the view tuned_gemm.

A released revision never changes, and never imports the models: they move on, it must not. There is no way down: a
user goes back by the copy that `tuner db upgrade` made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

CURRENT = "superseded_by IS NULL"
STATES = (
    "'COMPLETE', 'INVALID', 'COMPILE_ERROR', 'OUT_OF_RESOURCES', 'RUNTIME_ERROR', 'WRONG_RESULT', 'TIMEOUT', 'CRASHED'"
)
PROBLEM_KEY = "op m n k a_dtype b_dtype out_dtype layout aligned epilogue precision extras"


def upgrade() -> None:
    _create_devices()
    _create_keys()
    _create_runs()
    _create_trials()
    _create_winners()
    op.execute(sa.text(_tuned_gemm()))


def _create_devices() -> None:
    op.create_table(
        "device",
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("vendor", sa.Text(), nullable=False),
        sa.Column("arch", sa.Text(), nullable=False),
        sa.Column("sm_count", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("shared_bytes", sa.BigInteger(), nullable=False),
        sa.Column("l2_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("device_id", name="pk_device"),
        sa.UniqueConstraint("slug", name="uq_device_slug"),
    )
    op.create_table(
        "device_alias",
        sa.Column("device_alias_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("device_alias_id", name="pk_device_alias"),
        sa.ForeignKeyConstraint(["device_id"], ["device.device_id"], name="fk_device_alias_device_id"),
        sa.UniqueConstraint("device_id", "name", name="uq_device_alias_device_id"),
    )
    op.create_table(
        "environment",
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("triton", sa.Text(), nullable=False),
        sa.Column("torch", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("python", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("environment_id", name="pk_environment"),
        sa.UniqueConstraint("hash", name="uq_environment_hash"),
    )


def _create_keys() -> None:
    op.create_table(
        "kernel",
        sa.Column("kernel_id", sa.Integer(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("source_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kernel_id", name="pk_kernel"),
        sa.UniqueConstraint("op", "name", "version", "source_hash", name="uq_kernel_op"),
    )
    op.create_table(
        "problem",
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("op", sa.Text(), nullable=False),
        sa.Column("m", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("a_dtype", sa.Text(), nullable=False),
        sa.Column("b_dtype", sa.Text(), nullable=False),
        sa.Column("out_dtype", sa.Text(), nullable=False),
        sa.Column("layout", sa.Text(), nullable=False),
        sa.Column("aligned", sa.Boolean(), nullable=False),
        sa.Column("epilogue", sa.Text(), nullable=False),
        sa.Column("precision", sa.Text(), nullable=False),
        sa.Column("extras", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("problem_id", name="pk_problem"),
        sa.UniqueConstraint(*PROBLEM_KEY.split(), name="uq_problem_op"),
    )
    op.create_table(
        "config",
        sa.Column("config_id", sa.Integer(), nullable=False),
        sa.Column("kernel_id", sa.Integer(), nullable=False),
        sa.Column("parameters", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("config_id", name="pk_config"),
        sa.ForeignKeyConstraint(["kernel_id"], ["kernel.kernel_id"], name="fk_config_kernel_id"),
        sa.UniqueConstraint("kernel_id", "hash", name="uq_config_kernel_id"),
    )


def _create_runs() -> None:
    op.create_table(
        "run",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.Text(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("protocol", sa.Integer(), nullable=False),
        sa.Column("tool_version", sa.Text(), nullable=False),
        sa.Column("argv", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name="pk_run"),
        sa.ForeignKeyConstraint(["device_id"], ["device.device_id"], name="fk_run_device_id"),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.environment_id"], name="fk_run_environment_id"),
        sa.UniqueConstraint("uuid", name="uq_run_uuid"),
        sa.CheckConstraint("status IN ('RUNNING', 'DONE', 'INTERRUPTED', 'FAILED')", name=op.f("ck_run_status")),
    )


def _create_trials() -> None:
    op.create_table(
        "trial",
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("config_id", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("median_us", sa.Float(), nullable=True),
        sa.Column("p20_us", sa.Float(), nullable=True),
        sa.Column("p80_us", sa.Float(), nullable=True),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("compile_ms", sa.Float(), nullable=True),
        sa.Column("registers", sa.Integer(), nullable=True),
        sa.Column("spill_bytes", sa.Integer(), nullable=True),
        sa.Column("shared_bytes", sa.Integer(), nullable=True),
        sa.Column("error", sa.Float(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("sm_clock_mhz", sa.Integer(), nullable=True),
        sa.Column("power_w", sa.Float(), nullable=True),
        sa.Column("throttle", sa.BigInteger(), nullable=True),
        sa.Column("measured_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("trial_id", name="pk_trial"),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name="fk_trial_run_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.problem_id"], name="fk_trial_problem_id"),
        sa.ForeignKeyConstraint(["config_id"], ["config.config_id"], name="fk_trial_config_id"),
        sa.UniqueConstraint("run_id", "problem_id", "config_id", name="uq_trial_run_id"),
        sa.CheckConstraint(f"state IN ({STATES})", name=op.f("ck_trial_state")),
        sa.CheckConstraint(
            "state <> 'COMPLETE' OR (median_us IS NOT NULL AND median_us > 0)", name=op.f("ck_trial_timed")
        ),
    )
    op.create_index("ix_trial_problem_id", "trial", ["problem_id"])
    op.create_index("ix_trial_config_id", "trial", ["config_id"])


def _create_winners() -> None:
    op.create_table(
        "winner",
        sa.Column("winner_id", sa.Integer(), nullable=False),
        sa.Column("device_id", sa.Integer(), nullable=False),
        sa.Column("environment_id", sa.Integer(), nullable=False),
        sa.Column("problem_id", sa.Integer(), nullable=False),
        sa.Column("config_id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("median_us", sa.Float(), nullable=False),
        sa.Column("default_us", sa.Float(), nullable=True),
        sa.Column("vendor_us", sa.Float(), nullable=True),
        sa.Column("ties", sa.Text(), nullable=False),
        sa.Column("decided_at", sa.Text(), nullable=False),
        sa.Column("superseded_by", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("winner_id", name="pk_winner"),
        sa.ForeignKeyConstraint(["device_id"], ["device.device_id"], name="fk_winner_device_id"),
        sa.ForeignKeyConstraint(["environment_id"], ["environment.environment_id"], name="fk_winner_environment_id"),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.problem_id"], name="fk_winner_problem_id"),
        sa.ForeignKeyConstraint(["config_id"], ["config.config_id"], name="fk_winner_config_id"),
        sa.ForeignKeyConstraint(["trial_id"], ["trial.trial_id"], name="fk_winner_trial_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name="fk_winner_run_id"),
        sa.ForeignKeyConstraint(["superseded_by"], ["winner.winner_id"], name="fk_winner_superseded_by"),
    )
    op.create_index(
        "ix_winner_current",
        "winner",
        ["device_id", "environment_id", "problem_id"],
        unique=True,
        sqlite_where=sa.text(CURRENT),
        postgresql_where=sa.text(CURRENT),
    )


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
WHERE winner.superseded_by IS NULL AND problem.op = 'matmul'
"""  # noqa: S608
