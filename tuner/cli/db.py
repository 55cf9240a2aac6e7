"""`tuner db`: upgrades, checks and backs up the database."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.cli import options, output
from tuner.errors import StoreError


@click.group()
def db() -> None:
    """Upgrade, check or back up the database."""


@db.command()
@options.db_option
@options.json_option
def upgrade(db: str | None, as_json: bool) -> None:
    """Bring the database to this version's schema.

    One that has rows is copied first; a missing one is made.
    """
    from tuner.store import schema

    done = schema.upgrade(db)
    if as_json:
        output.print_json(done)
    elif done.before == done.after:
        click.echo(f"{done.location} is at {done.after} already")
    else:
        if done.backup is not None:
            click.echo(f"copied to {done.backup}")
        if done.before is None:
            click.echo(f"made {done.location} at {done.after}: it was missing or empty")
        else:
            click.echo(f"{done.location}: {done.before} -> {done.after}")


@db.command()
@options.db_option
@options.json_option
def current(db: str | None, as_json: bool) -> None:
    """Print its revision and the one that this version needs."""
    from tuner.store import health, schema

    location, revision = health.current(db)
    if as_json:
        output.print_json({"location": location, "revision": revision, "head": schema.HEAD})
    else:
        click.echo(f"{location}: {revision or 'empty'} (head {schema.HEAD})")


@db.command()
@options.db_option
@options.json_option
def check(db: str | None, as_json: bool) -> int:
    """Check pages, references, revision and schema.

    Exits 1 when something is wrong.
    """
    from tuner.store import health, schema
    from tuner.store.engine import locate

    try:
        health_report = health.check(db)
    except StoreError as e:
        if not as_json:
            raise
        health_report = health.Health(locate(db).label, None, schema.HEAD, (str(e),))
    if as_json:
        output.print_json({**output.by_name(health_report), "ok": not health_report.complaints})
    else:
        for complaint in health_report.complaints or ("pages, references and schema are sound",):
            click.echo(f"{health_report.location}: {complaint}")
    return 1 if health_report.complaints else 0


@db.command()
@click.argument("destination", metavar="[DEST]", required=False, type=options.Place(path_type=Path))
@options.db_option
@options.json_option
def backup(destination: Path | None, db: str | None, as_json: bool) -> None:
    """Copy the database, also while a run writes to it.

    DEST is a file or a folder; without it the copy lies beside the database. No file is replaced.
    """
    from tuner.store import health
    from tuner.store.backup import backup_file
    from tuner.store.engine import locate

    location, revision = health.current(db)
    path = locate(db).path
    if path is None:
        raise StoreError(f"{location} is on a server: copy it by its own means, for instance pg_dump")
    if revision is None:
        raise StoreError(f"{location} is empty, there is nothing to copy: name another with --db")
    copy = backup_file(path, revision=revision, destination=destination)
    if as_json:
        output.print_json({"location": location, "revision": revision, "backup": copy})
    else:
        click.echo(copy)
