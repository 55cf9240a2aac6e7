"""`tuner doctor`: says what is installed, what is wrong with it, and what to type."""

from __future__ import annotations

import dataclasses
import os

import click

from tuner.cli import options, output
from tuner.cli.doctor_checks import Diagnosis, Status, check_database, check_machine, check_tables

_COLOURS = {Status.OK: "green", Status.NOTE: "yellow", Status.WRONG: "red"}


@click.command()
@options.db_option
@options.json_option
def doctor(db: str | None, as_json: bool) -> int:
    """Say what is installed and what is wrong with it.

    Looks at GPUs, driver, Python, torch, Triton, the C compiler, the database, tables and kernels. Exits 1 when
    something is wrong that stops tuning or a lookup. No GPU is not wrong: the interpreter is used.
    """
    diagnoses = [*check_machine(), *check_database(db), *check_tables()]
    healthy = all(diagnosis.status is not Status.WRONG for diagnosis in diagnoses)
    if as_json:
        output.print_json({"ok": healthy, "findings": [dataclasses.asdict(diagnosis) for diagnosis in diagnoses]})
    else:
        for diagnosis in diagnoses:
            _print(diagnosis)
    return 0 if healthy else 1


def _print(diagnosis: Diagnosis) -> None:
    # No table is used, because paths and commands are there to be copied and must not be wrapped.
    status = click.style(f"{diagnosis.status:5}", fg=_COLOURS[diagnosis.status])
    plain = False if os.environ.get("NO_COLOR") else None  # https://no-color.org, which click does not heed
    click.echo(f"{status} {diagnosis.topic:9} {diagnosis.found}", color=plain)
    if diagnosis.advice:
        click.echo(f"{'':15} -> {diagnosis.advice}")
