"""Families in the database: which range of Ms each winner of a ladder serves."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, RowMapping, insert, select

from tuner.errors import ProblemError
from tuner.hardware.device import Device, Environment
from tuner.problem.family import Check, Family, Range
from tuner.store.column_values import StrayValue
from tuner.store.models import device, environment, family, family_range, problem
from tuner.store.records import DecidedFamily, now
from tuner.store.row_ids import RowIds, insert_row
from tuner.store.rows import LeftOut, problem_of, sound, value_of
from tuner.store.runs import Run


def is_recorded(connection: Connection, ids: RowIds, run: Run, found: Family) -> bool:
    """Whether a run recorded a family, as one does whose commit was not answered."""
    last = ids.find(connection, found.at(found.last_m))
    known = select(family.c.family_id).where(family.c.run_id == run.id, family.c.problem_id == last)
    return connection.execute(known).first() is not None


def record(connection: Connection, ids: RowIds, run: Run, found: Family) -> None:
    """Insert a family and its ranges; see `Store.record_family`."""
    family_id = insert_row(
        connection,
        family,
        {
            "run_id": run.id,
            "device_id": ids.make(connection, run.device),
            "environment_id": ids.make(connection, run.environment),
            "problem_id": ids.make(connection, found.at(found.last_m)),
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
            "problem_id": ids.make(connection, found.at(each.row_m)),
            "first_m": each.first_m,
            "last_m": each.last_m,
            "evidence": each.evidence,
        }
        for each in found.ranges
    ]
    connection.execute(insert(family_range), ranges)


def decided(connection: Connection, *conditions: ColumnElement[bool]) -> list[DecidedFamily]:
    """Families of every kind, the one decided last first; conditions are on the tables family, device, environment.

    One that is damaged, or has a damaged range, is left out, and a warning names it.
    """
    query = (
        select(family, device, environment, problem)
        .select_from(family.join(device).join(environment).join(problem))
        .where(*conditions)
        .order_by(family.c.decided_at.desc(), family.c.family_id.desc())
    )
    with LeftOut(connection) as left_out:
        ranges = _ranges(connection, left_out)
        found = connection.execute(query).mappings()
        return list(left_out.built(found, lambda row: _decided(row, ranges.get(row[family.c.family_id], []))))


def _ranges(connection: Connection, left_out: LeftOut) -> dict[int, list[Range] | None]:
    """The ranges of each family; None where one of them is damaged."""
    query = select(family_range, problem.c.m).select_from(family_range.join(problem))
    found: dict[int, list[Range] | None] = {}
    for row in connection.execute(query).mappings():
        key = row[family_range.c.family_id]
        try:
            sound(row)
        except StrayValue as e:
            left_out.add(e)
            found[key] = None
        else:
            served = found.setdefault(key, [])
            if served is not None:
                names = (family_range.c.first_m, family_range.c.last_m, problem.c.m, family_range.c.evidence)
                served.append(Range(*(row[name] for name in names)))
    return found


def _decided(row: RowMapping, ranges: list[Range] | None) -> DecidedFamily:
    place = f"row {row[family.c.family_id]} of family"
    if ranges is None:
        raise StrayValue(f"{place}: one of its ranges is damaged")
    figures = (row[family.c.checked], row[family.c.regret_geomean], row[family.c.regret_worst])
    check = Check(*figures) if figures[0] and None not in figures else None
    batches = None if row[family.c.first_batch] is None else (row[family.c.first_batch], row[family.c.last_batch])
    try:
        found = Family(problem_of(row).group(), tuple(sorted(ranges)), check, batches)
    except ProblemError as e:
        raise StrayValue(f"{place} cannot be used: {e}") from e
    where = value_of(Device, device, row), value_of(Environment, environment, row)
    return DecidedFamily(*where, found, row[family.c.decided_at], row[family.c.run_id])
