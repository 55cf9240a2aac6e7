"""`tuner exec`: runs a program that never imports triton-tuner, and serves the kernels of its libraries."""

from __future__ import annotations

import difflib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

import click

from tuner.cli import program
from tuner.errors import UsageError


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--adopt", "libraries", metavar="LIB", multiple=True, help="Serve package LIB's kernels; repeatable.")
@click.option(
    "--on-miss",
    type=click.Choice(["autotune", "nearest", "first"]),
    help="What a key gets that nobody tuned; autotune unless $TUNER_ON_MISS says otherwise.",
)
@click.option(
    "--summary", is_flag=True, help="Say on stderr, as each process ends, how many keys were tuned and how many not."
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(libraries: tuple[str, ...], on_miss: str | None, summary: bool, command: tuple[str, ...]) -> int:
    """Run a program and serve tuned configs to its libraries' kernels.

    Where binaries ship for a kernel, these are launched. COMMAND's output, results and exit code are its own; all
    Python processes that it starts are served.
    """
    if not all(name.strip() for each in libraries for name in each.split(",")):
        raise UsageError("--adopt names no package: expected one as it is imported, such as fla")
    for name in dict.fromkeys(name.strip() for each in libraries for name in each.split(",")):
        if said := _absent(name, command):
            click.echo(f"tuner: {said}", err=True)
    named = [*filter(None, os.environ.get("TUNER_ADOPT", "").split(",")), *libraries]
    if not named:
        click.echo("tuner: nothing is served, since no library is named: --adopt fla, for instance", err=True)
    asked = {"TUNER_ON_MISS": on_miss, "TUNER_ADOPT_SUMMARY": "1" if summary else None}
    variables = {"TUNER_ADOPT": ",".join(dict.fromkeys(named))} | {name: each for name, each in asked.items() if each}
    return program.ended(program.run(command, lambda: program.environment(**variables)))


def _absent(library: str, command: Sequence[str]) -> str | None:
    """Return what to say of a library that is not found here, nor where the program lies; None of one that is.

    The program may still find it, by a path of its own.

    Raises:
        UsageError: no program can import it.
    """
    if not all(part.isidentifier() for part in library.split(".")):
        raise UsageError(f"--adopt {library!r:.60} is no name of a package: expected it as it is imported, such as fla")
    root = library.partition(".")[0]
    if root in sys.modules or importlib.util.find_spec(root):
        return None
    # Path.is_file() raises where a word is too long for a name, as a program behind -c may be.
    path = [*sys.path, "", *(str(Path(word).parent) for word in command if os.path.isfile(word))]  # noqa: PTH113
    if PathFinder.find_spec(root, path):
        return None
    near = difflib.get_close_matches(root, {each.name for each in pkgutil.iter_modules(path)}, n=1)
    instead = f"--adopt {near[0]}, perhaps" if near else "name it as it is imported, such as --adopt fla"
    return f"no library {root!r:.60} is found here, and without it nothing of it is served: {instead}"
