"""`tuner report`: writes what a database holds as one HTML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner import files
from tuner.cli import options, output
from tuner.errors import TableError, TunerError, UsageError
from tuner.location import database_location, sqlite_path, without_password

if TYPE_CHECKING:
    from tuner.lookup.table import Table

_SUFFIXES = (".html", ".htm")
"""Of files that are replaced whatever they hold."""


@click.command()
@click.option(
    "--out", required=True, type=options.Place(path_type=Path), metavar="FILE.html", help="The file to write."
)
@options.db_option
@options.slug_option
@options.suite_option
@click.option(
    "--against", type=options.Place(), metavar="DB|TABLES", help="Also show what became slower than in these."
)
def report(*, out: Path, db: str | None, device: str | None, suites: tuple[str, ...], against: str | None) -> None:
    """Write what a database holds as one HTML page.

    It shows winners, searches, families, failures, and the GPU's clock and power. The file holds all that it shows and
    opens anywhere: no server, no network.
    """
    from tuner.report import measurements, vega
    from tuner.report.document import document
    from tuner.report.page import page
    from tuner.report.regressions import regressions

    vega.require("a report")
    _check_out(out, db, against)
    with options.open_store(db) as store:
        measured = measurements.read(store, device=options.slug_in(store, device), suites=suites)
    edition = without_password(against or "")
    name = Path(edition).name or edition
    compared = None if against is None else regressions(measured, _edition(against), name)
    files.write_text(out, page(document(measured, against=compared)))
    if compared and compared["nothing"]:
        output.warn(f"nothing can be compared with {edition}: {compared['nothing']}")
    click.echo(f"wrote {out}", err=True)


def _check_out(out: Path, db: str | None, against: str | None) -> None:
    """Raise, before anything is read, where the file could not be written or would replace what is read."""
    location = database_location(db)
    if against is not None and _same(against, location):
        edition = without_password(against)
        raise UsageError(f"--against {edition} is the database of the report itself: name another, or tables")
    for read in (location, against):
        if read is not None and _same(str(out), read):
            raise UsageError(f"--out {out} is what the report reads: name another file, report.html for instance")
    files.check_regular(out, "report")
    if out.is_dir():
        raise TunerError(f"{out} is a folder: name a file in it, {out / 'report.html'} for instance")
    if not out.parent.is_dir():
        raise TunerError(f"cannot write {out}: there is no folder {out.parent}: make it, or name another")
    file = Path(os.path.realpath(out))  # of a link, what it links to is replaced
    if file.is_file() and file.suffix.lower() not in _SUFFIXES and not files.begins_with(file, b"<!doctype html"):
        found = f"links to {file}, which" if out.is_symlink() else "is there and"
        raise UsageError(f"--out {out} {found} is no HTML: name another file, report.html for instance")


def _same(one: str, other: str) -> bool:
    paths = [sqlite_path(each) for each in (one, other)]
    try:
        return one == other if None in paths else os.path.samefile(*filter(None, paths))  # noqa: PTH121
    except OSError:  # one of them is not there
        return False


def _edition(against: str) -> list[Table]:
    from tuner.tables import diff

    tables = diff.load(against, output.warn)
    if not tables:
        edition = without_password(against)
        raise TableError(f"{edition} holds no winner to compare with: name a database or tables that do")
    return tables
