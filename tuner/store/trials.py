"""How trials are kept, and which of them need not be measured again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import cast

from sqlalchemy import ColumnElement, Connection, RowMapping, Text, func, select, tuple_
from sqlalchemy.exc import StatementError

from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store import rows
from tuner.store.column_values import Stored, StrayValue
from tuner.store.models import config, kernel, run, trial
from tuner.store.records import PROTOCOL, KernelVersion, Outcome, State, Trial, is_of_machine, now
from tuner.store.row_ids import RowIds

_COLUMNS = ("run_id", "problem_id", "config_id", "measured_at", *rows.OUTCOME_COLUMNS)
_UNLESS_THERE = "ON CONFLICT (run_id, problem_id, config_id) DO NOTHING"
_UNCERTAIN = (State.CRASHED, State.TIMEOUT)
"""States that may not be the config's fault: such a trial settles nothing until a second one agrees.

A trial that says what was wrong with the machine never does: a disk may be full, and another program may have the GPU's
memory, for as long as two runs and longer.
"""


def record(
    connection: Connection, ids: RowIds, run_id: int, trials: Sequence[rows.TrialValues], *, again: bool = False
) -> None:
    """Insert trials: a handful of statements for any number of them; see `Store.record`.

    Args:
        connection, ids, run_id: where.
        trials: what was measured just now.
        again: those that a server has already stay as they are.
    """
    made = _rows(connection, ids, run_id, trials, itertools.repeat(now()))
    _insert(connection, made, _UNLESS_THERE if again else "")


def record_missing(connection: Connection, ids: RowIds, run_id: int, trials: Sequence[tuple[Trial, str]]) -> None:
    """Insert trials with the times when they were measured; those that a server has already stay as they are."""
    made = [rows.trial_values(tried) for tried, _ in trials]
    _insert(connection, _rows(connection, ids, run_id, made, [time for _, time in trials]), _UNLESS_THERE)


def _insert(connection: Connection, rows: Iterable[tuple[object, ...]], clause: str) -> None:
    """Insert rows of `_COLUMNS` past SQLAlchemy, whose work for each value takes longer than all the rest."""
    try:
        kinds = [cast(Stored, trial.c[name].type) for name in _COLUMNS]
        columns = [map(kind.check, values) for kind, values in zip(kinds, zip(*rows, strict=True), strict=True)]
        checked = list(zip(*columns, strict=True))
    except StrayValue as e:
        raise StatementError(str(e), "INSERT INTO trial", None, e) from e  # as SQLAlchemy would
    mark = "?" if connection.dialect.positional else "%s"
    marks = ", ".join([mark] * len(_COLUMNS))
    statement = f"INSERT INTO trial ({', '.join(_COLUMNS)}) VALUES ({marks}) {clause}"  # noqa: S608  columns' names
    connection.exec_driver_sql(statement, checked)


def _rows(
    connection: Connection, ids: RowIds, run_id: int, trials: Sequence[rows.TrialValues], times: Iterable[str]
) -> Iterator[tuple[object, ...]]:
    """Trials as `_insert` takes them. Problems and kernels are told apart by `id`: hashing them takes longer."""
    problems: dict[int, Problem] = {}
    versions: dict[int, KernelVersion] = {}
    configs: dict[int, dict[str, str]] = {}
    for problem, version, digest, parameters, _ in trials:
        problems[id(problem)], versions[id(version)] = problem, version
        configs.setdefault(id(version), {})[digest] = parameters
    problem_ids = {key: ids.make(connection, problem) for key, problem in problems.items()}
    config_ids = {
        key: ids.make_configs(connection, ids.make(connection, version), configs[key])
        for key, version in versions.items()
    }
    for (problem, version, digest, _, values), measured_at in zip(trials, times, strict=False):
        yield (run_id, problem_ids[id(problem)], config_ids[id(version)][digest], measured_at, *values)


def settled(
    connection: Connection,
    ids: RowIds,
    place: tuple[Device, Environment, Problem],
    kernels: Iterable[KernelVersion],
    counted: Set[int] | None = None,
) -> dict[Config, Outcome]:
    """The newest outcome of each config under the current protocol; see `Store.settled`."""
    of_runs = () if counted is None else (trial.c.run_id.in_(counted),)
    sources = {(each.op, each.name, each.version): each.source_hash for each in kernels}
    query = (
        select(trial, config, kernel)
        .select_from(rows.joined(trial, rows.TRIAL_JOINS))
        .where(
            *_measured_at(connection, ids, place),
            *of_runs,
            tuple_(kernel.c.op, kernel.c.name, kernel.c.version).in_(list(sources)),
        )
        .order_by(trial.c.measured_at, trial.c.trial_id)  # what was merged came later than it was measured
    )
    newest: dict[Config, Outcome] = {}
    doubted: set[Config] = set()

    def is_wrong_no_more(row: RowMapping) -> bool:
        """Whether another source called the result wrong: the kernel or its reference may have been mended since."""
        version = (row[kernel.c.op], row[kernel.c.name], row[kernel.c.version])
        return bool(row[trial.c.state] == State.WRONG_RESULT and row[kernel.c.source_hash] != sources[version])

    found = rows.read(connection, query, lambda row: (rows.config_of(row), rows.outcome_of(row), is_wrong_no_more(row)))
    for tried, outcome, is_open in found:
        known = newest.get(tried)
        is_first = known is None or known.state not in _UNCERTAIN or is_of_machine(known.message)
        if is_open or is_of_machine(outcome.message) or (outcome.state in _UNCERTAIN and is_first):
            doubted.add(tried)
        else:
            doubted.discard(tried)
        newest[tried] = outcome
    return {tried: outcome for tried, outcome in newest.items() if tried not in doubted}


def newest_at(connection: Connection, ids: RowIds, place: tuple[Device, Environment, Problem]) -> str | None:
    """When the newest trial was recorded; see `Store.newest_trial_at`."""
    newest = select(func.max(trial.c.measured_at, type_=Text)).join_from(trial, run, trial.c.run_id == run.c.run_id)
    found: str | None = connection.execute(newest.where(*_measured_at(connection, ids, place))).scalar()
    return found


def _measured_at(
    connection: Connection, ids: RowIds, place: tuple[Device, Environment, Problem]
) -> tuple[ColumnElement[bool], ...]:
    """What a trial joined with its run must satisfy to count there under the current protocol."""
    device_id, environment_id, problem_id = (ids.find(connection, entity) for entity in place)
    where = (run.c.device_id == device_id, run.c.environment_id == environment_id, trial.c.problem_id == problem_id)
    return (*where, run.c.protocol == PROTOCOL)  # a comparison with None, for what is not there, holds for no row
