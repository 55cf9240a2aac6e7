"""`tuner doctor`: what is here, what is wrong with it, and what to type."""

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
@click.pass_context
def doctor(ctx: click.Context, db: str | None, as_json: bool) -> None:
    """Say what is here and what is wrong with it.

    Looks at GPUs, driver, Python, torch, Triton, the C compiler, the database, tables and kernels. Exits 1 when
    something is wrong that stops tuning or a lookup. No GPU is not wrong: the interpreter is used.
    """
    findings = [*check_machine(), *check_database(db), *check_tables()]
    healthy = all(finding.status is not Status.WRONG for finding in findings)
    if as_json:
        output.print_json({"ok": healthy, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            _print(finding)
    ctx.exit(0 if healthy else 1)


def _print(finding: Diagnosis) -> None:
    # Not a table: paths and commands are there to be copied, so they are never wrapped.
    status = click.style(f"{finding.status:5}", fg=_COLOURS[finding.status])
    plain = False if os.environ.get("NO_COLOR") else None  # https://no-color.org, which click does not heed
    click.echo(f"{status} {finding.topic:9} {finding.found}", color=plain)
    if finding.advice:
        click.echo(f"{'':15} -> {finding.advice}")
