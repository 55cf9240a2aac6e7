"""Options and output that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tuner.errors import UsageError
from tuner.problem.gemm_fields import SCALINGS

F = TypeVar("F", bound=Callable[..., Any])


def _named(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """A script's `--db "$UNSET"` must not write into the user's own database."""
    if value == "":
        raise UsageError("--db is empty: expected a path or a URL; leave it out for $TUNER_DB or the user data folder")
    return value


def db_option(function: F) -> F:
    """`--db PATH|URL`."""
    return click.option(
        "--db",
        metavar="PATH|URL",
        default=None,
        callback=_named,
        help="The database. [default: $TUNER_DB, else tuner.db in the user data folder]",
    )(function)


def json_option(function: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")(function)


def dtype_option(function: F) -> F:
    """`--dtype`."""
    return click.option("--dtype", default="float16", show_default=True, help="torch's names, or bf16, e4m3, i8 ...")(
        function
    )


def layout_option(function: F) -> F:
    """`--layout`."""
    return click.option(
        "--layout", default="nn", show_default=True, help="nn, nt (B stored [N, K], as nn.Linear weights), tn, tt."
    )(function)


def scaling_option(function: F) -> F:
    """`--scaling`."""
    return click.option(
        "--scaling",
        type=click.Choice(SCALINGS),
        default="none",
        show_default=True,
        help="Of fp8 and int8: a scale an operand, a row of A and column of B, or a block of 128.",
    )(function)


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2, sort_keys=True))
