"""`tuner exec`: runs a program that never imports triton-tuner, and serves the kernels of its libraries."""

from __future__ import annotations

import os
from typing import NoReturn

import click

from tuner.cli import program
from tuner.cli.libraries import absent
from tuner.errors import UsageError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--adopt", "libraries", metavar="LIB", multiple=True, help="Serve package LIB's kernels; may be repeated."
)
@click.option(
    "--on-miss",
    type=click.Choice(["autotune", "nearest", "first"]),
    help="What an untuned key gets. [default: $TUNER_ON_MISS, else autotune]",
)
@click.option(
    "--summary",
    is_flag=True,
    help="Print on stderr, as each process ends, how many keys were tuned and how many were not.",
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(libraries: tuple[str, ...], on_miss: str | None, summary: bool, command: tuple[str, ...]) -> NoReturn:
    """Run a program and serve tuned configs to its libraries' kernels.

    Shipped binaries of a kernel are launched without compiling. COMMAND's output, results and exit code stay as they
    are; all Python processes that it starts are served.
    """
    if not all(name.strip() for each in libraries for name in each.split(",")):
        raise UsageError("--adopt names no package: expected one as it is imported, such as fla")
    for name in dict.fromkeys(name.strip() for each in libraries for name in each.split(",")):
        if said := absent(name, command, "served"):
            click.echo(f"tuner: {said}", err=True)
    named = [*filter(None, os.environ.get("TUNER_ADOPT", "").split(",")), *libraries]
    if not named:
        click.echo("tuner: nothing is served, since no library is named: --adopt fla, for instance", err=True)
    asked = {"TUNER_ON_MISS": on_miss, "TUNER_ADOPT_SUMMARY": "1" if summary else None}
    variables = {"TUNER_ADOPT": ",".join(dict.fromkeys(named))} | {name: each for name, each in asked.items() if each}
    program.become(command, program.environment(**variables))
