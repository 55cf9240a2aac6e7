"""Which run measures a problem, where several share a server's database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from tuner.problem import Problem
from tuner.store import runs
from tuner.store.models import claim as table
from tuner.store.models import run as run_table
from tuner.store.row_ids import RowIds
from tuner.store.runs import Run, RunStatus


class Holder(NamedTuple):
    """Who has a problem.

    Attributes:
        host: where its run is.
        begun: whether it has begun it, so that nobody takes it over.
    """

    host: str
    begun: bool


def claim(connection: Connection, ids: RowIds, run: Run, problem: Problem, *, begin: bool) -> bool:
    """Take a problem where no other living run has it; see `Store.claim`. The connection holds the write lock."""
    place = {**_place(connection, ids, run), "problem_id": ids.make(connection, problem)}
    query = select(table, _lives(connection).label("lives")).join_from(table, run_table)
    found = connection.execute(query.where(*(table.c[name] == value for name, value in place.items()))).first()
    if found is None:
        connection.execute(insert(table), {**place, "run_id": run.id, "begun": begin})
        return True
    mine = found.run_id == run.id
    if not mine and found.lives and (found.begun or not begin):
        return False
    taken = {"run_id": run.id, "begun": begin or (mine and found.begun)}
    connection.execute(update(table).where(table.c.claim_id == found.claim_id).values(taken))
    return True


def begin(connection: Connection, ids: RowIds, run: Run, problem: Problem) -> bool:
    """Mark a run's own claim as begun; False where it is not its own any more."""
    own = (table.c.run_id == run.id, table.c.problem_id == ids.make(connection, problem))
    return connection.execute(update(table).where(*own).values(begun=True)).rowcount == 1


def release(connection: Connection, ids: RowIds, run: Run, problems: Sequence[Problem] | None = None) -> None:
    """Give up a run's claims on some problems, or all of them."""
    own = delete(table).where(table.c.run_id == run.id)
    if problems is not None:
        own = own.where(table.c.problem_id.in_([ids.make(connection, problem) for problem in problems]))
    connection.execute(own)


def others(connection: Connection, ids: RowIds, run: Run, problems: Iterable[Problem]) -> dict[Problem, Holder]:
    """Who has which of these problems; see `Store.claimed_by_others`."""
    place = _place(connection, ids, run)
    query = select(table.c.problem_id, run_table.c.host, table.c.begun).join_from(table, run_table)
    here = (table.c[name] == value for name, value in place.items())
    rows = connection.execute(query.where(*here, table.c.run_id != run.id, _lives(connection)))
    held = {row.problem_id: Holder(row.host, row.begun) for row in rows}
    problem_ids = {problem: ids.find(connection, problem) for problem in problems}
    return {problem: held[found] for problem, found in problem_ids.items() if found in held}


def _place(connection: Connection, ids: RowIds, run: Run) -> dict[str, int]:
    """What a claim is for besides the problem: the device, environment and protocol of its run."""
    found = {f"{name}_id": ids.find(connection, getattr(run, name)) for name in ("device", "environment")}
    return {name: row_id for name, row_id in found.items() if row_id is not None} | {"protocol": run.protocol}


def _lives(connection: Connection) -> ColumnElement[bool]:
    return (run_table.c.status == RunStatus.RUNNING.value) & runs.heard(connection)
