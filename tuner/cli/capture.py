"""`tuner capture`: runs a program and records its matrix products."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from tuner.cli import options, program
from tuner.cli.output import quantity
from tuner.errors import SuiteError, TableError
from tuner.files import make_folder
from tuner.models import captured


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--out", metavar="DIR", required=True, type=options.Place(path_type=Path), help="Record into DIR.")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def capture(out: Path, command: tuple[str, ...]) -> int:
    """Run COMMAND and record the matrix products that it calls; measure nothing.

    Writes DIR/suite.csv, which `tuner run --captured DIR` tunes. COMMAND's output, results and exit code stay as they
    are; all Python processes that it starts are recorded.
    """
    folder = out.absolute()
    try:
        code = program.run(command, lambda: _environment(folder))
    except program.NoProgramError as e:
        return e.code
    try:
        found = captured.write_suite(folder)
        calls = sum(ms.total() for ms in found.calls.values())
        typed = shlex.join(["tuner", "run", "--captured", str(out)])
        said = f"{quantity(len(found.calls), 'family')}, {quantity(calls, 'call')}; to tune them: {typed}"
        click.echo(f"{out / captured.SUITE}: {said}" if calls else f"{out}: no matrix product was recorded", err=True)
    except SuiteError as e:
        click.echo(f"tuner: {e}", err=True)
    return program.ended(code)


def _environment(folder: Path) -> Mapping[str, str]:
    """The environment that makes Pythons record into a folder; as it is where the folder cannot be written.

    Raises:
        TableError: something else than a folder is there.
    """
    try:
        make_folder(folder)
    except TableError as e:
        if any(each.exists() and not each.is_dir() for each in (folder, *folder.parents)):
            raise
        click.echo(f"tuner: nothing is recorded: {e}", err=True)
        return os.environ
    return program.environment(TUNER_CAPTURE=str(folder))
