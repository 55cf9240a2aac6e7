"""How commands show winners: as a row of a table, as a JSON object. The same everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import click

from tuner.kernel.config import Config
from tuner.store.records import Winner

FIGURES = ("us", "TFLOPS", "vs default", "vs vendor", "ties")
"""Columns of a winner's figures; see `figures`."""
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
"""Characters of a word below which a folded column is a puzzle."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """A plain table on stdout: words folded to a terminal's width; whole lines in a narrow one, and for a pipe.

    Args:
        columns: headings; those of numbers are set right.
        rows: cells.
        empty: said on stderr where there is no row.
    """
    from rich.console import Console
    from rich.table import Table

    listed = list(rows)
    if not listed:
        click.echo(empty, err=True)
        return
    table = Table(box=None, pad_edge=False)
    for name in columns:
        number = _is_number(name)
        table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for row in listed:
        table.add_row(*row)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal or console.width < _narrowest(columns, listed):
        console = Console(markup=False, highlight=False, width=10_000)
    console.print(table)


def _narrowest(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width in which a table can still be read: numbers whole, words in pieces of `_PIECE`."""
    widest = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    parts = [width if _is_number(name) else min(width, _PIECE) for name, width in zip(columns, widest, strict=True)]
    return sum(parts) + 2 * (len(parts) - 1)


def _is_number(column: str) -> bool:
    return column in _NUMBERS or column.endswith((" us", " s")) or column.startswith("vs ")


def figures(winner: Winner) -> tuple[str, ...]:
    """Cells for `FIGURES`: microseconds, 10^12 operations a second, times as fast as default and vendor, ties."""
    return (
        f"{winner.median_us:.2f}",
        f"{winner.tflops:.4g}" if winner.tflops else "",
        ratio(winner.vs_default),
        ratio(winner.vs_vendor),
        str(winner.ties),
    )


def ratio(value: float | None) -> str:
    """A factor, "" where it is not known."""
    return "" if value is None else f"{value:.3f}x"


def config_document(config: Config) -> dict[str, Any]:
    """A config as a JSON object."""
    return {"kernel": config.kernel, "config": dict(config.pairs)}


def winner_document(winner: Winner) -> dict[str, Any]:
    """A winner as a JSON object, its evidence and where it comes from included."""
    return {
        **{key: value for key, value in asdict(winner).items() if key not in ("problem", "config")},
        "problem": winner.problem.fields(),
        **config_document(winner.config),
        "tflops": winner.tflops,
        "vs_default": winner.vs_default,
        "vs_vendor": winner.vs_vendor,
    }
