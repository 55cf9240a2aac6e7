"""`tuner export`: writes tuned tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner import files
from tuner.cli import kernel_files, kernel_options, options, output
from tuner.cli.output import quantity
from tuner.errors import TableError, UsageError
from tuner.hardware.device import INTERPRETER
from tuner.location import database_location, sqlite_path
from tuner.moe.layer import OP as EXPERTS

if TYPE_CHECKING:
    from tuner.adopt.compiled_files import Binary
    from tuner.store.records import DecidedFamily, Winner
    from tuner.tables.binaries import Written
    from tuner.tables.export import Selection


@click.command()
@click.argument("directory", metavar="DIR", type=options.Place(path_type=Path))
@click.option(
    "--format",
    "kind",
    type=click.Choice(["table", "sqlite", "vllm", "sglang", "triton", "python"]),
    default="table",
    show_default=True,
    help="JSON tables, one for each op and device; one SQLite file; what vLLM or SGLang read for block-scaled fp8;"
    " lists of configs for triton.autotune; Python modules that need nothing else.",
)
@click.option("--package", metavar="IMPORT.NAME", help="Write the tables as data of this package, whose root is DIR.")
@kernel_files.with_kernels_option
@kernel_options.kernel_option
@click.option(
    "--captured",
    multiple=True,
    metavar="DIR",
    type=options.Place(path_type=Path),
    help="With --with-kernels: compile adopted kernels for the captured calls, and write the captured binaries; may be"
    " repeated.",
)
@options.slug_option
@options.db_option
@options.json_option
def export(
    *,
    directory: Path,
    kind: str,
    package: str | None,
    with_kernels: bool,
    kernels: tuple[str, ...],
    captured: tuple[Path, ...],
    device: str | None,
    db: str | None,
    as_json: bool,
) -> None:
    """Write the current winners in files that ship.

    Winners of the interpreter are left out, unless --device interpreter asks for them.
    """
    if package is not None and kind != "table":
        raise UsageError("--package ships tables: leave --format out")
    if with_kernels and kind != "table":
        raise UsageError("--with-kernels ships kernels beside tables: leave --format out")
    if captured and not with_kernels:
        raise UsageError("--captured names what to compile: add --with-kernels")
    kernel_files.check(kernels, with_kernels=with_kernels)
    if captured:
        kernel_options.find_captured(captured)
    compiled = _compiled(captured, device)
    winners, families = _decided(db, device, is_needed=not compiled, with_experts=kind == "sqlite")
    if kind == "sqlite":
        _write_database(db, directory, winners, as_json=as_json)
        return
    from tuner.tables import export as table
    from tuner.tables import package as packages

    selection = table.select(winners, families, for_installed=True)
    if not (selection.tables or compiled):
        raise TableError(f"no winner to export: {_stale(selection)}")
    if kind in ("vllm", "sglang"):
        _write_for_servers(kind, directory, selection, db, as_json=as_json)
        return
    if kind in ("triton", "python"):
        write = _write_lists if kind == "triton" else _write_modules
        write(directory, selection, as_json=as_json)
        return
    folder = directory if package is None else packages.prepare(directory, package)
    lines = None if package is None else packages.pyproject_lines(package, with_kernels=with_kernels)
    paths = table.write(selection.tables, folder)
    binaries, errors = _write_kernels(selection, folder, compiled) if with_kernels else (None, [])
    _report_tables(selection, paths, binaries, lines, as_json=as_json)
    if errors:
        raise errors[0]


def _compiled(captured: Sequence[Path], device: str | None) -> list[Binary]:
    """Return the binaries that were captured; each that cannot be shipped is a line on stderr."""
    if not captured:
        return []
    from tuner.adopt import compiled_files
    from tuner.lookup import device_names

    binaries, faults = compiled_files.load(captured)
    kept, others = compiled_files.of_this_triton(
        each for each in binaries if device_names.is_named(each.device, device)
    )
    for fault in (*faults, *others):
        click.echo(f"left out: {fault}", err=True)
    return kept


def _decided(
    db: str | None, device: str | None, *, is_needed: bool, with_experts: bool
) -> tuple[list[Winner], list[DecidedFamily]]:
    if not is_needed and db is None and (path := sqlite_path(database_location())) is not None and not path.exists():
        return [], []
    from tuner.lookup import device_names

    with options.open_store(db) as store:
        slugs = [row.device.slug for row in store.devices()]
        # A device may have captured kernels alone.
        if is_needed or (device is not None and device_names.matching(slugs, device)):
            device = options.slug_in(store, device)
        winners = store.winners(device_slug=device)
        families = store.families(device_slug=device)
        location = store.location
    if device is None:
        interpreted = [winner for winner in winners if winner.device.slug == INTERPRETER.slug]
        winners = [winner for winner in winners if winner.device.slug != INTERPRETER.slug]
        if interpreted and not winners and is_needed:
            raise TableError(
                f"{location} has winners of the interpreter only, which are no figures of a GPU: to export them all the"
                " same add --device interpreter"
            )
    experts = 0 if with_experts else sum(winner.problem.op == EXPERTS for winner in winners)
    if experts:
        click.echo(f"{quantity(experts, 'winner')} of experts left out: `tuner moe` writes their files", err=True)
        winners = [winner for winner in winners if winner.problem.op != EXPERTS]
    if not winners and is_needed:
        raise TableError(store.lacks("winner to export" if device or experts else "winner"))
    return winners, families


def _write_database(db: str | None, directory: Path, winners: list[Winner], *, as_json: bool) -> None:
    from tuner.store.extract import extract

    slugs = sorted({winner.device.slug for winner in winners})
    path = extract(db, directory, slugs)
    if as_json:
        output.print_json({"written": [{"path": path, "devices": slugs, "winners": len(winners)}]})
    else:
        click.echo(f"{path}: {quantity(len(winners), 'winner')} for {', '.join(slugs)}")


def _write_for_servers(dialect: str, directory: Path, selection: Selection, db: str | None, *, as_json: bool) -> None:
    from tuner.tables import vllm

    with options.open_store(db) as store:
        chosen = vllm.select(selection.tables, vllm.measured_in(store))
    for row in chosen.skipped:
        click.echo(f"left out: {row.problem}: their kernel cannot run {row.config.label}, nor any measured", err=True)
    if not chosen.files:
        raise TableError(
            f"no winner can be said in the files of --format {dialect}: they are for fp8 with scaling block, layout nt"
        )
    files.make_folder(directory)
    written: list[dict[str, Any]] = [
        {"path": file.write(directory, dialect), "rows": len(file.rows)} for file in chosen.files
    ]
    left_out = {**_left_out(selection), "skipped": len(chosen.skipped), "others": chosen.others}
    if as_json:
        output.print_json({"written": written, "replaced": len(chosen.replaced), "left_out": left_out})
        return
    for entry in written:
        click.echo(f"{entry['path']}: {quantity(entry['rows'], 'row')}")
    if chosen.replaced:
        their = "in the fastest config measured that their kernel can run, instead of their winner's"
        click.echo(f"{quantity(len(chosen.replaced), 'row')} {their}", err=True)
    if chosen.others:
        click.echo(f"left out: {quantity(chosen.others, 'winner')} of other problems", err=True)
    _say_left_out(selection)


def _write_lists(directory: Path, selection: Selection, *, as_json: bool) -> None:
    from tuner.tables import autotune

    lists = autotune.lists(selection.tables)
    files.make_folder(directory)
    written: list[dict[str, Any]] = [
        {"path": part.write(directory), "kernel": part.kernel, "device": part.device, "configs": len(part.entries)}
        for part in lists
    ]
    if as_json:
        output.print_json({"written": written, "left_out": _left_out(selection)})
        return
    for entry in written:
        click.echo(f"{entry['path']}: {quantity(entry['configs'], 'config')}")
    _say_left_out(selection)


def _write_modules(directory: Path, selection: Selection, *, as_json: bool) -> None:
    from tuner.tables import dispatcher

    sized = [table for table in selection.tables if not dispatcher.is_keyed(table)]
    keyed = {table.op: len(table.rows) for table in selection.tables if table not in sized}
    modules = [dispatcher.dispatcher(table) for table in sized or selection.tables]
    refused = [reason for each in modules for reason in each.refused]
    if not any(each.rows for each in modules):
        raise TableError(f"a lookup would use no row: {refused[0]}; tune again with `tuner run`")
    files.make_folder(directory)
    written: list[dict[str, Any]] = [
        {"path": each.write(directory), "rows": each.rows, "ranges": each.ranges, "refused": each.refused}
        for each in modules
        if each.rows
    ]
    if as_json:
        left_out = {**_left_out(selection), "keyed": sum(keyed.values()), "refused": len(refused)}
        output.print_json({"written": written, "left_out": left_out})
        return
    for entry in written:
        click.echo(f"{entry['path']}: {quantity(entry['rows'], 'row')}, {quantity(entry['ranges'], 'range')}")
    for reason in refused:
        click.echo(f"left out: {reason}", err=True)
    for op, rows in keyed.items():
        click.echo(f"left out: {quantity(rows, 'row')} of {op}, which has keys of its own", err=True)
    _say_left_out(selection)


def _write_kernels(
    selection: Selection, folder: Path, compiled: Sequence[Binary]
) -> tuple[list[Written], list[TableError]]:
    from tuner.adopt import compiled_files

    written, errors = kernel_files.write(selection.tables, folder)
    covered: dict[str, set[str]] = {}
    for table, one in written:
        covered.setdefault(table.device.slug, set()).update(one.keys)
    ops = {table.op for table in selection.tables}
    if taken := {each.library for each in compiled} & ops:
        click.echo(f"left out: binaries of {' and '.join(sorted(taken))}: an op has this name", err=True)
    shipped = [each for each in compiled if each.library not in taken]
    return [one for _, one in written] + compiled_files.export(shipped, folder, covered), errors


def _report_tables(
    selection: Selection, paths: list[Path], kernels: list[Written] | None, lines: str | None, *, as_json: bool
) -> None:
    written: list[dict[str, Any]] = [
        {
            "path": path,
            "op": table.op,
            "device": table.device.slug,
            "rows": len(table.rows),
            "families": len(table.families),
            "digest": table.digest,
        }
        for table, path in zip(selection.tables, paths, strict=True)
    ]
    if as_json:
        document = {"written": written, "left_out": _left_out(selection)}
        if kernels is not None:
            document["kernels"] = kernel_files.as_json(kernels)
        output.print_json(document | ({} if lines is None else {"pyproject": lines}))
        return
    for entry in written:
        ranges = f", {quantity(entry['families'], 'family')}" if entry["families"] else ""
        click.echo(f"{entry['path']}: {quantity(entry['rows'], 'row')}{ranges}, {entry['digest']}")
    kernel_files.report(kernels or ())
    _say_left_out(selection)
    if lines is not None:
        click.echo(f"\nAdd to pyproject.toml:\n\n{lines}")


def _left_out(selection: Selection) -> dict[str, int]:
    return {"stale": selection.stale, "older": selection.older}


def _say_left_out(selection: Selection) -> None:
    if selection.stale:
        click.echo(f"left out: {_stale(selection)}", err=True)
    if selection.older:
        click.echo(f"left out: {quantity(selection.older, 'winner')} decided again in another environment", err=True)


def _stale(selection: Selection) -> str:
    return f"{quantity(selection.stale, 'winner')} of kernels that have a newer version: tune again with `tuner run`"
