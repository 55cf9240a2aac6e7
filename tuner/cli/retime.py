"""`tuner retime`: plays what ships under the installed versions, and says what has changed."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tuner.cli import kernel_options, measured, options, output
from tuner.cli.output import quantity
from tuner.errors import TableError, UsageError

if TYPE_CHECKING:
    from tuner.bench.retime import Retimed
    from tuner.lookup.row import Row
    from tuner.sweep.paired import PairedRunner

_COLUMNS = ("state", "problem", "config", "us", "change", "vs default", "vs vendor", "reason")


def _share(text: str) -> float:
    """Return the share that 5% or 0.05 names."""
    text = text.strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise click.BadParameter(f"{text!r} is no share: expected for instance 5%")
    return share


@click.command()
@click.argument("place", metavar="TABLE|DIR|DB|PACKAGE", type=options.Place())
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Time this many rows, always the same ones.")
@click.option(
    "--fail-above",
    type=_share,
    default="5%",
    show_default=True,
    metavar="SHARE",
    help="How much a row may lose against its default config and torch's library, compared with its evidence.",
)
@click.option("--race", is_flag=True, help="Search again for the rows that lost or failed; needs --db.")
@kernel_options.kernel_option
@options.device_option("Where to time them.")
@click.option(
    "--db",
    type=options.Place(),
    metavar="PATH|URL",
    help="Store the measurements there, as winners of the installed versions.",
)
@options.json_option
def retime(
    place: str,
    *,
    sample: int | None,
    fail_above: float,
    race: bool,
    kernels: tuple[str, ...],
    device: str,
    db: str | None,
    as_json: bool,
) -> int:
    """Time shipped rows again under the installed versions.

    Each row is timed beside its default config and torch's library. Says which rows hold, which lost and which fail.
    Exits 1 if one lost or failed. After Ctrl-C the finished rows are shown and kept.
    """
    from tuner.bench.retime import State, rows_of
    from tuner.lookup import sources
    from tuner.sweep.paired import PairedRunner

    if race and db is None:
        raise UsageError("--race keeps what it finds: add --db PATH")
    for name in kernels:
        kernel_options.find(name)
    source = sources.named(place)
    gpu = options.gpu_of(device, "retime")
    if db is not None:
        _check(db, race=race)
    with PairedRunner(gpu) as runner:
        rows = rows_of(source, runner.device, sample)
        if not rows:
            others = [slug for slug in source.slugs() if slug != runner.device.slug and source.winners(slug).rows]
            instead = f"it has rows for {', '.join(others)}" if others else "it has none at all: `tuner run` makes some"
            raise TableError(f"{place} has no row for {runner.device.slug}: {instead}")
        played, ended = _play(rows, runner, fail_above)
    wrong = [one for one in played if one.state in (State.LOST, State.FAILED)]
    # First of all the report: a database that cannot be written any more must not cost it.
    _report(place, played, runner, unplayed=len(rows) - len(played), fail_above=fail_above, as_json=as_json)
    if db is not None:
        _keep(db, [one for one in played if not race or one not in wrong], runner)
    if ended is not None:
        raise ended
    if race and db is not None and wrong:
        _race(db, wrong, [gpu])
    return 1 if wrong else 0


def _play(rows: Sequence[Row], runner: PairedRunner, fail_above: float) -> tuple[list[Retimed], BaseException | None]:
    """Play rows with a line on stderr for each; return them in their order, and what ended it early."""
    from tuner.bench.retime import retime as play

    def say(one: Retimed, done: int) -> None:
        result = ", ".join(filter(None, (one.state.value, one.reason or _change(one.loss))))
        click.echo(f"[{done}/{len(rows)}] {one.row.problem}: {result}", err=True)

    click.echo(f"{runner.device.slug}: compiling, then timing {quantity(len(rows), 'row')}", err=True)
    played, ended = measured.collect(play(rows, runner, fail_above), say)
    places = {row.problem: place for place, row in enumerate(rows)}
    return sorted(played, key=lambda one: places[one.row.problem]), ended


def _check(db: str, *, race: bool) -> None:
    """Raise, before anything is played, where the figures could not be kept, or rows could not be raced.

    A database that is missing is made.
    """
    from tuner.store import health
    from tuner.store.store import Store

    with Store.open(db) as store, store.sole_writer() if race else contextlib.nullcontext():
        pass
    health.try_writing(db)


def _keep(db: str, played: Sequence[Retimed], runner: PairedRunner) -> None:
    """Store rows as winners of the installed versions, except where these have a winner already."""
    from tuner.bench.retime import keep
    from tuner.store.store import Store

    if any(one.median_us is not None for one in played):
        with Store.open(db) as store:
            kept = keep(store, played, runner, sys.argv)
            click.echo(f"{store.location}: {quantity(kept, 'new winner')} under the installed versions", err=True)


def _race(db: str, wrong: Sequence[Retimed], gpus: Sequence[int | None]) -> None:
    """Tune problems again, the shipped config among the candidates."""
    from tuner.store.store import Store
    from tuner.sweep.plan import Plan
    from tuner.sweep.run import sweep

    problems = [one.row.problem for one in wrong]
    plan = Plan(suggested={one.row.problem: [one.row.config] for one in wrong})
    with Store.open(db) as store:
        report = sweep(store, problems, gpus, plan, argv=sys.argv)
    for ended in report.problems:
        outcome = f"{ended.winner.config}, {ended.winner.median_us:.2f} us" if ended.winner else ended.reason
        click.echo(f"{ended.problem}: {outcome}", err=True)


def _report(
    place: str, played: Sequence[Retimed], runner: PairedRunner, *, unplayed: int, fail_above: float, as_json: bool
) -> None:
    from tuner.bench.retime import State

    counts = Counter(one.state.value for one in played)
    if as_json:
        rows = [{**output.by_name(one), "problem": one.row.problem, "config": one.row.config} for one in played]
        every = {state.value: counts[state.value] for state in State}
        body = {"place": place, "device": runner.device.slug, "environment": runner.environment}
        output.print_json({**body, "fail_above": fail_above, "counts": every, "unplayed": unplayed, "rows": rows})
        return
    if played and counts == {"holds": len(played) + unplayed}:
        click.echo("the row holds" if len(played) == 1 else f"all {len(played)} rows hold")
        return
    told = [_cells(one) for one in played if one.state.value != "holds"]
    if told:
        output.print_table(_COLUMNS, told, empty="")
    verbs = {state: "hold" if state == "holds" and count > 1 else state for state, count in counts.items()}
    if counts:
        click.echo(", ".join(f"{count} {verbs[state]}" for state, count in sorted(counts.items())))
    measured.say_unplayed(unplayed, "row")


def _change(loss: float | None) -> str:
    """Return a loss in words, such as "3.4% slower"."""
    if loss is None:
        return ""
    share = f"{abs(loss):.1%}"
    return "as fast" if share == "0.0%" else f"{share} {'slower' if loss > 0 else 'faster'}"


def _cells(one: Retimed) -> tuple[str, ...]:
    ratios = one.ratios or {}
    return (
        one.state.value,
        str(one.row.problem),
        one.row.config.label,
        "" if one.median_us is None else f"{one.median_us:.2f}",
        _change(one.loss),
        *(f"{ratios[name]:.3f}" if name in ratios else "" for name in ("default", "vendor")),
        one.reason,
    )
