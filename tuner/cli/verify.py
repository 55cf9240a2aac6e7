"""`tuner verify`: finds faults in tables, or in a database's winners."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tuner.cli import kernel_options, options, output
from tuner.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tuner.tables.verify.finding import Finding
    from tuner.tables.verify.inspection import Inspection

_COLUMNS = ("level", "check", "problem", "found", "expected", "what to type")


@click.command()
@click.argument("places", metavar="TABLE|DB...", nargs=-1, required=True, type=options.Place())
@kernel_options.kernel_option
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option("--regret", is_flag=True, help="Measure what a lookup loses on problems that are held out.")
@click.option("--suite", metavar="NAME|FILE.csv", help="With --regret: hold these problems out, all together.")
@click.option(
    "--sample",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="With --regret and no suite: problems, each held out alone.",
)
@options.device_option("With --regret: where to measure.")
@options.json_option
@click.pass_context
def verify(ctx: click.Context, /, places: tuple[str, ...], **given: Any) -> None:
    """Say what is wrong with tables, folders of tables, installed packages' tables or databases. Needs no GPU.

    Exits 0 when there are only notes and warnings, 1 with an error, 2 when there is no such place.

    With --regret it looks problems up without their own rows instead, and measures what that loses.
    """
    for name in given["names"]:
        kernel_options.find(name)
    if given["regret"]:
        from tuner.cli import verify_regret

        if len(places) > 1:
            raise UsageError("--regret takes one table, folder of tables or database at a time")
        options_of = {name: given[name] for name in ("suite", "sample", "device", "as_json")}
        ctx.exit(0 if verify_regret.measure(places[0], **options_of) else 1)
    for name in ("suite", "sample", "device"):
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name} goes with --regret: add it, or leave --{name} out")
    ctx.exit(0 if _inspect(places, strict=given["strict"], as_json=given["as_json"]) else 1)


def _inspect(places: Iterable[str], *, strict: bool, as_json: bool) -> bool:
    from tuner.tables.verify.finding import Level
    from tuner.tables.verify.inspection import inspect

    inspections = [inspect(place) for place in places]
    levels = {finding.level for found in inspections for finding in found.findings}
    ok = not levels & ({Level.ERROR, Level.WARNING} if strict else {Level.ERROR})
    if as_json:
        listed = [{**output.by_name(found), "counts": _counts(found.findings)} for found in inspections]
        output.print_json({"ok": ok, "places": listed})
    else:
        for found in inspections:
            _print(found)
    return ok


def _print(found: Inspection) -> None:
    size = f"{output.quantity(found.tables, 'table')}, {output.quantity(found.rows, 'row')}"
    click.echo(f"{found.place}: {size}: {_summary(found)}")
    several = len({finding.place for finding in found.findings} - {found.place}) > 1
    if found.findings:
        columns = (*_COLUMNS[:2], "table", *_COLUMNS[2:]) if several else _COLUMNS
        output.print_table(columns, [_cells(finding, several=several) for finding in found.findings], empty="")


def _cells(finding: Finding, *, several: bool) -> tuple[str, ...]:
    name = _printable(finding.place.rpartition("/")[2])
    head = (str(finding.level), finding.check, *((name,) if several else ()))
    return (*head, *map(_printable, (finding.row, finding.found, finding.expected, finding.advice)))


def _printable(text: str) -> str:
    """Escape characters of a damaged table that would control a terminal or cannot be encoded."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _summary(found: Inspection) -> str:
    counts = _counts(found.findings)
    return ", ".join(output.quantity(number, str(level)) for level, number in counts.items() if number) or "clean"


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    from tuner.tables.verify.finding import LEVELS

    counts = Counter(finding.level for finding in findings)
    return {str(level): counts[level] for level in LEVELS}
