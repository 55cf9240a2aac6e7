"""A small copy of a SQLite database: one file with the current winners of some devices and what they rest on."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from pathlib import Path

from sqlalchemy import Column, Connection, Engine, delete, select, union, update

from tuner import files
from tuner.store import models
from tuner.store.backup import backup_file
from tuner.store.engine import Database, opened, writing
from tuner.store.schema import HEAD

_REFERENCES: tuple[tuple[Column[int], tuple[Column[int], ...]], ...] = (
    (models.trial.c.trial_id, (models.winner.c.trial_id,)),
    (models.run.c.run_id, (models.winner.c.run_id, models.trial.c.run_id, models.family.c.run_id)),
    (models.config.c.config_id, (models.winner.c.config_id, models.trial.c.config_id)),
    (
        models.problem.c.problem_id,
        (
            models.winner.c.problem_id,
            models.trial.c.problem_id,
            models.family.c.problem_id,
            models.family_range.c.problem_id,
        ),
    ),
    (models.kernel.c.kernel_id, (models.config.c.kernel_id,)),
    (models.environment.c.environment_id, (models.winner.c.environment_id, models.run.c.environment_id)),
    (models.device_alias.c.device_id, (models.winner.c.device_id,)),
    (models.device.c.device_id, (models.winner.c.device_id, models.run.c.device_id)),
)
"""A key and the columns that refer to it. Rows that none refers to are removed, in this order."""


def extract(source: Path, target: Path, slugs: Collection[str]) -> None:
    """Copy a database and keep of the copy only current winners of some devices.

    The copy has no write-ahead log and no free pages, so that it can be opened with `immutable=1` wherever it lies. A
    file of that name is replaced at the end, whole.

    Args:
        source: a database at the head; it may be in use.
        target: the copy.
        slugs: the devices.

    Raises:
        StoreError: the copy could not be written; what was there is as it was.
    """
    with files.replacing(target) as partial:
        partial.unlink(missing_ok=True)
        database = Database(str(target), partial)
        backup_file(source, revision=HEAD, destination=partial)
        with opened(database, read_only=False) as engine:
            with writing(engine).begin() as connection:
                _thin_out(connection, slugs)
            _vacuum(engine)


def _thin_out(connection: Connection, slugs: Collection[str]) -> None:
    wanted = select(models.device.c.device_id).where(models.device.c.slug.in_(slugs))
    winner = models.winner
    others = select(models.family.c.family_id).where(models.family.c.device_id.not_in(wanted))
    current = select(winner.c.winner_id).where(winner.c.superseded_by.is_(None), winner.c.device_id.in_(wanted))
    connection.execute(delete(winner).where(winner.c.winner_id.not_in(current)))
    family, family_range = models.family, models.family_range
    connection.execute(delete(family_range).where(family_range.c.family_id.in_(others)))
    connection.execute(delete(family).where(family.c.device_id.not_in(wanted)))
    for key, references in _REFERENCES:
        used = union(*(select(column) for column in references)).subquery()
        connection.execute(delete(key.table).where(key.not_in(select(*used.c))))
    connection.execute(update(models.run).values(argv="[]", host=""))


def _vacuum(engine: Engine) -> None:
    with closing(engine.raw_connection()) as connection:
        driver = connection.driver_connection
        assert driver is not None
        driver.execute("VACUUM")
