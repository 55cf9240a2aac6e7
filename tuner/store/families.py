"""Families in the database: which range of Ms each winner of a ladder serves."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, RowMapping, insert, select

from tuner.errors import ProblemError
from tuner.hardware.device import Device, Environment
from tuner.problem.family import Check, Family, Range
from tuner.store.column_values import StrayValue
from tuner.store.keys import Keys, insert_row
from tuner.store.models import device, environment, family, family_range, problem
from tuner.store.records import DecidedFamily, now
from tuner.store.rows import problem_of, value_of
from tuner.store.runs import Run


def is_recorded(connection: Connection, keys: Keys, run: Run, found: Family) -> bool:
    """Whether a run recorded a family, as one does whose commit was not answered."""
    last = keys.find(connection, found.at(found.last_m))
    known = select(family.c.family_id).where(family.c.run_id == run.id, family.c.problem_id == last)
    return connection.execute(known).first() is not None


def record(connection: Connection, keys: Keys, run: Run, found: Family) -> None:
    """Insert a family and its ranges; see `Store.record_family`."""
    family_id = insert_row(
        connection,
        family,
        {
            "run_id": run.id,
            "device_id": keys.make(connection, run.device),
            "environment_id": keys.make(connection, run.environment),
            "problem_id": keys.make(connection, found.at(found.last_m)),
            "checked": found.check.played if found.check else 0,
            "regret_geomean": found.check.geomean if found.check else None,
            "regret_worst": found.check.worst if found.check else None,
            "decided_at": now(),
            "first_batch": found.batches and found.batches[0],
            "last_batch": found.batches and found.batches[1],
        },
    )
    ranges = [
        {
            "family_id": family_id,
            "problem_id": keys.make(connection, found.at(each.row_m)),
            "first_m": each.first_m,
            "last_m": each.last_m,
            "evidence": each.evidence,
        }
        for each in found.ranges
    ]
    connection.execute(insert(family_range), ranges)


def decided(connection: Connection, *conditions: ColumnElement[bool]) -> list[DecidedFamily]:
    """Families of every kind, the one decided last first; conditions are on the tables family, device, environment."""
    ranges = _ranges(connection)
    query = (
        select(family, device, environment, problem)
        .select_from(family.join(device).join(environment).join(problem))
        .where(*conditions)
        .order_by(family.c.decided_at.desc(), family.c.family_id.desc())
    )
    return [_decided(row, ranges.get(row[family.c.family_id], [])) for row in connection.execute(query).mappings()]


def _ranges(connection: Connection) -> dict[int, list[Range]]:
    columns = (family_range.c.family_id, family_range.c.first_m, family_range.c.last_m, family_range.c.evidence)
    query = select(*columns, problem.c.m)
    found: dict[int, list[Range]] = {}
    for row in connection.execute(query.select_from(family_range.join(problem))):
        found.setdefault(row.family_id, []).append(Range(row.first_m, row.last_m, row.m, row.evidence))
    return found


def _decided(row: RowMapping, ranges: list[Range]) -> DecidedFamily:
    figures = (row[family.c.checked], row[family.c.regret_geomean], row[family.c.regret_worst])
    check = Check(*figures) if figures[0] and None not in figures else None
    batches = None if row[family.c.first_batch] is None else (row[family.c.first_batch], row[family.c.last_batch])
    try:
        found = Family(problem_of(row).group(), tuple(sorted(ranges)), check, batches)
    except ProblemError as e:
        raise StrayValue(f"row {row[family.c.family_id]} of the table family cannot be used: {e}") from e
    return DecidedFamily(
        value_of(Device, device, row), value_of(Environment, environment, row), found, row[family.c.decided_at]
    )
