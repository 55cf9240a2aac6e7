"""How commands print: tables, JSON documents, counts, and winners the same way everywhere."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TextIO

import click

from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import Winner

FIGURES = ("us", "TFLOPS", "vs default", "vs vendor", "ties")
"""The columns that `figures` fills."""
_NUMBERS = {
    *FIGURES,
    "registers",
    "spills",
    "shared",
    "trials",
    "complete",
    "winners",
    "runs",
    "configs",
    "to try",
    "known",
    "rate",
    "rows",
    "95%",
    "held out",
    "regret",
    "worst",
    "formula's",
    "formula's worst",
}

_PIECE = 16
"""A column folded to fewer characters cannot be read."""


_document: TextIO | None = None
"""Where a JSON document goes while `document_only` keeps stdout for it."""


@contextlib.contextmanager
def document_only() -> Iterator[None]:
    """Keep stdout for one JSON document: what else is printed there, by a user's module for one, goes to stderr."""
    global _document  # noqa: PLW0603
    before = sys.stdout
    if before is None:  # a shell closed it
        yield
    elif _is_descriptor_1(before):
        # The descriptor is moved, because C code and child processes print too, and for good, because atexit does.
        before.flush()
        _document = os.fdopen(os.dup(1), "w", encoding=before.encoding, errors=before.errors)
        os.dup2(2, 1)
        try:
            yield
        finally:
            _document.close()
    else:
        _document = before
        with contextlib.redirect_stdout(sys.stderr):
            yield
        _document = None


def _is_descriptor_1(stream: TextIO) -> bool:
    try:
        return stream.fileno() == 1
    except (OSError, ValueError):  # a stream in memory, which takes stdout's place in a test
        return False


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; it may hold what `plain` knows."""
    click.echo(json.dumps(document, indent=2, sort_keys=True, default=plain), file=_document)


def plain(value: object) -> object:
    """Return what JSON holds of a problem, a config, a record or a path: the `default` of `json.dumps`."""
    if isinstance(value, Problem):
        return value.fields()
    if isinstance(value, Config):
        return config_document(value)
    return by_name(value) if is_dataclass(value) else str(value)


def by_name(record: Any, *left_out: str) -> dict[str, Any]:
    """Return the fields of a dataclass's instance by name, but for some."""
    return {field.name: getattr(record, field.name) for field in fields(record) if field.name not in left_out}


def warn(line: str) -> None:
    """Print a line on stderr."""
    click.echo(line, err=True)


def how_to_resume(fresh_since: str | None) -> str:
    """What to type in place of --fresh, which would measure all again, to go on; "" for other runs."""
    return "" if fresh_since is None else f"with --fresh-since {fresh_since} in place of --fresh "


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun: "1 row", "2 rows", "0 aliases", "2 families"."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun}"


def span(seconds: float) -> str:
    """Return a rough time span: "40 s", "5 min", "3 h"."""
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print a plain table on stdout.

    Words are folded to the terminal's width; where that is too narrow, each row becomes a block of lines. A pipe gets
    whole lines. Columns of numbers are aligned to the right. Where there is no row, `empty` is printed on stderr.
    """
    from rich.console import Console
    from rich.table import Table

    listed = [[" ".join(cell.splitlines()) for cell in row] for row in rows]
    if not listed:
        click.echo(empty, err=True)
        return
    # FORCE_COLOR makes rich take a pipe for a terminal: styles are wanted there, lines folded to a width are not.
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:  # rich would take half a millisecond for each row
        click.echo("\n".join(_plain_lines(columns, listed)))
        return
    if on_terminal and console.width < _narrowest(columns, listed):
        click.echo("\n\n".join(_block(columns, row) for row in listed))
        return
    if not on_terminal:
        # Without a height, rich takes a dumb terminal to have 80 columns.
        console = Console(markup=False, highlight=False, width=10_000, height=25)
    # rich takes colours away for NO_COLOR, and leaves bold.
    table = Table(box=None, pad_edge=False, header_style="" if os.environ.get("NO_COLOR") else "bold")
    for name in columns:
        number = _is_number(name)
        table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in listed:
        table.add_row(*row)
    with console.capture() as captured:  # rich would end the process where a pipe is closed
        console.print(table)
    click.echo(captured.get(), nl=False, color=True)  # rich decided: click would strip what FORCE_COLOR asked for


def _block(columns: Sequence[str], row: Sequence[str]) -> str:
    """A row in lines of their own, one for each column that says something."""
    width = max(map(len, columns))
    return "\n".join(f"{name:<{width}}  {cell}" for name, cell in zip(columns, row, strict=True) if cell)


def _plain_lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    from rich.cells import cell_len

    widths = [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        pads = [" " * (width - cell_len(cell)) for width, cell in zip(widths, row, strict=True)]
        parts = zip(columns, row, pads, strict=True)
        yield "  ".join(pad + cell if _is_number(name) else cell + pad for name, cell, pad in parts).rstrip()


def _narrowest(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the least readable width: numbers are whole, words are folded to `_PIECE` characters."""
    widest = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    parts = [width if _is_number(name) else min(width, _PIECE) for name, width in zip(columns, widest, strict=True)]
    return sum(parts) + 2 * (len(parts) - 1)


def _is_number(column: str) -> bool:
    return column in _NUMBERS or column.endswith((" us", " s")) or column.startswith("vs ")


def figures(winner: Winner) -> tuple[str, ...]:
    """Return cells for `FIGURES`: microseconds, TFLOPS, speed against default and vendor, number of ties."""
    return (
        f"{winner.median_us:.2f}",
        f"{winner.tflops:.4g}" if winner.tflops else "",
        ratio(winner.vs_default),
        ratio(winner.vs_vendor),
        str(winner.ties),
    )


def ratio(value: float | None) -> str:
    """Format a factor; "" where it is unknown."""
    return "" if value is None else f"{value:.3f}x"


def config_document(config: Config) -> dict[str, Any]:
    """Return a config as a JSON object."""
    return {"kernel": config.kernel, "config": dict(config.pairs)}


def winner_document(winner: Winner) -> dict[str, Any]:
    """Return a winner as a JSON object, with its evidence and provenance."""
    return {
        **by_name(winner, "config", "run_id"),
        **config_document(winner.config),
        "tflops": winner.tflops,
        "vs_default": winner.vs_default,
        "vs_vendor": winner.vs_vendor,
    }
