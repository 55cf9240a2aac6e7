"""Compiled kernels, as `tuner warm`, `tuner export` and `tuner import` have them made and tell of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import kernel_options
from tuner.cli.output import quantity
from tuner.errors import TableError, UsageError
from tuner.kernel import registry

if TYPE_CHECKING:
    from tuner.hardware.device import Device
    from tuner.kernel.config import Config
    from tuner.lookup.table import Table
    from tuner.problem import Problem
    from tuner.sweep.compile_pool import CompilePool
    from tuner.tables.binaries import Written

with_kernels_option = click.option(
    "--with-kernels",
    is_flag=True,
    help="Compile the tables' kernels for this Triton and write them beside the tables; needs no GPU.",
)
_FEW = 16
"""So many binaries are compiled by one process in about the time that a pool's children take to start."""


def check(kernels: Sequence[str], *, with_kernels: bool) -> None:
    """Import the kernels that `--kernel` names for `--with-kernels`.

    Raises:
        UsageError: there is nothing to compile them for, or nothing is compiled here; or see `kernel_options.find`.
    """
    if not with_kernels:
        if kernels:
            raise UsageError("--kernel names a kernel to compile: add --with-kernels")
        return
    from triton import knobs

    if knobs.runtime.interpret:
        raise UsageError("--with-kernels compiles, which cannot be done under TRITON_INTERPRET=1: unset it")
    for name in kernels:
        kernel_options.find(name)


def write(tables: Iterable[Table], folder: Path) -> tuple[list[tuple[Table, Written]], list[TableError]]:
    """Write the kernels of tables beside them, and return what was written and why others could not be.

    A table that ships without kernels is a line on stderr.

    Raises:
        DeviceError: no compiler serves a table's device.
        SweepError: see `CompilePool.recover`.
    """
    by_device: dict[str, list[Table]] = {}
    for table in tables:
        if table.device.is_interpreter:
            click.echo(f"{table.op} on {table.device.slug} ships without kernels: nothing is compiled there", err=True)
        elif not registry.of(table.op):
            click.echo(f"{table.op} ships without kernels: say which it is, --kernel MODULE:NAME", err=True)
        else:
            by_device.setdefault(table.device.slug, []).append(table)
    with told_where_to_go_on("the tables are written, but not all of their kernels"):
        return _write(by_device.values(), folder)


@contextlib.contextmanager
def told_where_to_go_on(done: str) -> Iterator[None]:
    """Say of an interrupt what is there; what has compiled by then is in Triton's cache."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"{done}: the same command compiles what is left", err=True)
        raise


def _write(by_device: Iterable[list[Table]], folder: Path) -> tuple[list[tuple[Table, Written]], list[TableError]]:
    from tuner.sweep import cross_target
    from tuner.tables import binaries

    written: list[tuple[Table, Written]] = []
    errors: list[TableError] = []
    for mine in by_device:
        cross_target.activate(mine[0].device.arch)
        launched = [(table, binaries.asked(table)) for table in mine]
        broken = _compile_ahead(mine[0].device, [each for _, some in launched for each in some])
        for table, some in launched:
            its = {each: broken[each] for each in some if each in broken}
            try:
                written.append((table, binaries.write(table, folder, some, its)))
            except TableError as e:
                errors.append(e)
    return written, errors


def _compile_ahead(device: Device, launched: Sequence[tuple[Problem, Config]]) -> dict[tuple[Problem, Config], str]:
    """Put much that is launched into Triton's cache, several at a time; returns what did not compile, and why."""
    from tuner.sweep.compile_pool import CompilePool, cpu_count

    if len(launched) <= _FEW or cpu_count() < 2:
        return {}
    with CompilePool(device, workers=cpu_count()) as pool:
        return compile_all(pool, launched)


def compile_all(pool: CompilePool, asked: Iterable[tuple[Problem, Config]]) -> dict[tuple[Problem, Config], str]:
    """Have everything compiled as it is listed, with a bar on a terminal; returns what did not compile, and why."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("compiling"), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    # Elsewhere it would leave an empty line. FORCE_COLOR in a log wants no bar there.
    silent = sys.stderr is None or not sys.stderr.isatty()
    with Progress(*columns, console=console, transient=True, disable=silent) as progress:
        bar, listed = progress.add_task("", total=None), 0

        def counted() -> Iterator[tuple[Problem, Config]]:
            nonlocal listed
            for each in asked:
                yield each
                listed += 1
            progress.update(bar, total=listed)

        return pool.compile_all(counted(), lambda left: progress.update(bar, completed=max(0, listed - left)))


def as_json(written: Iterable[Written]) -> list[dict[str, Any]]:
    """What was written, for a command's JSON document."""
    return [{"path": one.path, "kernels": one.kernels, "bytes": one.nbytes, "failed": one.failed} for one in written]


def report(written: Iterable[Written]) -> None:
    """Say what was written, and on stderr what was left out."""
    for one in written:
        click.echo(f"{one.path}: {quantity(one.kernels, 'kernel')}, {one.nbytes} B")
        for failure in one.failed:
            click.echo(f"left out of the kernels: {failure}", err=True)
