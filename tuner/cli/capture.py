"""`tuner capture`: runs a program and records its matrix products, with `--adopt` a library's kernels too."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from tuner.adopt import calls, compiled_files
from tuner.cli import options, program
from tuner.cli.libraries import absent
from tuner.cli.output import quantity
from tuner.errors import SuiteError, TableError
from tuner.files import make_folder
from tuner.models import captured


def _names(text: str) -> tuple[str, ...]:
    """Return the names of packages, as `import` takes them, that commas separate."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise click.BadParameter(f"{name!r} is no name of a package: expected one as it is imported, such as fla")
    return names


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--out", metavar="DIR", required=True, type=options.Place(path_type=Path), help="Record into DIR.")
@click.option(
    "--adopt",
    "libraries",
    metavar="LIB",
    type=_names,
    multiple=True,
    help="Record the calls of package LIB's autotuned kernels, and its other kernels' binaries; may be repeated.",
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def capture(out: Path, libraries: tuple[tuple[str, ...], ...], command: tuple[str, ...]) -> int:
    """Run a program and record the matrix products that it calls.

    Nothing is measured. Writes DIR/suite.csv, which `tuner run --captured DIR` tunes. COMMAND's output, results and
    exit code stay as they are; all Python processes that it starts are recorded. With --adopt, each kernel and key of
    LIB under triton.autotune is recorded too; such a kernel then runs with the first of its configs that launches.
    """
    folder, named = out.absolute(), tuple(dict.fromkeys(name for each in libraries for name in each))
    for name in named:
        if said := absent(name, command, "recorded"):
            click.echo(f"tuner: {said}", err=True)
    refusals: list[TableError] = []
    code = program.run(command, lambda: _environment(folder, named, refusals))
    try:
        if not refusals:
            _say_found(out, folder, named)
    except SuiteError as e:
        click.echo(f"tuner: {e}", err=True)
    return program.ended(code)


def _say_found(out: Path, folder: Path, libraries: Sequence[str]) -> None:
    """Write the suite of what was recorded, and say what there is, in one line.

    Raises:
        SuiteError: the folder cannot be read or written.
    """
    recorded = captured.write_suite(folder)
    products = sum(ms.total() for ms in recorded.calls.values())
    parts = [f"{quantity(len(recorded.calls), 'family')}, {quantity(products, 'call')}"] if products else []
    if kernels := calls.load([folder])[0]:
        parts.append(f"{quantity(len(kernels), 'call')} of adopted kernels")
    binaries = compiled_files.load([folder])[0]
    places = {f"{kernel}:" for kernel in (*(call.kernel for call in kernels), *(each.kernel for each in binaries))}
    of = [
        library
        for library in libraries
        if not any(place.startswith((f"{library}.", f"{library}:")) for place in places)
    ]
    nothing = ["no autotuned kernel of " + " and ".join(of)] if of else [] if places or parts else ["no matrix product"]
    does, command = ("tune", ["run"]) if parts else ("ship", ["export", "DIR", "--with-kernels"])
    if binaries:
        parts.append(f"{quantity(len(binaries), 'binary')} of kernels without configs")
    if not parts:
        hint = "" if libraries else "; kernels under triton.autotune are recorded with --adopt PACKAGE"
        click.echo(f"{out}: {nothing[0]} was recorded{hint}", err=True)
        return
    parts += [f"{each} was recorded" for each in nothing]
    if products and captured.is_edited(folder):
        click.echo(f"{out}: {'; '.join(parts)}", err=True)
        return
    typed = shlex.join(["tuner", *command, "--captured", str(out)])
    click.echo(f"{out / captured.SUITE if products else out}: {'; '.join(parts)}; to {does} them: {typed}", err=True)


def _environment(folder: Path, libraries: Sequence[str], refusals: list[TableError]) -> Mapping[str, str]:
    """Return an environment in which Python processes record into a folder.

    Where the folder cannot be written, it is this process's own, and the reason is added to `refusals`.

    Raises:
        TableError: something else than a folder is there.
    """
    try:
        make_folder(folder)
    except TableError as e:
        if any(each.exists() and not each.is_dir() for each in (folder, *folder.parents)):
            raise
        click.echo(f"tuner: nothing is recorded: {e}", err=True)
        refusals.append(e)
        return os.environ
    adopted = {"TUNER_ADOPT": ",".join(libraries)} if libraries else {}
    return program.environment(TUNER_CAPTURE=str(folder), **adopted)
