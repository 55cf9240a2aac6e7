"""`tuner merge`: brings other databases' measurements into one."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import click

from tuner.cli import options, output
from tuner.cli.output import quantity
from tuner.errors import TableError, UsageError


@click.command()
@click.argument("destination", metavar="DEST", type=options.Place())
@click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=options.Place())
@options.json_option
def merge(destination: str, sources: tuple[str, ...], as_json: bool) -> None:
    """Bring several databases' measurements into one.

    Adds runs, trials and winners of the databases SRC to the database DEST, which is made if missing. Each is a path or
    a URL. Sources are only read. What DEST has stays, so merging again changes nothing. If databases hold different
    winners for one problem, device and environment, the newest decision on current evidence is kept and the others
    become its history.
    """
    from tuner.store.merge import merge as merge_databases

    for each in (destination, *sources):
        _refuse_tables(Path(each))
    done = merge_databases(destination, sources)
    for conflict in done.conflicts:
        click.echo(f"{conflict.table}: {conflict.text}", err=True)
    if as_json:
        counted = Counter(conflict.table for conflict in done.conflicts)
        conflicts = {table: counted[table] for table in ("winner", "trial", "device")}
        output.print_json({**output.by_name(done), "conflicts": conflicts})
        return
    for added in done.added:
        brought = ", ".join(quantity(number, table.replace("_", " ")) for table, number in added.rows.items() if number)
        click.echo(f"{added.location}: {brought or 'nothing new'}")
    now = quantity(done.winners, "current winner")
    click.echo(f"{done.location}: {now}, {done.replaced} replaced")


def _refuse_tables(path: Path) -> None:
    """Raise UsageError for a table, a folder or an archive of them, which another command brings together."""
    from tuner.lookup.database import is_database
    from tuner.tables.importing.tables import holds_tables

    try:
        is_table = path.exists() and not (path.is_file() and is_database(path)) and holds_tables(path)
    except (OSError, TableError):
        return  # what opens it as a database says what is wrong
    if is_table:
        typed = shlex.join(["tuner", "import", str(path), "--out", "DIR"])
        raise UsageError(f"{path} is no database: tuner merge unites databases; for tables type {typed}")
