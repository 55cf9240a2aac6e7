"""`tuner import`: reads others' tuned files as problems to tune and candidates to try."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tuner.cli import options, output
from tuner.cli.output import quantity
from tuner.errors import TableError

SUITE, CANDIDATES = "imported.csv", "imported.candidates.json"


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=options.Place(path_type=Path))
@click.option("--out", metavar="DIR", required=True, type=options.Place(path_type=Path), help="Write both files there.")
@options.json_option
def import_(files: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Read block-scaled fp8 configs of vLLM and SGLang, and AITER's tables of tuned GEMMs.

    Writes DIR/imported.csv, a suite of the problems for `tuner run --suite`, and DIR/imported.candidates.json, configs
    worth trying. Others' figures are not taken: nothing of this is a trial or a winner before it was measured here.
    """
    from tuner.files import make_folder, write_text
    from tuner.tables.importing import candidates
    from tuner.tables.importing import reader as imported

    found = [imported.read(path) for path in files]
    for one in found:
        for reason, rows in one.left_out.items():
            click.echo(f"{one.source}: left out {quantity(rows, 'row')}: {reason}", err=True)
    problems = {problem for one in found for problem in one.problems}
    if not problems:
        raise TableError("nothing to import: no row of these files is a problem that can be tuned here")
    make_folder(out)
    suite = write_text(out / SUITE, imported.suite(found), error=TableError)
    every = [candidate for one in found for candidate in one.candidates]
    listed = write_text(out / CANDIDATES, candidates.dumps(every), error=TableError) if every else None
    if as_json:
        configs = {"path": listed, "rows": len(set(every))} if listed else None
        read = [
            {**output.by_name(one), "problems": len(one.problems), "candidates": len(one.candidates)} for one in found
        ]
        output.print_json({"suite": {"path": suite, "problems": len(problems)}, "candidates": configs, "files": read})
        return
    command = shlex.join(["tuner", "run", "--suite", str(suite)])
    click.echo(f"{suite}: {quantity(len(problems), 'problem')}; to tune them: {command}")
    if listed:
        click.echo(f"{listed}: {quantity(len(set(every)), 'candidate')}, unverified")
