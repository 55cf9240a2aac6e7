"""The tables as SQLAlchemy sees them. The schema itself is made by migrations/ and by nothing else.

A test compares the two. Tables are named in the singular, keys `<table>_id`; times are UTC text
("2026-01-31T12:00:00Z"), which sorts as it reads.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from tuner.store.column_values import watch

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

VIEWS = ("tuned_gemm",)
"""Views that the migrations make: autogenerate does not see them, `tuner db check` does."""

device = Table(
    "device",
    metadata,
    Column("device_id", Integer, primary_key=True),
    Column("slug", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("vendor", Text, nullable=False),
    Column("arch", Text, nullable=False),
    Column("sm_count", Integer, nullable=False),
    Column("memory_bytes", BigInteger, nullable=False),
    Column("shared_bytes", BigInteger, nullable=False),
    Column("l2_bytes", BigInteger, nullable=False),
    Column("clock_mhz", Integer),
    Column("memory_gb_per_s", Integer),
    UniqueConstraint("slug"),
)

device_alias = Table(
    "device_alias",
    metadata,
    Column("device_alias_id", Integer, primary_key=True),
    Column("device_id", ForeignKey("device.device_id"), nullable=False),
    Column("name", Text, nullable=False),
    UniqueConstraint("device_id", "name"),
)
"""Other names that drivers gave a device of one slug."""

environment = Table(
    "environment",
    metadata,
    Column("environment_id", Integer, primary_key=True),
    Column("triton", Text, nullable=False),
    Column("torch", Text, nullable=False),
    Column("backend", Text, nullable=False),
    Column("driver", Text, nullable=False),
    Column("python", Text, nullable=False),
    Column("hash", Text, nullable=False),
    UniqueConstraint("hash"),
)

kernel = Table(
    "kernel",
    metadata,
    Column("kernel_id", Integer, primary_key=True),
    Column("op", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("source_hash", Text, nullable=False),
    UniqueConstraint("op", "name", "version", "source_hash"),
)

problem = Table(
    "problem",
    metadata,
    Column("problem_id", Integer, primary_key=True),
    Column("op", Text, nullable=False),
    Column("m", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("k", Integer, nullable=False),
    Column("a_dtype", Text, nullable=False),
    Column("b_dtype", Text, nullable=False),
    Column("out_dtype", Text, nullable=False),
    Column("layout", Text, nullable=False),
    Column("aligned", Boolean, nullable=False),
    Column("epilogue", Text, nullable=False),
    Column("precision", Text, nullable=False),
    Column("extras", Text, nullable=False),
    UniqueConstraint(
        "op",
        "m",
        "n",
        "k",
        "a_dtype",
        "b_dtype",
        "out_dtype",
        "layout",
        "aligned",
        "epilogue",
        "precision",
        "extras",
    ),
)
"""`extras` is canonical JSON, "{}" for a plain GEMM, so that the whole row can be unique."""

config = Table(
    "config",
    metadata,
    Column("config_id", Integer, primary_key=True),
    Column("kernel_id", ForeignKey("kernel.kernel_id"), nullable=False),
    Column("parameters", Text, nullable=False),
    Column("hash", Text, nullable=False),
    UniqueConstraint("kernel_id", "hash"),
)
"""`parameters` and `hash` are `Config.parameters_json` and `Config.digest`."""

run = Table(
    "run",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("uuid", Text, nullable=False),
    Column("device_id", ForeignKey("device.device_id"), nullable=False),
    Column("environment_id", ForeignKey("environment.environment_id"), nullable=False),
    Column("protocol", Integer, nullable=False),
    Column("tool_version", Text, nullable=False),
    Column("argv", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("started_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("status", Text, nullable=False),
    CheckConstraint("status IN ('RUNNING', 'DONE', 'INTERRUPTED', 'FAILED')", name="status"),
    UniqueConstraint("uuid"),
)
"""`argv` is a JSON list."""

trial = Table(
    "trial",
    metadata,
    Column("trial_id", Integer, primary_key=True),
    Column("run_id", ForeignKey("run.run_id"), nullable=False),
    Column("problem_id", ForeignKey("problem.problem_id"), nullable=False),
    Column("config_id", ForeignKey("config.config_id"), nullable=False),
    Column("state", Text, nullable=False),
    Column("median_us", Float),
    Column("p20_us", Float),
    Column("p80_us", Float),
    Column("samples", Integer, nullable=False),
    Column("compile_ms", Float),
    Column("registers", Integer),
    Column("spill_bytes", Integer),
    Column("shared_bytes", Integer),
    Column("error", Float),
    Column("message", Text, nullable=False),
    Column("sm_clock_mhz", Integer),
    Column("power_w", Float),
    Column("throttle", BigInteger),
    Column("measured_at", Text, nullable=False),
    CheckConstraint(
        "state IN ('COMPLETE', 'INVALID', 'COMPILE_ERROR', 'OUT_OF_RESOURCES', 'RUNTIME_ERROR', 'WRONG_RESULT',"
        " 'TIMEOUT', 'CRASHED')",
        name="state",
    ),
    CheckConstraint("state <> 'COMPLETE' OR (median_us IS NOT NULL AND median_us > 0)", name="timed"),
    UniqueConstraint("run_id", "problem_id", "config_id"),
    Index(None, "problem_id"),
    Index(None, "config_id"),
)
"""Append-only. `error` is the figure of docs/numerics.md, `message` the reason of a failure."""

winner = Table(
    "winner",
    metadata,
    Column("winner_id", Integer, primary_key=True),
    Column("device_id", ForeignKey("device.device_id"), nullable=False),
    Column("environment_id", ForeignKey("environment.environment_id"), nullable=False),
    Column("problem_id", ForeignKey("problem.problem_id"), nullable=False),
    Column("config_id", ForeignKey("config.config_id"), nullable=False),
    Column("trial_id", ForeignKey("trial.trial_id"), nullable=False),
    Column("run_id", ForeignKey("run.run_id"), nullable=False),
    Column("median_us", Float, nullable=False),
    Column("default_us", Float),
    Column("vendor_us", Float),
    Column("ties", Text, nullable=False),
    Column("decided_at", Text, nullable=False),
    Column("superseded_by", ForeignKey("winner.winner_id")),
    Index(
        "ix_winner_current",
        "device_id",
        "environment_id",
        "problem_id",
        unique=True,
        sqlite_where=text("superseded_by IS NULL"),
        postgresql_where=text("superseded_by IS NULL"),
    ),
)
"""`run_id` decided it, `trial_id` measured it (perhaps in an earlier run). `ties`: JSON list of {kernel, parameters}.

A current winner is one that nothing superseded: at most one for a device, environment and problem.
"""

watch(metadata)
