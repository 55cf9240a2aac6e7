"""Tables as they are found: in a file, in a folder, or as a database's winners would ship."""

from __future__ import annotations

from tuner import files
from tuner.errors import TableError
from tuner.location import sqlite_path
from tuner.lookup import database, table, table_files
from tuner.lookup.table import Table


def load(where: str) -> list[Table]:
    """Every table of a place, sorted by op and device: of a file, a folder, a SQLite database or a server's URL.

    Raises:
        TableError: it is not there, cannot be read, or holds no table.
        StoreError: the database cannot be read.
    """
    path = sqlite_path(where)
    if path is None:
        return _of_database(where)
    files.check_regular(path, "table, a folder of tables or a database", error=TableError)
    if not path.exists():
        raise TableError(f"{path} is not there: expected a table, a folder of tables or a database")
    if path.is_dir():
        found = [table.load(each) for each in table_files.tables_in(path)]
        return sorted(found, key=lambda one: (one.op, one.device.slug))
    try:
        is_database = database.is_database(path)
    except OSError as e:
        raise TableError(f"cannot read {path}: {e.strerror}") from e
    return _of_database(where) if is_database else [table.load(path)]


def _of_database(where: str) -> list[Table]:
    from tuner.store.store import Store
    from tuner.tables.export import select

    with Store.open(where, read_only=True) as store:
        found = select(store.winners(), store.families()).tables
    return sorted(found, key=lambda one: (one.op, one.device.slug))
