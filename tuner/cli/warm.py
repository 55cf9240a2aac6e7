"""`tuner warm`: compiles what tables launch, so that no later process waits for a compiler."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import kernel_files, kernel_options, options, output
from tuner.cli.output import quantity
from tuner.errors import DeviceError, TableError, UsageError
from tuner.hardware.device import INTERPRETER, Device, current

if TYPE_CHECKING:
    from tuner.lookup.row import Row
    from tuner.lookup.sources import Source
    from tuner.problem import Problem
    from tuner.problem.family import Range


@click.command()
@click.argument("places", metavar="[TABLE|DIR|DB|PACKAGE]...", nargs=-1, type=options.Place())
@click.option(
    "--device",
    "slug",
    callback=options.not_empty,
    metavar="NAME",
    help="Compile for this device, which this machine need not have; `tuner show devices` lists a database's. "
    "[default: this machine's GPU]",
)
@click.option(
    "--jobs", type=click.IntRange(min=1), metavar="N", help="How many compile at a time. [default: all cores]"
)
@kernel_options.kernel_option
@options.json_option
def warm(places: tuple[str, ...], slug: str | None, jobs: int | None, kernels: tuple[str, ...], as_json: bool) -> int:
    """Compile what tables and databases launch into Triton's cache.

    Without a name, it takes every source that lookups ask here: $TUNER_TABLES, the database and the tables of installed
    packages. What is in the cache already is not compiled again. No GPU is needed, so an image can be built with a warm
    cache.
    """
    from triton import knobs

    from tuner.sweep.compile_pool import CompilePool, cpu_count
    from tuner.tables.binaries import served

    if knobs.runtime.interpret:
        raise UsageError("the interpreter compiles nothing: unset TRITON_INTERPRET")
    for name in kernels:
        kernel_options.find(name)
    device, rows, ranges, left_out = _rows(places, slug)
    begun = time.monotonic()
    gone_on = kernel_files.told_where_to_go_on("not all is in Triton's cache")
    with gone_on, CompilePool(device, workers=jobs or cpu_count()) as pool:
        unmade = kernel_files.compile_all(pool, served(rows, device, ranges))
    failed = {f"{problem}: {config}": message for (problem, config), message in unmade.items()}
    summary = {
        "device": device.slug,
        "rows": len(rows),
        "kernels": pool.compiled,
        "seconds": round(time.monotonic() - begun, 1),
        "cache": knobs.cache.dir,
        "failed": failed,
        "left_out": left_out,
    }
    _report(summary, as_json=as_json)
    return 1 if failed else 0


def _rows(
    places: Sequence[str], slug: str | None
) -> tuple[Device, list[Row], list[tuple[Problem, Range]], Counter[str]]:
    """The device, the rows that sources hold for it, the ranges of M by their problems, and why rows are left out."""
    from tuner.lookup import device_names, sources
    from tuner.lookup.lookup import resolver
    from tuner.tables.export import usable

    asked = [sources.named(place) for place in places] if places else resolver().sources.all()
    try:
        device = current() if slug is None else device_names.named(slug, asked)
    except DeviceError as e:
        raise UsageError(f"{e}" if slug else _no_gpu(asked)) from e
    if device.is_interpreter:
        raise UsageError("the interpreter compiles nothing: name a GPU, --device NAME")
    by_source = [source.winners(device.slug) for source in asked]
    held = dict.fromkeys(row for winners in by_source for rows in winners.rows.values() for row in rows)
    rows, refused = usable(held, device)
    left_out = Counter(refused.values())
    if not rows:
        where = ", ".join(source.name for source in asked) or "any source"
        if left_out:
            state = "all stale" if all(reason.startswith("stale: ") for reason in left_out) else "none can be used"
            whose = f"{where}: {quantity(len(held), 'row')} of {device.slug}, {state}"
            raise TableError(f"{whose}: {_reasons(left_out).removeprefix('stale: ')}: tune again with `tuner run`")
        raise TableError(f"no row of {device.slug} in {where}: name a table of it, or tune on it with `tuner run`")
    ranges = [each for winners in by_source for tuned in winners.families.values() for each in tuned.by_row()]
    return device, rows, ranges, left_out


def _no_gpu(asked: Sequence[Source]) -> str:
    slugs = sorted({slug for source in asked for slug in source.slugs()} - {INTERPRETER.slug})
    if not slugs:
        where = ", ".join(source.name for source in asked) or "any source"
        return f"no GPU here, and nothing in {where} is for one: name tables of a GPU"
    return f"no GPU here: name what to compile for, --device NAME, one of {', '.join(slugs)}"


def _reasons(left_out: Counter[str]) -> str:
    if len(left_out) == 1:
        return next(iter(left_out))
    shown = [f"{reason} ({quantity(count, 'row')})" for reason, count in left_out.most_common(2)]
    return "; ".join([*shown, *(["and others"] if len(left_out) > 2 else [])])


def _report(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        output.print_json(summary)
        return
    compiled = f"{quantity(summary['kernels'], 'kernel')} of {quantity(summary['rows'], 'row')}"
    click.echo(f"{summary['device']}: {compiled} in {summary['cache']}, {summary['seconds']} s")
    if summary["left_out"]:
        click.echo(
            f"left out {quantity(summary['left_out'].total(), 'row')}: {_reasons(summary['left_out'])}", err=True
        )
    for what, message in summary["failed"].items():
        click.echo(f"did not compile: {what}: {message}", err=True)
