"""The tables as SQLAlchemy sees them. The schema itself is made by migrations/ and by nothing else.

A test compares the two. Tables are named in the singular, keys `<table>_id`; times are UTC text
("2026-01-31T12:00:00Z"), which sorts as it reads.
"""

from __future__ import annotations

from typing import Any

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
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

from tuner.store.column_values import watch


def _references(*tables: str) -> list[Column[Any]]:
    return [Column(f"{table}_id", ForeignKey(f"{table}.{table}_id"), nullable=False) for table in tables]


def _columns(kind: type[TypeEngine[Any]], *names: str, nullable: bool = False) -> list[Column[Any]]:
    return [Column(name, kind, nullable=nullable) for name in names]


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def _table(name: str, *parts: SchemaItem) -> Table:
    return Table(name, metadata, Column(f"{name}_id", Integer, primary_key=True), *parts)


VIEWS = ("tuned_gemm",)
"""Views that the migrations make: autogenerate does not see them, `tuner db check` does."""

device = _table(
    "device",
    *_columns(Text, "slug", "name", "vendor", "arch"),
    *_columns(Integer, "sm_count"),
    *_columns(BigInteger, "memory_bytes", "shared_bytes", "l2_bytes"),
    *_columns(Integer, "clock_mhz", "memory_gb_per_s", nullable=True),
    UniqueConstraint("slug"),
)

device_alias = _table(
    "device_alias",
    *_references("device"),
    *_columns(Text, "name"),
    UniqueConstraint("device_id", "name"),
)
"""Other names that drivers gave a device of one slug."""

environment = _table(
    "environment",
    *_columns(Text, "triton", "torch", "backend", "driver", "python", "hash"),
    UniqueConstraint("hash"),
)

kernel = _table(
    "kernel",
    *_columns(Text, "op", "name"),
    *_columns(Integer, "version"),
    *_columns(Text, "source_hash"),
    UniqueConstraint("op", "name", "version", "source_hash"),
)

_PROBLEM = (
    *_columns(Text, "op"),
    *_columns(Integer, "m", "n", "k"),
    *_columns(Text, "a_dtype", "b_dtype", "out_dtype", "layout"),
    *_columns(Boolean, "aligned"),
    *_columns(Text, "epilogue", "precision", "extras"),
)
problem = _table("problem", *_PROBLEM, UniqueConstraint(*(column.name for column in _PROBLEM)))
"""`extras` is canonical JSON, "{}" for a plain GEMM, so that the whole row can be unique."""

config = _table(
    "config",
    *_references("kernel"),
    *_columns(Text, "parameters", "hash"),
    UniqueConstraint("kernel_id", "hash"),
)
"""`parameters` and `hash` are `Config.parameters_json` and `Config.digest`."""

run = _table(
    "run",
    *_columns(Text, "uuid"),
    *_references("device", "environment"),
    *_columns(Integer, "protocol"),
    *_columns(Text, "tool_version", "argv", "host", "started_at"),
    *_columns(Text, "ended_at", nullable=True),
    *_columns(Text, "status"),
    *_columns(Text, "heartbeat_at", "node", nullable=True),
    CheckConstraint("status IN ('RUNNING', 'DONE', 'INTERRUPTED', 'FAILED')", name="status"),
    UniqueConstraint("uuid"),
)
"""`argv` is a JSON list. `heartbeat_at` is the last sign of life, `node` the machine and its boot."""

claim = _table(
    "claim",
    *_references("run", "device", "environment", "problem"),
    *_columns(Integer, "protocol"),
    *_columns(Boolean, "begun"),
    UniqueConstraint("problem_id", "device_id", "environment_id", "protocol"),
)
"""Which problems runs that share a server's database have to themselves; a claim counts while its run lives.

Another run may take over a problem that is not `begun`. A row is deleted when its problem ends.
"""

trial = _table(
    "trial",
    *_references("run", "problem", "config"),
    *_columns(Text, "state"),
    *_columns(Float, "median_us", "p20_us", "p80_us", nullable=True),
    *_columns(Integer, "samples"),
    *_columns(Float, "compile_ms", nullable=True),
    *_columns(Integer, "registers", "spill_bytes", "shared_bytes", nullable=True),
    *_columns(Float, "error", nullable=True),
    *_columns(Text, "message"),
    *_columns(Integer, "sm_clock_mhz", nullable=True),
    *_columns(Float, "power_w", nullable=True),
    *_columns(BigInteger, "throttle", nullable=True),
    *_columns(Text, "measured_at"),
    *_columns(Text, "gpu_uuid", nullable=True),
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

winner = _table(
    "winner",
    *_references("device", "environment", "problem", "config", "trial", "run"),
    *_columns(Float, "median_us"),
    *_columns(Float, "default_us", "vendor_us", nullable=True),
    *_columns(Text, "ties", "decided_at"),
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

family = _table(
    "family",
    *_references("run", "device", "environment", "problem"),
    *_columns(Integer, "checked"),
    *_columns(Float, "regret_geomean", "regret_worst", nullable=True),
    *_columns(Text, "decided_at"),
    *_columns(Integer, "first_batch", "last_batch", nullable=True),
    UniqueConstraint("run_id", "problem_id"),
)
"""A ladder that was tuned for a range of Ms; `problem_id` is its problem with the largest M.

`checked` counts the random Ms at which the served config was played against a short race, and the regrets are its time
over the fastest's. Of several families that serve one M the one decided last holds. Of `bmm`, `first_batch` and
`last_batch` are the batches that it serves; NULL for its own alone.
"""

family_range = _table(
    "family_range",
    *_references("family", "problem"),
    *_columns(Integer, "first_m", "last_m"),
    *_columns(Text, "evidence"),
    CheckConstraint("evidence IN ('measured', 'estimated')", name="evidence"),
    UniqueConstraint("family_id", "first_m"),
)
"""Ms from `first_m` to `last_m` are served by the current winner of `problem_id`, whose M may be another."""

watch(metadata)
