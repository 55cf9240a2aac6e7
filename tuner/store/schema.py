"""The schema's revision: whether a database is empty, behind, at the head or ahead, and how it moves.

The migrations are the only truth of the schema. Alembic is imported when a migration or a comparison needs it, since it
takes longer to import than a database takes to open.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, column, func, inspect, select, table

from tuner.errors import SchemaError
from tuner.lookup.database import REVISION
from tuner.store import models
from tuner.store.backup import backup_file
from tuner.store.engine import Database, lacking, locate, opened, writing

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = REVISION
"""The revision this version reads and writes: the newest of migrations/versions (a test compares them)."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What `upgrade` did.

    Attributes:
        location: where the database is.
        before, after: revisions; None is an empty database.
        backup: the copy made before; None when there were no rows, nothing to do, or no file (a server's database).
    """

    location: str
    before: str | None
    after: str
    backup: Path | None


def revision(connection: Connection, database: Database) -> str | None:
    """The revision of a database; None when it is empty.

    Raises:
        SchemaError: it has tables, but they are not ours, whichever revision of theirs it names.
    """
    tables = inspect(connection).get_table_names()
    if not tables:
        return None
    ours = models.metadata.tables.keys() & set(tables)
    found = None
    # Others use Alembic too, and name revisions as we do; a damaged database of ours may lack a table.
    if "alembic_version" in tables and 2 * len(ours) > len(models.metadata.tables):
        found = connection.execute(select(column("version_num")).select_from(table("alembic_version"))).scalar()
    if found is None:
        raise SchemaError(
            f"{database.label} is no database of triton-tuner but another program's (it has the tables"
            f" {', '.join(sorted(tables)[:5])}): {database.another}"
        )
    return str(found)


def prepare(engine: Engine, database: Database, *, read_only: bool) -> None:
    """Make sure that a database is at the head: an empty one is brought there, any other is refused.

    Processes that start at once do not race: one migrates, under the write lock, and the others wait for it.

    Raises:
        SchemaError: it is behind, ahead, somebody else's, or empty and `read_only`.
    """
    with engine.connect() as connection:
        found = revision(connection, database)
    if found is None and not read_only:
        with migrating(engine) as connection:
            found = revision(connection, database)
            if found is None:
                migrate(connection)
                found = HEAD
    if found != HEAD:
        raise refusal(found, database)


def upgrade(location: str | None = None) -> Upgrade:
    """Bring a database to the head, in one transaction; a SQLite file that has rows is copied first.

    Args:
        location: a path or a URL; None means `$TUNER_DB`, else the user data folder.

    Raises:
        SchemaError: it is ahead, or somebody else's.
        StoreError: it cannot be opened, locked, copied or written; it is as it was.
    """
    database = locate(location)
    with opened(database, read_only=False) as engine, migrating(engine) as connection:
        before = revision(connection, database)
        if before == HEAD:
            return Upgrade(database.label, before, HEAD, None)
        if before is not None and before not in _known():
            raise refusal(before, database)
        copy = None
        if database.path is not None and before is not None and _has_rows(connection):
            # The write lock is held: what is copied is what is upgraded.
            copy = backup_file(database.path, revision=before)
        migrate(connection)
        return Upgrade(database.label, before, HEAD, copy)


@contextmanager
def migrating(engine: Engine) -> Iterator[Connection]:
    """A connection with the write lock in one transaction, foreign keys checked only at its end.

    A migration that rebuilds a table drops it for a moment, which SQLite would take for deleting its rows, and foreign
    keys cannot be switched off inside a transaction.

    Raises:
        SchemaError: rows are left that refer to missing rows; everything is rolled back.
    """
    with writing(engine).connect() as connection:
        sqlite = connection.dialect.name == "sqlite"
        if sqlite:
            connection.connection.cursor().execute("PRAGMA foreign_keys = OFF")
        try:
            with connection.begin():
                yield connection
                if sqlite and (broken := connection.exec_driver_sql("PRAGMA foreign_key_check").all()):
                    raise SchemaError(f"the migration would leave {len(broken)} rows whose parents are missing")
        finally:
            if sqlite:
                connection.connection.cursor().execute("PRAGMA foreign_keys = ON")


def migrate(connection: Connection) -> None:
    """Run every migration up to the head inside the caller's transaction."""
    from alembic import command

    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)


def drift(connection: Connection) -> list[str]:
    """How the schema of a database at the head differs from `models.metadata`, a sentence for each difference."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    differences = compare_metadata(MigrationContext.configure(connection), models.metadata)
    views = inspect(connection).get_view_names()
    return [f"differs: {' '.join(str(part) for part in difference)}" for difference in differences] + [
        f"missing: view {view}" for view in models.VIEWS if view not in views
    ]


def refusal(found: str | None, database: Database) -> SchemaError:
    """The error for a database whose revision is not the head, with what to type; None is that of an empty one."""
    from tuner.version import __version__

    if found is None:
        return SchemaError(lacking(database))
    if found in _known():
        cure = f"run `tuner db upgrade --db {shlex.quote(database.label)}`"
        return SchemaError(f"{database.label} has schema {found}, this version needs {HEAD}: {cure}")
    return SchemaError(
        f"{database.label} has schema {found}, newer than the {HEAD} of this version ({__version__}):"
        f" upgrade triton-tuner, or {database.another}"
    )


def scripts() -> Path:
    """The folder of the migrations: migrations/ of a checkout, tuner/_migrations of a wheel."""
    return Path(next(iter(importlib.import_module("tuner._migrations").__path__)))


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _known() -> set[str]:
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def _has_rows(connection: Connection) -> bool:
    names = set(inspect(connection).get_table_names()) - {"alembic_version"}
    return any(connection.execute(select(func.count()).select_from(table(name))).scalar_one() for name in sorted(names))
