"""Rows of the database, read back as the values that they were written from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, FromClause, RowMapping, Table, select

from tuner import files
from tuner.errors import UsageError
from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.lookup.database import WINNER_JOINS
from tuner.problem import Problem
from tuner.problem.text import problem_order
from tuner.store.column_values import StrayValue, read_list, read_one_of
from tuner.store.models import config, device, environment, kernel, metadata, problem, run, trial, winner
from tuner.store.records import Outcome, Resources, State, Winner

V = TypeVar("V", Device, Environment)
TRIAL_JOINS = {
    "run": "trial.run_id",
    "device": "run.device_id",
    "problem": "trial.problem_id",
    "config": "trial.config_id",
    "kernel": "config.kernel_id",
}
"""The tables that a trial's parts are in, as `tuner.lookup.database.WINNER_JOINS` has a winner's."""
_STATES = tuple(state.value for state in State)


def current_winners(connection: Connection, *conditions: ColumnElement[bool]) -> list[Winner]:
    """Winners that nothing superseded, sorted by device, problem and environment.

    Args:
        conditions: on the tables winner, device, environment, problem, config, kernel.
    """
    query = (
        select(winner, device, environment, problem, config, kernel, run.c.protocol, run.c.tool_version)
        .select_from(joined(winner, WINNER_JOINS))
        .where(winner.c.superseded_by.is_(None), *conditions)
    )
    found = [_winner(row) for row in connection.execute(query).mappings()]
    return sorted(found, key=lambda w: (w.device.slug, problem_order(w.problem), dataclasses.astuple(w.environment)))


def joined(start: Table, references: Mapping[str, str]) -> FromClause:
    """A table joined with those that its rows refer to, or the rows of these.

    Args:
        start: the table.
        references: by table in the order of the joins, the column that refers to it ("winner.device_id").
    """
    tables = metadata.tables
    found: FromClause = start
    for name, reference in references.items():
        owner, _, column = reference.partition(".")
        found = found.join(tables[name], tables[owner].c[column] == tables[name].c[f"{name}_id"])
    return found


def value_of(kind: type[V], table: Table, row: RowMapping) -> V:
    """A device or an environment from the columns of its table."""
    return kind(**{field.name: row[table.c[field.name]] for field in dataclasses.fields(kind)})


def problem_of(row: RowMapping) -> Problem:
    """The problem of a row that holds the table's columns.

    Raises:
        StrayValue: the row does not describe a problem.
    """
    fields = {column.name: row[column] for column in problem.c if column is not problem.c.problem_id}
    try:
        return Problem.from_fields(fields | {"extras": files.parse_json(fields["extras"])})
    except (UsageError, ValueError) as e:
        raise StrayValue(f"row {row[problem.c.problem_id]} of the table problem cannot be read: {e}") from e


def config_of(row: RowMapping) -> Config:
    """The config of a row that holds the columns of config and kernel.

    Raises:
        StrayValue: the row does not describe a config.
    """
    try:
        return Config.from_json(row[kernel.c.name], row[config.c.parameters])
    except UsageError as e:
        raise StrayValue(f"row {row[config.c.config_id]} of the table config cannot be read: {e}") from e


def outcome_of(row: RowMapping) -> Outcome:
    """The outcome of a row that holds trial's columns."""
    names = {field.name for field in dataclasses.fields(Outcome)} - {"state", "resources"}
    return Outcome(
        state=State(read_one_of(_STATES, row[trial.c.state], "trial.state")),
        resources=Resources(**{field.name: row[trial.c[field.name]] for field in dataclasses.fields(Resources)}),
        **{name: row[trial.c[name]] for name in names},
    )


def outcome_columns(outcome: Outcome) -> dict[str, Any]:
    """What `outcome_of` reads back: trial's columns by name."""
    columns = {field.name: getattr(outcome, field.name) for field in dataclasses.fields(Outcome)}
    resources = columns.pop("resources")
    return columns | dataclasses.asdict(resources) | {"state": outcome.state.value}


def _winner(row: RowMapping) -> Winner:
    return Winner(
        device=value_of(Device, device, row),
        environment=value_of(Environment, environment, row),
        problem=problem_of(row),
        config=config_of(row),
        kernel_version=row[kernel.c.version],
        protocol=row[run.c.protocol],
        tool_version=row[run.c.tool_version],
        decided_at=row[winner.c.decided_at],
        median_us=row[winner.c.median_us],
        default_us=row[winner.c.default_us],
        vendor_us=row[winner.c.vendor_us],
        ties=len(ties := read_list(row[winner.c.ties], "winner.ties")),
        tied=tuple(Config(one["kernel"], **one["parameters"]) for one in ties),
    )
