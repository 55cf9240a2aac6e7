"""`tuner import`: brings tables from elsewhere, or reads others' tuned files as problems and candidates."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import kernel_files, kernel_options, options, output
from tuner.cli.output import quantity
from tuner.errors import TableError, UsageError
from tuner.problem import suite as suite_files
from tuner.problem.batches import split

if TYPE_CHECKING:
    from tuner.tables.importing.reader import Imported

SUITE, CANDIDATES = "imported.csv", "imported.candidates.json"


@click.command("import")
@click.argument("files", metavar="FILE|DIR|ARCHIVE|PACKAGE...", nargs=-1, required=True, type=options.Place())
@click.option("--out", metavar="DIR", required=True, type=options.Place(path_type=Path), help="Write into this folder.")
@click.option(
    "--suite",
    "suites",
    multiple=True,
    metavar="NAME|FILE.csv",
    type=options.Place(),
    help="For tables: only the families of these problems, at every M that they were tuned for; may be repeated.",
)
@click.option(
    "--device",
    callback=options.not_empty,
    metavar="NAME",
    help="For tables: only devices called so, by slug, name or a word of it.",
)
@kernel_files.with_kernels_option
@kernel_options.kernel_option
@options.json_option
def import_(
    *,
    files: tuple[str, ...],
    out: Path,
    suites: tuple[str, ...],
    device: str | None,
    with_kernels: bool,
    kernels: tuple[str, ...],
    as_json: bool,
) -> None:
    """Copy tables into a folder, or read other tools' files.

    Tables of triton-tuner come as files, in a folder, in an archive (zip, tar) or in an installed package. Their
    digests are checked, and their rows are merged with the tables in DIR; TUNER_TABLES=DIR then serves them. For a
    container that is to compile nothing, type

    \b
      tuner import triton-tuner --suite model.csv --device NAME \\
          --with-kernels --out DIR

    Other tools' files are vLLM's and SGLang's block-scaled fp8 configs and AITER's tables of tuned GEMMs. From them the
    command writes DIR/imported.csv, a suite for `tuner run --suite`, and DIR/imported.candidates.json, the configs that
    this run tries first. Their figures are not taken: nothing is a trial or a winner until it is measured here.
    """
    from tuner.tables.importing import reader as imported
    from tuner.tables.importing import tables

    for name in files:
        if "://" in name:
            raise UsageError(f"{name} is an address: download it first, then name the file")
    if suites and kernels:
        raise UsageError("--suite names problems of ops: leave it out to bring the tables of --kernel")
    kernel_files.check(kernels, with_kernels=with_kernels)
    paths = [Path(name) for name in files]
    ours = [path for path in paths if tables.holds_tables(path)]
    others = [path for path in paths if path not in ours]
    if ours and others:
        imported.read(others[0])  # says what is wrong with one that is not there, or a database
        raise UsageError(f"{ours[0]} holds tables of triton-tuner, others are of other tools: import them one by one")
    if ours:
        _bring(ours, out, suites, device, with_kernels=with_kernels, as_json=as_json)
        return
    read_files = [imported.read(path) for path in paths]
    if suites or device is not None or with_kernels:
        raise UsageError(f"--suite, --device and --with-kernels are for tables of triton-tuner: {paths[0]} is none")
    _convert(read_files, out, as_json=as_json)


def _convert(read_files: list[Imported], out: Path, *, as_json: bool) -> None:
    """Write the suite and the candidates of other tools' files, and say what they hold."""
    from tuner.files import make_folder, write_text
    from tuner.tables.importing import candidates
    from tuner.tables.importing import reader as imported

    for one in read_files:
        for reason, rows in one.left_out.items():
            click.echo(f"{one.source}: left out {quantity(rows, 'row')}: {reason}", err=True)
    problems = {problem for one in read_files for problem in one.problems}
    if not problems:
        raise TableError("nothing to import: no row of these files is a problem that can be tuned here")
    make_folder(out)
    suite = write_text(out / SUITE, imported.suite(read_files), error=TableError)
    every = [candidate for one in read_files for candidate in one.candidates]
    listed = write_text(out / CANDIDATES, candidates.dumps(every), error=TableError) if every else None
    if as_json:
        configs = {"path": listed, "rows": len(set(every))} if listed else None
        read = [
            {**output.by_name(one), "problems": len(one.problems), "candidates": len(one.candidates)}
            for one in read_files
        ]
        output.print_json({"suite": {"path": suite, "problems": len(problems)}, "candidates": configs, "files": read})
        return
    command = shlex.join(["tuner", "run", "--suite", str(suite)])
    click.echo(f"{suite}: {quantity(len(problems), 'problem')}; to tune them: {command}")
    if listed:
        click.echo(f"{listed}: {quantity(len(set(every)), 'candidate')}, unverified")


def _bring(
    paths: list[Path], out: Path, suites: tuple[str, ...], device: str | None, *, with_kernels: bool, as_json: bool
) -> None:
    from tuner.lookup import table
    from tuner.lookup.table_files import KERNELS_SUFFIX
    from tuner.tables.importing.tables import Wanted, bring

    of_suites = {split(problem)[0]: problem for name in suites for problem in suite_files.load(name)}
    brought = bring(paths, out, Wanted(device, frozenset(of_suites) if suites else None))
    written_tables = [table.load(one.path) for one in brought] if suites or with_kernels else []
    families_there = {split(row.problem)[0] for each in written_tables for row in each.rows}
    absent = [str(problem) for family, problem in of_suites.items() if family not in families_there]
    if absent:
        more = f", and {len(absent) - 3} more" if len(absent) > 3 else ""
        families = f"{len(absent)} of {quantity(len(of_suites), 'family')} of the suite"
        click.echo(f"no row of {families}: {', '.join(absent[:3])}{more}: `tuner run` tunes them", err=True)
    if not as_json:
        for one in brought:
            counts = f"{quantity(one.rows, 'row')}, {quantity(one.families, 'family')}, {quantity(one.new, 'row')} new"
            click.echo(f"{one.path}: {counts}")
            for reason in one.left_out:
                click.echo(reason, err=True)
    for one in brought:
        kernels_of = one.path.with_name(one.path.name.removesuffix(".json") + KERNELS_SUFFIX)
        if one.new and not with_kernels and kernels_of.is_dir():
            new = f"{one.path}: {quantity(one.new, 'new row')} beside kernels of before"
            click.echo(f"{new}: to compile theirs too, add --with-kernels", err=True)
    written, errors = kernel_files.write(written_tables, out) if with_kernels else ([], [])
    kernels = [one for _, one in written]
    if as_json:
        document: dict[str, Any] = {"tables": [output.by_name(one) for one in brought], "absent": absent}
        output.print_json(document | ({"kernels": kernel_files.as_json(kernels)} if with_kernels else {}))
    else:
        kernel_files.report(kernels)
    if errors:
        raise errors[0]
