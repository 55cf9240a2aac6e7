"""Rows of the database, read back as the values that they were written from.

Where a row is damaged, what reads it raises StrayValue, which names the table, the row's id and what is wrong.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import operator
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Executable, FromClause, RowMapping, Table, select

from tuner import files
from tuner.errors import UsageError
from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.lookup.database import WINNER_JOINS
from tuner.lookup.row import positive
from tuner.problem import Problem
from tuner.problem.text import problem_order
from tuner.store.column_values import Stray, StrayValue, read_list, read_one_of
from tuner.store.models import config, device, environment, kernel, metadata, problem, run, trial, winner
from tuner.store.records import KernelVersion, Outcome, Resources, State, Trial, Winner

V = TypeVar("V", Device, Environment)
T = TypeVar("T")
_log = logging.getLogger(__name__)
TRIAL_JOINS = {
    "run": "trial.run_id",
    "device": "run.device_id",
    "problem": "trial.problem_id",
    "config": "trial.config_id",
    "kernel": "config.kernel_id",
}
"""The tables that a trial's parts are in, as `tuner.lookup.database.WINNER_JOINS` has a winner's."""
_FIGURES = [each.name for each in dataclasses.fields(Outcome) if each.name not in ("state", "resources")]
_RESOURCES = [each.name for each in dataclasses.fields(Resources)]
_FIGURES_OF, _RESOURCES_OF = operator.attrgetter(*_FIGURES), operator.attrgetter(*_RESOURCES)
OUTCOME_COLUMNS = ("state", *_FIGURES, *_RESOURCES)
"""The columns of trial that an outcome is kept in."""
TrialValues = tuple[Problem, KernelVersion, str, str, tuple[Any, ...]]
"""A trial's problem and kernel, its config's digest and parameters, and its `outcome_values`: read much faster from
another process's message than a `Trial`."""
_PROBLEM = tuple(column for column in problem.c if column is not problem.c.problem_id)
_read_config = functools.lru_cache(maxsize=4096)(Config.from_json)
_STATES = tuple(state.value for state in State)
RUN_STATUSES = ("RUNNING", "INTERRUPTED", "FAILED", "DONE")
"""Where two databases disagree on a run, the last of these holds: a copy may be from before the run's end."""
_UNREADABLE = (UsageError, ValueError, TypeError, AttributeError, RecursionError)
"""What reading damaged JSON raises."""
_NAMED = 3
"""How many faults of rows one warning names."""


def current_winners(connection: Connection, *conditions: ColumnElement[bool]) -> list[Winner]:
    """Winners that nothing superseded, sorted by device, problem and environment; damaged rows are left out.

    Args:
        connection: to a database at the head.
        conditions: on the tables winner, device, environment, problem, config, kernel and run; all must hold.
    """
    query = (
        select(winner, device, environment, problem, config, kernel, run.c.protocol, run.c.tool_version)
        .select_from(joined(winner, WINNER_JOINS))
        .where(winner.c.superseded_by.is_(None), *conditions)
    )
    found = read(connection, query, _winner)
    return sorted(found, key=lambda w: (w.device.slug, problem_order(w.problem), dataclasses.astuple(w.environment)))


def read(connection: Connection, query: Executable, build: Callable[[RowMapping], T]) -> list[T]:
    """What `build` makes of each row of a query. Damaged rows are left out, and one warning names them."""
    with LeftOut(connection) as left_out:
        return list(left_out.built(connection.execute(query).mappings(), build))


class LeftOut(AbstractContextManager["LeftOut"]):
    """The damaged rows that a block passes over; its end names them in one warning."""

    def __init__(self, connection: Connection) -> None:
        """Use the connection's options for the name of its database."""
        self._location = connection.get_execution_options().get("location", "the database")
        self._faults: Counter[str] = Counter()

    def __exit__(self, *_: object) -> None:
        if self._faults:
            named = "; ".join(list(self._faults)[:_NAMED]) + (" ..." if len(self._faults) > _NAMED else "")
            rows = f"{self._faults.total()} damaged row{'s' * (self._faults.total() != 1)}"
            advice = f"`tuner db check --db {shlex.quote(self._location)}` says more"
            _log.warning("%s: %s left out: %s: %s", self._location, rows, named, advice)

    def add(self, fault: object) -> None:
        """Remember a row that is left out, and why; the same again changes nothing."""
        self._faults[str(fault)] = 1

    def built(self, rows: Iterable[RowMapping], build: Callable[[RowMapping], T]) -> Iterator[T]:
        """What `build` makes of each row; one for which it raises StrayValue is left out."""
        for row in rows:
            try:
                yield build(sound(row))
            except StrayValue as e:
                self._faults[str(e)] += 1  # a damaged kernel costs many trials


def sound(row: RowMapping) -> RowMapping:
    """Return a row; StrayValue where its column cannot hold one of the values."""
    for value in row.values():
        if type(value) is Stray:
            (key,) = metadata.tables[value.table].primary_key
            raise StrayValue(f"{_row(key.table.name, row.get(key))}: {value.text}")
    return row


def check_row(table: Table, row: RowMapping) -> None:
    """Read a row that holds every column of one table; StrayValue where it is damaged."""
    sound(row)
    if table is problem:
        problem_of(row)
    elif table is config:
        _config_of("kernel", row)
    elif table is trial:
        _state_of(row)
    elif table is run:
        argv_of(row)
    elif table is winner:
        _figures_of(row)


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
    """The problem of a row that holds the table's columns."""
    try:
        return _problem_of(*(row[column] for column in _PROBLEM))
    except _UNREADABLE as e:
        raise StrayValue(f"{_row('problem', row[problem.c.problem_id])}: {e}") from e


@functools.lru_cache(maxsize=4096)  # hundreds of trials have one problem, and thousands one config
def _problem_of(*values: Any) -> Problem:
    fields = dict(zip((column.name for column in _PROBLEM), values, strict=True))
    return Problem.from_fields(fields | {"extras": files.parse_json(fields["extras"])})


def config_of(row: RowMapping) -> Config:
    """The config of a row that holds the columns of config and kernel."""
    return _config_of(row[kernel.c.name], row)


def _config_of(name: str, row: RowMapping) -> Config:
    try:
        return _read_config(name, row[config.c.parameters])
    except _UNREADABLE as e:
        raise StrayValue(f"{_row('config', row[config.c.config_id])}: {e}") from e


def outcome_of(row: RowMapping) -> Outcome:
    """The outcome of a row that holds trial's columns."""
    return Outcome(
        state=_state_of(row),
        resources=Resources(**{name: row[trial.c[name]] for name in _RESOURCES}),
        **{name: row[trial.c[name]] for name in _FIGURES},
    )


def _state_of(row: RowMapping) -> State:
    place = _row("trial", row[trial.c.trial_id])
    state = State(read_one_of(_STATES, row[trial.c.state], f"{place}: trial.state"))
    if state is State.COMPLETE:
        if not (median_us := row[trial.c.median_us]):
            raise StrayValue(f"{place}: it is COMPLETE without a time")
        try:
            positive(median_us, "median_us")
        except ValueError as e:
            raise StrayValue(f"{place}: {e}") from e
    return state


def argv_of(row: RowMapping) -> tuple[str, ...]:
    """The command line of a row that holds run's columns."""
    place = _row("run", row[run.c.run_id])
    read_one_of(RUN_STATUSES, row[run.c.status], f"{place}: run.status")
    return tuple(map(str, read_list(row[run.c.argv], f"{place}: run.argv")))


def outcome_values(outcome: Outcome) -> tuple[Any, ...]:
    """What `outcome_of` reads back, in the order of `OUTCOME_COLUMNS`."""
    return (outcome.state.value, *_FIGURES_OF(outcome), *_RESOURCES_OF(outcome.resources))


def trial_values(trial: Trial) -> TrialValues:
    """A trial as the store inserts it, and as a node of a fleet sends it."""
    config = trial.config
    return trial.problem, trial.kernel, config.digest, config.parameters_json, outcome_values(trial.outcome)


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
        run_id=row[winner.c.run_id],
        **_figures_of(row),
    )


def _figures_of(row: RowMapping) -> dict[str, Any]:
    """A winner's times and ties, as a serving process takes them, too."""
    place = _row("winner", row[winner.c.winner_id])
    try:
        figures = {name: positive(row[winner.c[name]], name, optional=True) for name in ("default_us", "vendor_us")}
        figures["median_us"] = positive(row[winner.c.median_us], "median_us")
    except ValueError as e:
        raise StrayValue(f"{place}: {e}") from e
    ties = read_list(row[winner.c.ties], f"{place}: winner.ties")
    try:
        tied = tuple(Config(one["kernel"], **one["parameters"]) for one in ties)
    except (UsageError, TypeError, LookupError) as e:
        raise StrayValue(f"{place}: winner.ties holds what is no config: {e}") from e
    return figures | {"ties": len(ties), "tied": tied}


def _row(table: str, key: int | None) -> str:
    return f"{'a row' if key is None else f'row {key}'} of {table}"
