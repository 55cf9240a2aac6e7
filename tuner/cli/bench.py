"""`tuner bench`: times a lookup's config in paired rounds with torch's library and other tuners."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner import files
from tuner.cli import measured, options
from tuner.cli.output import plain, print_json, print_table, quantity, ratio
from tuner.errors import UsageError
from tuner.problem import Problem, parse_shape
from tuner.problem import suite as suite_files

if TYPE_CHECKING:
    from tuner.bench.contest import Contest
    from tuner.bench.document import ContestReport
    from tuner.bench.score import ListedProblem, Row

RIVALS = ("vendor", "inductor", "autotune")
CURVES = {"fp16": ("float16", "nn"), "fp8": ("float8_e4m3fn", "nt")}
"""The dtype and layout of each curve; torch multiplies 8-bit floats only in nt."""
CURVE_SIZES = range(256, 4097, 128)
_SHAPES = "shapes"
"""What the problems by shape go by, as the problems of a suite go by its name."""


def _rivals(text: str) -> tuple[str, ...]:
    """Return the rivals that a text names, separated by commas: each once, in the order of the report."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    if unknown := [name for name in named if name not in RIVALS]:
        raise click.BadParameter(f"{unknown[0]!r} is no rival: expected some of {','.join(RIVALS)}")
    if not named:
        raise click.BadParameter(f"no rival is named: expected some of {','.join(RIVALS)}")
    return tuple(name for name in RIVALS if name in named)


@click.command()
@options.suite_option
@options.shape_option
@options.dtype_option
@options.layout_option
@options.scaling_option
@options.precision_option
@click.option(
    "--curve",
    "curves",
    multiple=True,
    type=click.Choice(list(CURVES)),
    help="The squares 256 to 4096 in steps of 128; may be repeated.",
)
@click.option(
    "--against",
    type=_rivals,
    default="vendor",
    show_default=True,
    metavar="vendor,inductor,autotune",
    help="Rivals, timed beside the config that a lookup returns.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), metavar="N", help="Paired rounds. [default: 30; 5 under the interpreter]"
)
@click.option(
    "--out", type=options.Place(path_type=Path), metavar="DIR", help="Write bench.json and charts (PNG) there."
)
@options.device_option("auto: the first GPU; without one, Triton's interpreter.")
@options.db_option
@options.json_option
@click.pass_context
def bench(
    ctx: click.Context,
    /,
    *,
    suites: tuple[str, ...],
    shapes: tuple[str, ...],
    dtype: str,
    layout: str,
    scaling: str,
    precision: str | None,
    curves: tuple[str, ...],
    against: tuple[str, ...],
    rounds: int | None,
    out: Path | None,
    device: str,
    db: str | None,
    as_json: bool,
) -> int:
    """Time the configs that lookups return, beside torch and other tuners.

    The rivals are torch's library, TorchInductor and triton.autotune. All are timed in one process, in paired rounds.
    Nothing is tuned and no database is written: tune first, with tuner run. After Ctrl-C the finished rows are shown
    and written.
    """
    said: dict[str, Any] = {"dtype": dtype, "layout": layout, "scaling": scaling, "precision": precision}
    by_shape = [Problem(*parse_shape(shape), **said) for shape in shapes]
    problems = _listed(suites, by_shape, curves)
    if not problems:
        raise UsageError(
            "no problem given: name some with --suite llm, --suite FILE.csv, --shape 4096x4096x1024 or --curve fp16"
        )
    options.check_shaped(ctx, shapes, options.OF_SHAPES, "a suite says its own, and so does a curve")
    gpu = _gpu(device, problems, rounds)
    if out is not None:
        _prepare(out)
    if db is not None:
        from tuner.lookup.lookup import use

        use(db)
    return _bench(problems, gpu, rivals=against, rounds=rounds, out=out, as_json=as_json)


def _bench(
    problems: Sequence[ListedProblem],
    gpu: int | None,
    *,
    rivals: tuple[str, ...],
    rounds: int | None,
    out: Path | None,
    as_json: bool,
) -> int:
    from tuner.bench.contest import Contest
    from tuner.bench.document import ContestReport, document

    with Contest(gpu, rivals, rounds=rounds) as contest:
        rows, ended = _play(contest, problems)
        report = ContestReport(
            contest.device, contest.environment, rivals, tuple(rows), unplayed=len(problems) - len(rows)
        )
    body = document(report, sys.argv)
    if as_json:
        print_json(body)
    else:
        _print_report(report)
    if out is not None and rows:
        _write(report, body, out)
    if ended is not None:
        raise ended
    return 1 if any("tuner" in row.reasons for row in rows) else 0


def _play(contest: Contest, problems: Sequence[ListedProblem]) -> tuple[list[Row], BaseException | None]:
    """Measure with a line on stderr for each row; a terminal also shows what is under way."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False)
    console.print(
        f"{contest.device.name} ({contest.device.slug}), Triton {contest.environment.triton}, "
        f"torch {contest.environment.torch}: {quantity(len(problems), 'problem')}",
        soft_wrap=True,
    )
    with console.status("") as status:
        return measured.collect(
            contest.rows(problems, lambda problem, name: status.update(f"{problem}: {name}")),
            lambda row, done: console.print(f"[{done}/{len(problems)}] {_line(row)}", soft_wrap=True),
        )


def _listed(suites: Iterable[str], problems: Iterable[Problem], curves: Iterable[str]) -> list[ListedProblem]:
    """Return every problem once, with all suites and groups that list it.

    A suite goes by its file's name without the ending, and where others go by that, by what was typed.
    """
    from tuner.bench.score import ListedProblem, SuiteGroup

    places: dict[Problem, dict[SuiteGroup, None]] = {}
    named = {name: Path(name).stem for name in suites}
    taken = Counter([*named.values(), _SHAPES, *map(_curve, CURVES)])
    for name, stem in named.items():
        suite = stem if taken[stem] == 1 else name
        for entry in suite_files.entries(name):
            for group in entry.groups or ("",):
                places.setdefault(entry.problem, {})[SuiteGroup(suite, group)] = None
    for problem in problems:
        places.setdefault(problem, {})[SuiteGroup(_SHAPES)] = None
    for curve in curves:
        dtype, layout = CURVES[curve]
        for size in CURVE_SIZES:
            problem = Problem(size, size, size, dtype=dtype, layout=layout)
            places.setdefault(problem, {})[SuiteGroup(_curve(curve))] = None
    return [ListedProblem(problem, tuple(listed)) for problem, listed in places.items()]


def _curve(name: str) -> str:
    return f"curve-{name}"


def _gpu(name: str, problems: Sequence[ListedProblem], rounds: int | None) -> int | None:
    gpu = options.gpu_of(name, "a bench")
    if gpu is None:
        if name == "interpreter":
            click.echo("Triton's interpreter: its figures say nothing about a GPU", err=True)
        options.warn_of_large([listed.problem for listed in problems], 1 + (rounds or 5))
    return gpu


def _prepare(folder: Path) -> None:
    """Raise before anything is measured if the files could not be written."""
    from tuner.report import vega

    vega.require("--out")
    files.make_folder(folder)


def _write(report: ContestReport, body: dict[str, Any], folder: Path) -> None:
    from tuner.bench import chart

    text = json.dumps(body, indent=1, sort_keys=True, default=plain)
    written = [files.write_text(folder / "bench.json", f"{text}\n"), *chart.draw(report, folder)]
    click.echo(f"wrote {', '.join(str(path) for path in written)}", err=True)
    if "vendor" not in report.rivals:
        click.echo("no bars: they show speeds relative to the vendor's library; --against vendor times it", err=True)


def _line(row: Row) -> str:
    """Return one problem's result in a line, with the reasons of those that did not take part."""
    parts = [
        f"{name} {figures.median_us:.2f} us" + (f" ({ratio(row.ratio(name))})" if row.ratio(name) else "")
        for name, figures in row.figures.items()
    ]
    parts += [f"{name} -: {reason}" for name, reason in row.reasons.items()]
    return f"{row.problem}: {'; '.join(parts)}"


def _print_report(report: ContestReport) -> None:
    """Print the rows and geometric means on stdout, and how to tune untuned problems on stderr."""
    columns = ["problem", "rule", "kernel", "tuner us", "rate"]
    for rival in report.rivals:
        columns += [f"{rival} us", f"vs {rival}", "95%"]
        if _tuned(report, rival):
            columns.append(f"{rival} tuning s")
    print_table(columns, [_cells(report, row) for row in report.rows], empty="no problem was timed")
    _print_geomeans(report)
    untuned = sum(row.match is not None and row.match.rule == "default" for row in report.rows)
    if untuned:
        click.echo(
            f"not tuned for {report.device.slug}: {untuned} of {quantity(len(report.rows), 'problem')}, timed by "
            "the default formula's config (rule default); `tuner run` with the same problems tunes them",
            err=True,
        )
    measured.say_unplayed(report.unplayed, "problem")


def _cells(report: ContestReport, row: Row) -> list[str]:
    match, ours = row.match, row.figures.get("tuner")
    cells = [str(row.problem), match.rule if match else "-", match.kernel if match else "-"]
    cells += ["-", "-"] if ours is None else [f"{ours.median_us:.2f}", _rate(row, ours.median_us)]
    for rival in report.rivals:
        own = row.figures.get(rival)
        paired = own.against_ours if own else None
        cells.append(f"{own.median_us:.2f}" if own else "-")
        cells += [f"{paired.ratio:.3f}x", f"{paired.low:.3f}-{paired.high:.3f}"] if paired else ["-", "-"]
        if _tuned(report, rival):
            cells.append("-" if own is None or own.tuning_s is None else f"{own.tuning_s:.1f}")
    return cells


def _tuned(report: ContestReport, rival: str) -> bool:
    return any(rival in row.figures and row.figures[rival].tuning_s is not None for row in report.rows)


def _rate(row: Row, us: float) -> str:
    """Return GB/s for a problem that memory limits, otherwise TFLOP/s."""
    return f"{row.gbytes_s(us):.4g} GB/s" if row.memory_bound else f"{row.tflops(us):.4g} TFLOP/s"


def _print_geomeans(report: ContestReport) -> None:
    from tuner.bench.score import geomeans

    means = geomeans(report.rows, report.rivals)
    if not means:
        return
    labels = list(dict.fromkeys(mean.label for mean in means))
    by_cell = {(mean.label, mean.rival): mean for mean in means}
    rows: list[Sequence[str]] = []
    for label in labels:
        cells = [label]
        for rival in report.rivals:
            mean = by_cell.get((label, rival))
            cells += [f"{mean.ratio:.3f}x", str(mean.rows)] if mean else ["-", "0"]
        rows.append(cells)
    columns = ["geometric mean", *(name for rival in report.rivals for name in (f"vs {rival}", "rows"))]
    click.echo()
    print_table(columns, rows, empty="")
