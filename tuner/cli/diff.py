"""`tuner diff`: compares two tables or databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tuner.cli import options, output
from tuner.errors import StoreError, TableError, UsageError
from tuner.location import without_password
from tuner.problem.family import MEASURED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tuner.lookup.row import Row
    from tuner.lookup.table import Table
    from tuner.problem.family import Check, Range
    from tuner.tables.diff import Change, Difference

_COLUMNS = ("problem", "differs", "A", "B", "worth")


@click.command()
@click.argument("before", metavar="A", type=options.Place())
@click.argument("after", metavar="B", type=options.Place())
@options.json_option
def diff(before: str, after: str, as_json: bool) -> int:
    """Compare two tables or databases.

    A and B may also be folders of tables or installed packages that ship tables. A database's winners are compared as
    they would ship.

    Exits 0 when they are equal, 1 when they differ, 2 when one cannot be read.
    """
    from tuner.tables.diff import compare

    differences = compare(_load(before), _load(after))
    equal = all(difference.is_none for difference in differences)
    if as_json:
        tables = [_document(difference) for difference in differences]
        names = {"a": without_password(before), "b": without_password(after)}
        output.print_json({**names, "equal": equal, "tables": tables})
    else:
        for difference in differences:
            _print(difference)
    if not differences:
        click.echo("neither holds a winner", err=True)
    return 0 if equal else 1


def _load(where: str) -> list[Table]:
    """The tables of a place that `tuner export` would ship: none of experts."""
    from tuner.moe.layer import OP
    from tuner.tables import diff as editions

    try:
        return [each for each in editions.load(where, output.warn) if each.op != OP]
    except (StoreError, TableError) as e:
        raise UsageError(str(e)) from e  # exit code 1 means that they differ


def _print(difference: Difference) -> None:
    rows: list[tuple[str, ...]] = [
        (str(row.problem), "only in A", row.config.label, "", "") for row in difference.only_before
    ]
    rows += [(str(row.problem), "only in B", "", row.config.label, "") for row in difference.only_after]
    rows += [_cells(change) for change in difference.changes]
    for each in difference.moved:
        if each.before or each.after:
            rows.append((each.family, "ranges", _spans(each.before), _spans(each.after), ""))
        if each.checks is not None:
            rows.append((each.family, "check", *map(_losses, each.checks), ""))
    click.echo(f"{difference.op} on {difference.device}: {_summary(difference)}")
    if rows:
        output.print_table(_COLUMNS, rows, empty="")


def _spans(ranges: Iterable[Range]) -> str:
    shown = ((f"{each.first_m}-{each.last_m}", each.evidence) for each in ranges)
    return ", ".join(span if evidence == MEASURED else f"{span} {evidence}" for span, evidence in shown)


def _losses(checks: Iterable[Check | None]) -> str:
    shown = (f"{check.geomean - 1:.1%}, at most {check.worst - 1:.1%}" if check else "none" for check in checks)
    return "; ".join(shown)


def _summary(difference: Difference) -> str:
    if difference.is_none:
        return "equal"
    configs = sum("config" in change.differs for change in difference.changes)
    parts = [
        f"{len(difference.only_before)} only in A",
        f"{len(difference.only_after)} only in B",
        f"{len(difference.changes)} changed, {configs} of them in config",
    ]
    if difference.moved:
        parts.append(f"{output.quantity(len(difference.moved), 'family')} with other ranges or checks")
    if difference.gain is not None:
        parts.append(f"where comparable B's configs are {output.ratio(difference.gain)} as fast (geometric mean)")
    digests = (digest[:15] if digest else "none" for digest in difference.digests)
    return f"{'; '.join(parts)}; digests {' and '.join(digests)}"


def _cells(change: Change) -> tuple[str, ...]:
    before, after = change.before, change.after
    labels = [f"{row.config.label}{_version(change, row)}" for row in (before, after)]
    if "environment" in change.differs:
        labels = [f"{label} ({_made(row)})" for label, row in zip(labels, (before, after), strict=True)]
    if change.ratio is not None:
        worth = output.ratio(change.ratio)
    else:
        evidence = [f"{name} {_step(*pair)}" for name, pair in _evidence(change).items() if any(pair)]
        worth = "; ".join(["not comparable", *evidence])
    return (str(before.problem), ", ".join(change.differs), *labels, worth)


def _evidence(change: Change) -> dict[str, tuple[float | None, float | None]]:
    before, after = change.before, change.after
    return {
        "vs default": (before.vs_default, after.vs_default),
        "vs vendor": (before.vs_vendor, after.vs_vendor),
    }


def _step(before: float | None, after: float | None) -> str:
    return f"{output.ratio(before) or '?'} -> {output.ratio(after) or '?'}"


def _version(change: Change, row: Row) -> str:
    return f" version {row.kernel_version}" if "kernel version" in change.differs else ""


def _made(row: Row) -> str:
    environment = row.made.environment
    versions = f"Triton {environment.triton}, torch {environment.torch}, {environment.backend}"
    return f"{versions}, driver {environment.driver}, protocol {row.made.protocol}, tuner {row.made.tool_version}"


def _document(difference: Difference) -> dict[str, Any]:
    return {
        "op": difference.op,
        "device": difference.device,
        "equal": difference.is_none,
        "digests": dict(zip("ab", difference.digests, strict=True)),
        "only_in_a": [_row(row) for row in difference.only_before],
        "only_in_b": [_row(row) for row in difference.only_after],
        "changed": [
            {
                "problem": change.before.problem,
                "differs": change.differs,
                "ratio": change.ratio,
                "a": _row(change.before),
                "b": _row(change.after),
            }
            for change in difference.changes
        ],
        "moved": [
            {"family": each.family, "a": each.before, "b": each.after, "checks": each.checks}
            for each in difference.moved
        ],
        "gain": difference.gain,
    }


def _row(row: Row) -> dict[str, Any]:
    own = output.by_name(row, "config", "made", "source_hash")
    return {**own, **output.config_document(row.config), **output.by_name(row.made)}
