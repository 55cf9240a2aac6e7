"""What `tuner bench` prints: a line for each problem, a closing table, geometric means."""

from __future__ import annotations

from collections.abc import Sequence

import click

from tuner.bench.document import ContestReport
from tuner.bench.score import OURS, Row, geomeans
from tuner.cli.output import print_table, quantity, ratio


def line(row: Row) -> str:
    """Return one problem's result in a line, with the reasons of those that did not take part."""
    parts = [
        f"{name} {figures.median_us:.2f} us" + (f" ({ratio(row.ratio(name))})" if row.ratio(name) else "")
        for name, figures in row.figures.items()
    ]
    parts += [f"{name} -: {reason}" for name, reason in row.reasons.items()]
    return f"{row.problem}: {'; '.join(parts)}"


def print_report(report: ContestReport) -> None:
    """Print the rows and geometric means on stdout, and how to tune untuned problems on stderr."""
    columns = ["problem", "rule", "kernel", f"{OURS} us", "rate"]
    for rival in report.rivals:
        columns += [f"{rival} us", f"vs {rival}", "95%"]
        if _tuned(report, rival):
            columns.append(f"{rival} tuning s")
    print_table(columns, [_cells(report, row) for row in report.rows], empty="no problem was played")
    _print_geomeans(report)
    untuned = sum(row.match is not None and row.match.rule == "default" for row in report.rows)
    if untuned:
        click.echo(
            f"{untuned} of {len(report.rows)} problems are not tuned for {report.device.slug}: theirs is the default "
            "formula's config (rule default); `tuner run` with the same problems tunes them",
            err=True,
        )
    if report.unplayed:
        click.echo(f"{quantity(report.unplayed, 'problem')} not played", err=True)


def _cells(report: ContestReport, row: Row) -> list[str]:
    match, ours = row.match, row.figures.get(OURS)
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
    means = geomeans(report.rows, report.rivals)
    if not means:
        return
    labels = list(dict.fromkeys(mean.label for mean in means))
    found = {(mean.label, mean.rival): mean for mean in means}
    rows: list[Sequence[str]] = []
    for label in labels:
        cells = [label]
        for rival in report.rivals:
            mean = found.get((label, rival))
            cells += [f"{mean.ratio:.3f}x", str(mean.rows)] if mean else ["-", "0"]
        rows.append(cells)
    columns = ["geometric mean", *(name for rival in report.rivals for name in (f"vs {rival}", "rows"))]
    click.echo()
    print_table(columns, rows, empty="")
