"""Runs the migrations on the connection that tuner.store.schema hands over, inside its transaction.

Alembic's own command line hands none over: it gets an empty database in memory, brought to the head first, so that
`alembic revision --autogenerate` and `alembic check` compare the models with the migrations and with nothing else.
"""

from __future__ import annotations

from typing import Literal

from alembic import context
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Connection, create_engine

from tuner.store.column_values import Stored
from tuner.store.models import metadata


def run(connection: Connection) -> None:
    """Run what Alembic asked for. Batches, because SQLite can alter little of a table in place."""
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        transactional_ddl=True,
        render_item=rendered,
    )
    with context.begin_transaction():
        context.run_migrations()


def rendered(kind: str, item: object, _context: object) -> str | Literal[False]:
    """Write a column's own type into a migration, not the one that checks what is read; False leaves it to Alembic."""
    return f"sa.{type(item.kind).__name__}()" if kind == "type" and isinstance(item, Stored) else False


def bring_to_head(connection: Connection) -> None:
    """Apply every migration to an empty database, without a second environment inside this one."""
    scratch = MigrationContext.configure(connection)
    with Operations.context(scratch):
        for script in reversed(list(context.script.walk_revisions())):
            script.module.upgrade()
    scratch.stamp(context.script, "head")


handed = context.config.attributes.get("connection")
if handed is not None:
    run(handed)
elif context.is_offline_mode():
    context.configure(dialect_name="sqlite", target_metadata=metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine("sqlite://").connect() as memory:
        bring_to_head(memory)
        run(memory)
