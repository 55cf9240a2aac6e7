"""What `tuner show` lists: trials, runs, devices, problems."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, RowMapping, Select, and_, func, or_, select

from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem, generic_key
from tuner.problem.generic_key import Extra
from tuner.problem.text import part_of, problem_order
from tuner.store.engine import Database, faults, lacking
from tuner.store.models import config, device, device_alias, environment, kernel, problem, run, trial, winner
from tuner.store.records import Outcome, State
from tuner.store.rows import TRIAL_JOINS, argv_of, config_of, joined, outcome_of, problem_of, read, value_of


@dataclass(frozen=True, slots=True)
class TrialFilter:
    """Which trials are asked for; None asks for all.

    Attributes:
        device: a device's slug.
        shape: (M, N, K).
        key: values of a problem's key, by name.
        kernel: a kernel's name.
        state: how the trial ended.
    """

    device: str | None = None
    shape: tuple[int, int, int] | None = None
    kernel: str | None = None
    state: State | None = None
    key: tuple[tuple[str, Extra], ...] = ()

    def conditions(self) -> list[ColumnElement[bool]]:
        """What a query that joins trial, device, problem and kernel must demand."""
        demanded = _is_of(self.shape, self.key)
        if self.device is not None:
            demanded.append(device.c.slug == self.device)
        if self.kernel is not None:
            demanded.append(kernel.c.name == self.kernel)
        if self.state is not None:
            demanded.append(trial.c.state == self.state.value)
        return demanded


@dataclass(frozen=True, slots=True)
class TrialRow:
    """One trial as it is kept; `run` is the run's uuid, `device` its slug, `measured_at` UTC."""

    trial_id: int
    run: str
    device: str
    problem: Problem
    config: Config
    kernel_version: int
    outcome: Outcome
    measured_at: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """One `tuner run`, with how many trials it recorded.

    Attributes:
        ended_at: None while it runs, or when it was killed.
        heartbeat_at: when it last gave a sign of life; None before schema 0005.
        node: the machine and its boot (`tuner.store.runs.node`); None where nothing tells.
    """

    run_id: int
    uuid: str
    device: str
    environment: Environment
    protocol: int
    tool_version: str
    argv: tuple[str, ...]
    host: str
    started_at: str
    ended_at: str | None
    status: str
    trials: int
    heartbeat_at: str | None
    node: str | None


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device, the other names that drivers gave it, and how much is known of it."""

    device: Device
    aliases: tuple[str, ...]
    runs: int
    trials: int
    winners: int


@dataclass(frozen=True, slots=True)
class ProblemRow:
    """A problem that was tried: how many trials, how many of them COMPLETE, how many current winners."""

    problem: Problem
    trials: int
    complete: int
    winners: int


class Listings:
    """What `tuner show` lists of an open database."""

    def __init__(self, engine: Engine, database: Database) -> None:
        """Use an engine whose database is at the head."""
        self._engine, self._database = engine, database

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with faults(self._database), self._engine.connect() as connection:
            yield connection

    def lacks(self, noun: str) -> str:
        """What is said where the database holds none of something, a "winner" for one, and what to type."""
        return lacking(self._database, noun)

    def trials(self, asked: TrialFilter = TrialFilter(), *, limit: int | None = None) -> list[TrialRow]:
        """Return trials, the newest first."""
        query = (
            select(trial, run.c.uuid, device.c.slug, problem, config, kernel)
            .select_from(joined(trial, TRIAL_JOINS))
            .where(*asked.conditions())
            .order_by(trial.c.measured_at.desc(), trial.c.trial_id.desc())  # a merge brings old ones later
            .limit(limit)
        )
        with self._reading() as connection:
            return read(connection, query, _trial)

    def count_trials(self, asked: TrialFilter = TrialFilter()) -> int:
        """Return the number of trials."""
        query = select(func.count()).select_from(joined(trial, TRIAL_JOINS)).where(*asked.conditions())
        with self._reading() as connection:
            return int(connection.execute(query).scalar_one())

    def runs(self, *, device_slug: str | None = None, limit: int | None = None) -> list[RunRow]:
        """Return runs, the newest first."""
        recorded = select(func.count()).where(trial.c.run_id == run.c.run_id).correlate(run).scalar_subquery()
        query: Select[Any] = (
            select(run, device.c.slug, environment, recorded.label("trials"))
            .join_from(run, device, run.c.device_id == device.c.device_id)
            .join(environment, run.c.environment_id == environment.c.environment_id)
            .order_by(run.c.started_at.desc(), run.c.run_id.desc())
            .limit(limit)
        )
        if device_slug is not None:
            query = query.where(device.c.slug == device_slug)
        with self._reading() as connection:
            return read(connection, query, _run)

    def devices(self) -> list[DeviceRow]:
        """Return devices, sorted by slug."""
        with self._reading() as connection:

            def counts(query: Select[Any]) -> dict[int, int]:
                return {row[0]: row[1] for row in connection.execute(query)}

            of_device = select(run.c.device_id, func.count()).group_by(run.c.device_id)
            run_counts = counts(of_device)
            trial_counts = counts(of_device.join_from(trial, run, trial.c.run_id == run.c.run_id))
            current = select(winner.c.device_id, func.count()).where(winner.c.superseded_by.is_(None))
            winner_counts = counts(current.group_by(winner.c.device_id))
            aliases: dict[int, list[str]] = {}
            columns = (device_alias.c.device_id, device_alias.c.name)
            for device_id, name in read(connection, select(*columns), lambda row: (row[columns[0]], row[columns[1]])):
                aliases.setdefault(device_id, []).append(name)

            def known(row: RowMapping) -> DeviceRow:
                key = row[device.c.device_id]
                counted = (count.get(key, 0) for count in (run_counts, trial_counts, winner_counts))
                return DeviceRow(value_of(Device, device, row), tuple(sorted(aliases.get(key, ()))), *counted)

            # Sorted here, for databases differ in the order of words.
            return sorted(read(connection, select(device), known), key=lambda row: row.device.slug)

    def problems(
        self,
        *,
        device_slug: str | None = None,
        shape: tuple[int, int, int] | None = None,
        key: Sequence[tuple[str, Extra]] = (),
        limit: int | None = None,
    ) -> list[ProblemRow]:
        """Return the problems that were tried, sorted; for a device, only those tried there, with its own counts."""
        complete = func.count().filter(trial.c.state == State.COMPLETE.value)
        tried = (
            select(trial.c.problem_id, func.count().label("trials"), complete.label("complete"))
            .join_from(trial, run, trial.c.run_id == run.c.run_id)
            .group_by(trial.c.problem_id)
        )
        won = (
            select(winner.c.problem_id, func.count().label("winners"))
            .where(winner.c.superseded_by.is_(None))
            .group_by(winner.c.problem_id)
        )
        if device_slug is not None:
            here = select(device.c.device_id).where(device.c.slug == device_slug).scalar_subquery()
            tried, won = tried.where(run.c.device_id == here), won.where(winner.c.device_id == here)
        trial_counts, winner_counts = tried.subquery(), won.subquery()
        winners = func.coalesce(winner_counts.c.winners, 0).label("winners")
        query: Select[Any] = (
            select(problem, trial_counts.c.trials, trial_counts.c.complete, winners)
            .join_from(problem, trial_counts, problem.c.problem_id == trial_counts.c.problem_id)
            .outerjoin(winner_counts, problem.c.problem_id == winner_counts.c.problem_id)
            .where(*_is_of(shape, key))
        )
        with self._reading() as connection:
            found = read(connection, query, _problem)
        return sorted(found, key=lambda known: problem_order(known.problem))[:limit]


def _trial(row: RowMapping) -> TrialRow:
    return TrialRow(
        trial_id=row[trial.c.trial_id],
        run=row[run.c.uuid],
        device=row[device.c.slug],
        problem=problem_of(row),
        config=config_of(row),
        kernel_version=row[kernel.c.version],
        outcome=outcome_of(row),
        measured_at=row[trial.c.measured_at],
    )


def _run(row: RowMapping) -> RunRow:
    plain = ("run_id", "uuid", "protocol", "tool_version", "host", "started_at", "ended_at", "status", "heartbeat_at")
    return RunRow(
        device=row[device.c.slug],
        environment=value_of(Environment, environment, row),
        argv=argv_of(row),
        trials=row["trials"],
        node=row[run.c.node],
        **{name: row[run.c[name]] for name in plain},
    )


def _problem(row: RowMapping) -> ProblemRow:
    return ProblemRow(problem_of(row), row["trials"], row["complete"], row["winners"])


def _may_hold(column: str, value: Extra) -> bool:
    """Whether a column of a problem may hold a value: a server refuses to compare with one of another kind."""
    if column == "aligned":
        return isinstance(value, bool)
    if column in ("m", "n", "k"):
        return type(value) is int and 0 < value < 2**31
    return isinstance(value, str)


def _is_of(shape: tuple[int, int, int] | None, key: Sequence[tuple[str, Extra]]) -> list[ColumnElement[bool]]:
    demanded: list[ColumnElement[bool]] = []
    if shape is not None:
        m, n, k = shape
        demanded += [problem.c.m == m, problem.c.n == n, problem.c.k == k]
    for name, value in key:
        if name == "dtype":
            demanded.append(problem.c.a_dtype == str(value))
        else:  # `extras` are canonical JSON: sorted, without spaces; LIKE would not tell capitals apart in SQLite
            text = f"{json.dumps(name)}:{json.dumps(value)}"
            either = [func.replace(problem.c.extras, text + end, "") != problem.c.extras for end in ",}"]
            if (part := part_of(name, value)) is not None and _may_hold(*part):
                either.append(and_(problem.c.layout != generic_key.LAYOUT, problem.c[part[0]] == part[1]))
            demanded.append(or_(*either))
    return demanded
