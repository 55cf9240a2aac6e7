"""The ids of the rows that trials refer to: devices, environments, kernels, problems, configs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Table, insert, select

from tuner.hardware.device import Device, Environment
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store import models
from tuner.store.records import KernelVersion

Entity = Device | Environment | KernelVersion | Problem
_CHUNK = 500  # bound parameters of one statement: older builds of SQLite stop at 999


class Keys:
    """Finds ids, makes rows that are missing, remembers both. One writer is assumed: it holds SQLite's write lock."""

    def __init__(self) -> None:
        self._entities: dict[Entity, int] = {}
        self._configs: dict[tuple[int, Config], int] = {}

    def forget(self) -> None:
        """After a rollback: what was remembered may not be there."""
        self._entities.clear()
        self._configs.clear()

    def find(self, connection: Connection, entity: Entity) -> int | None:
        """The id of a row, None when it is not there."""
        if entity not in self._entities:
            table, key, _ = row_of(entity)
            found = _id_of(connection, table, key)
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

    def make_configs(self, connection: Connection, kernel_id: int, configs: Iterable[Config]) -> dict[Config, int]:
        """The ids of a kernel's configs, inserted where they are not there: three statements for any number."""
        wanted = dict.fromkeys(configs)
        self._find_configs(connection, kernel_id, wanted)
        missing = [config for config in wanted if (kernel_id, config) not in self._configs]
        if missing:
            rows = [{"kernel_id": kernel_id, "parameters": c.parameters_json, "hash": c.digest} for c in missing]
            connection.execute(insert(models.config), rows)
            self._find_configs(connection, kernel_id, missing)
        return {config: self._configs[kernel_id, config] for config in wanted}

    def _find_configs(self, connection: Connection, kernel_id: int, configs: Iterable[Config]) -> None:
        by_hash = {config.digest: config for config in configs if (kernel_id, config) not in self._configs}
        hashes = list(by_hash)
        for start in range(0, len(hashes), _CHUNK):
            found = connection.execute(
                select(models.config.c.hash, models.config.c.config_id).where(
                    models.config.c.kernel_id == kernel_id, models.config.c.hash.in_(hashes[start : start + _CHUNK])
                )
            )
            self._configs.update({(kernel_id, by_hash[digest]): config_id for digest, config_id in found})


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


def _id_of(connection: Connection, table: Table, key: dict[str, Any]) -> int | None:
    (primary,) = table.primary_key.columns
    return connection.execute(select(primary).where(*(table.c[name] == value for name, value in key.items()))).scalar()


def _canonical_json(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
