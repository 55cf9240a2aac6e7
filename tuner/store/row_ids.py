"""The ids of the rows that trials refer to: devices, environments, kernels, problems, configs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Table, bindparam, insert, select

from tuner.hardware.device import Device, Environment
from tuner.problem import Problem
from tuner.store import models
from tuner.store.records import KernelVersion

Entity = Device | Environment | KernelVersion | Problem
_CHUNK = 500  # bound parameters of one statement: older builds of SQLite stop at 999


class RowIds:
    """Finds ids, makes rows that are missing, remembers both. One writer is assumed: it holds SQLite's write lock."""

    def __init__(self) -> None:
        self._entities: dict[Entity, int] = {}
        self._configs: dict[int, dict[str, int]] = {}

    def forget(self) -> None:
        """Forget all ids; call it after a rollback, when remembered rows may not exist."""
        self._entities.clear()
        self._configs.clear()

    def find(self, connection: Connection, entity: Entity) -> int | None:
        """The id of a row, None when it is not there."""
        if entity not in self._entities:
            table, key, _ = row_of(entity)
            found: int | None = connection.execute(_finding(table, tuple(key)), key).scalar()
            if found is None:
                return None
            self._entities[entity] = found
        return self._entities[entity]

    def make(self, connection: Connection, entity: Entity) -> int:
        """The id of a row, inserted when it is not there."""
        found = self.find(connection, entity)
        if found is None:
            table, key, rest = row_of(entity)
            found = self._entities[entity] = insert_row(connection, table, key | rest)
        return found

    def make_configs(self, connection: Connection, kernel_id: int, configs: Mapping[str, str]) -> dict[str, int]:
        """Ids of a kernel's configs, of these at least, inserted where they are not there: three statements for any.

        Args:
            connection: holds the write lock.
            kernel_id: the kernel's.
            configs: parameters by digest (`Config.parameters_json`, `Config.digest`).

        Returns:
            Ids by digest.
        """
        known = self._configs.setdefault(kernel_id, {})
        missing = [digest for digest in configs if digest not in known]
        if missing:
            known.update(_ids_of_configs(connection, kernel_id, missing))
            rows = [
                {"kernel_id": kernel_id, "parameters": configs[digest], "hash": digest}
                for digest in missing
                if digest not in known
            ]
            if rows:
                connection.execute(insert(models.config), rows)
                known.update(_ids_of_configs(connection, kernel_id, missing))
        return known


def _ids_of_configs(connection: Connection, kernel_id: int, hashes: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(hashes), _CHUNK):
        rows = connection.execute(
            select(models.config.c.hash, models.config.c.config_id).where(
                models.config.c.kernel_id == kernel_id, models.config.c.hash.in_(hashes[start : start + _CHUNK])
            )
        )
        found.update((digest, config_id) for digest, config_id in rows)
    return found


def insert_row(connection: Connection, table: Table, row: dict[str, Any]) -> int:
    """Insert one row and return its id."""
    inserted = connection.execute(insert(table), row).inserted_primary_key
    assert inserted is not None
    return int(inserted[0])


def row_of(entity: Entity) -> tuple[Table, dict[str, Any], dict[str, Any]]:
    """A value's table, the columns that identify it there, and its other columns."""
    if isinstance(entity, Problem):
        return models.problem, entity.fields() | {"extras": _canonical_json(dict(entity.extras))}, {}
    columns = dataclasses.asdict(entity)
    if isinstance(entity, Device):
        return models.device, {"slug": columns.pop("slug")}, columns
    if isinstance(entity, Environment):
        digest = hashlib.sha256(_canonical_json(columns).encode()).hexdigest()[:16]
        return models.environment, {"hash": digest}, columns
    return models.kernel, columns, {}


@functools.cache  # a fleet's ledger asks hundreds of times a second, and making the statement is most of the work
def _finding(table: Table, names: tuple[str, ...]) -> Select[Any]:
    (primary,) = table.primary_key.columns
    return select(primary).where(*(table.c[name] == bindparam(name) for name in names))


def _canonical_json(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
