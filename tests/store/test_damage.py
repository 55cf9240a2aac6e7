"""Whatever a cell of a database holds: its row is left out and named, `db check` finds it, `merge` does not copy it."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Boolean, Column, Float, Integer, Table

from tuner.cli.output import plain, winner_document
from tuner.store import health, models, schema
from tuner.store.merge import merge
from tuner.store.store import Store

FIXTURE = Path(__file__).parent / "fixtures" / f"{schema.HEAD}.db"
JSON = {"problem.extras", "config.parameters", "run.argv", "winner.ties"}
WORDS = {"trial.state", "run.status", "problem.layout", "problem.a_dtype", "problem.epilogue", "problem.precision"}

OFTEN = {"trial", "winner", "family_range"}
TABLES = [*models.metadata.tables.values()]
DAMAGED = [
    *(
        pytest.param(each, False, id=f"{each}-one a column", marks=() if each.name in OFTEN else pytest.mark.long)
        for each in TABLES
    ),
    *(pytest.param(each, True, id=f"{each}-others", marks=pytest.mark.long) for each in TABLES if each.name in OFTEN),
]


@pytest.fixture(autouse=True)
def no_comparison_of_schemas(monkeypatch):
    """It says the same whatever rows hold, has tests of its own, and takes half of the time that a check takes."""
    monkeypatch.setattr(schema, "drift", lambda connection: [])


def damages(column: Column) -> Iterator[str]:
    """Values, as SQL, that the column cannot hold."""
    yield "x'ff00'"
    if not column.nullable:
        yield "NULL"
    kind = column.type.kind
    if isinstance(kind, (Integer, Float, Boolean)):
        yield "-1"
        # A wrong result may be infinitely far off, and a huge figure says that it is huge.
        if str(column) != "trial.error" and not (column.nullable and type(kind) is Integer):
            yield {Float: "9e999", Boolean: "2", BigInteger: "1.5"}.get(type(kind), "1099511627776")
    else:
        yield "CAST(x'61ff' AS TEXT)"
    if str(column) in JSON:
        yield from ("'no JSON'", "'7'", "'[1'", f"'{'[' * 5000}'")
    if str(column) in WORDS:
        yield "'WON'"
    if str(column) == "winner.median_us":
        yield "0"
    if column.foreign_keys:
        yield "9999"


def damage(path: Path, column: Column, value: str) -> None:
    """Write a value into the first row, past every constraint."""
    name = column.table.name
    with closing(sqlite3.connect(path, isolation_level=None)) as plain:
        (sql,) = plain.execute("SELECT sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        plain.execute("PRAGMA ignore_check_constraints = ON")
        plain.execute("PRAGMA writable_schema = ON")
        change = "UPDATE sqlite_master SET sql = ? WHERE name = ?"
        plain.execute(change, (re.sub(rf"\b({column.name} (?!IS)\w+) NOT NULL", r"\1", sql), name))
        plain.execute("PRAGMA writable_schema = RESET")
        plain.execute(f"UPDATE {name} SET {column.name} = {value} WHERE {name}_id = 1")
        plain.execute("PRAGMA writable_schema = ON")
        plain.execute(change, (sql, name))


def read_all(path: Path) -> None:
    with Store.open(str(path), read_only=True) as store:
        json.dumps([winner_document(winner) for winner in store.winners()], allow_nan=False, default=plain)
        store.trials(), store.runs(), store.devices(), store.problems(), store.families()


def rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as plain:
        return plain.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def cases(table: Table, *, others: bool) -> Iterator[tuple[Column, str]]:
    """One value of each column, of another kind from column to column; or all others.

    The one of a column of JSON or words is of a kind that only such a column refuses.
    """
    for number, column in enumerate(column for column in table.columns if not column.primary_key):
        values = list(damages(column))
        first = values.pop(-1 if str(column) in JSON | WORDS else -1 - number % len(values))
        yield from ((column, value) for value in (values if others else [first]))


@pytest.mark.parametrize(("table", "others"), DAMAGED)
def test_any_damaged_cell_costs_its_row_alone_and_is_named(table, others, tmp_path, caplog):
    schema.upgrade(str(tmp_path / "empty.db"))
    for number, (column, value) in enumerate(cases(table, others=others)):
        case = f"{column} = {value:.40}"
        path = Path(shutil.copy(FIXTURE, tmp_path / f"{number}.db"))
        damage(path, column, value)
        found = health.check(str(path)).complaints
        assert any(table.name in complaint for complaint in found), (case, found)
        caplog.clear()
        read_all(path)
        united = Path(shutil.copy(tmp_path / "empty.db", path.with_suffix(".united")))
        merge(str(united), [str(path)])
        assert health.check(str(united)).complaints == (), case
        if case != "winner.superseded_by = 9999":  # what supersedes a winner is decided afresh
            assert rows(united, table.name) < rows(path, table.name), case
            # Claims last while their run lives: nothing reads those of another file.
            assert table.name == "claim" or f"of {table.name}" in caplog.text, case
