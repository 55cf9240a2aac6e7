"""`tuner show`: lists winners, trials, runs, devices and problems."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import options
from tuner.cli.output import FIGURES, by_name, config_document, figures, print_json, print_table, winner_document
from tuner.errors import UsageError
from tuner.problem import parse_shape, text
from tuner.problem.generic_key import Extra
from tuner.store.records import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tuner.problem.family import Family, Range
    from tuner.store.listing import TrialRow
    from tuner.store.store import Store

    _Key = Sequence[tuple[str, Extra]]

NEWEST = 50
"""How many trials or runs a table shows without `--limit`; JSON has them all."""


@click.group()
def show() -> None:
    """List winners, trials, runs, devices or problems."""


_shape_option = click.option(
    "--shape",
    "--problem",
    "filters",
    multiple=True,
    metavar="MxNxK|N=1024",
    help="Only this shape, or these values of a key; if repeated, all must hold.",
)
_kernel_option = click.option("--kernel", callback=options.not_empty, metavar="NAME", help="Only this kernel.")
_MOST_ROWS = 2**63 - 1
"""What a database takes for a limit."""


def _limited(_ctx: click.Context, _option: click.Parameter, limit: int | None) -> int | None:
    if limit is not None and limit > _MOST_ROWS:
        raise click.BadParameter(f"{limit} is more than the {_MOST_ROWS} that a database takes")
    return limit


_limit_option = click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    callback=_limited,
    help="At most this many.",
)


@show.command()
@options.db_option
@options.slug_option
@_shape_option
@_kernel_option
@_limit_option
@options.json_option
def winners(
    *,
    db: str | None,
    device: str | None,
    filters: tuple[str, ...],
    kernel: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """The current winner of each problem, by device."""
    from tuner.lookup import families

    shape, key = _problems_of(filters)
    with options.open_store(db) as store:
        device = options.slug_in(store, device)
        decided = store.families(device_slug=device)
        listed = [
            winner
            for winner in store.winners(device_slug=device)
            if shape in (None, winner.problem.shape)
            and text.has(winner.problem, key)
            and kernel in (None, winner.config.kernel)
        ][:limit]
        empty = "" if listed else _no_winner(store, kernel, key)
    slugs = {winner.device.slug for winner in listed}
    served = {slug: families.served(each.family for each in decided if each.device.slug == slug) for slug in slugs}
    ranges = [served[winner.device.slug].get(winner.problem, []) for winner in listed]
    if as_json:
        print_json(
            [
                winner_document(winner)
                | {"ranges": [{"range": held, "batches": family.batches} for family, held in its_ranges]}
                for winner, its_ranges in zip(listed, ranges, strict=True)
            ]
        )
        return
    column = ("ranges",) if any(ranges) else ()
    rows = [
        (
            *(winner.device.slug, str(winner.problem), *("; ".join(map(_range, its_ranges)) for _ in column)),
            *(winner.config.label, *figures(winner), winner.environment.triton),
        )
        for winner, its_ranges in zip(listed, ranges, strict=True)
    ]
    print_table(("device", "problem", *column, "config", *FIGURES, "triton"), rows, empty=empty)


@show.command()
@options.db_option
@options.slug_option
@_shape_option
@_kernel_option
@click.option(
    "--state",
    type=click.Choice([state.value for state in State], case_sensitive=False),
    metavar="STATE",
    help=f"Only trials that ended so: {', '.join(state.value.lower() for state in State)}.",
)
@_limit_option
@options.json_option
def trials(
    *,
    db: str | None,
    device: str | None,
    filters: tuple[str, ...],
    kernel: str | None,
    state: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Every config that was measured, the newest first."""
    from tuner.store.listing import TrialFilter

    shape, key = _problems_of(filters)
    with options.open_store(db) as store:
        slug = options.slug_in(store, device)
        asked = TrialFilter(slug, shape, kernel, State(state) if state else None, key)
        listed = store.trials(asked, limit=_newest(limit, as_json=as_json))
        count = store.count_trials(asked)
        empty = "" if count else _no_trial(store, kernel, key)
    if as_json:
        print_json([_trial_document(row) for row in listed])
        return
    columns = ("device", "problem", "config", "state", "us", "registers", "spills", "shared", "measured", "message")
    print_table(columns, map(_trial_cells, listed), empty=empty)
    _say_hidden(len(listed), count)


@show.command()
@options.db_option
@options.slug_option
@_limit_option
@options.json_option
def runs(*, db: str | None, device: str | None, limit: int | None, as_json: bool) -> None:
    """Every `tuner run`, the newest first."""
    with options.open_store(db) as store:
        device = options.slug_in(store, device)
        listed = store.runs(device_slug=device, limit=_newest(limit, as_json=as_json))
        count = sum(row.runs for row in store.devices() if device in (None, row.device.slug))
        empty = store.lacks("run")
    if as_json:
        print_json(listed)
        return
    rows = [
        (
            *(one.uuid, one.device, one.status, str(one.trials), one.started_at, one.ended_at or "", one.host),
            *(one.environment.triton, one.tool_version),
        )
        for one in listed
    ]
    columns = ("run", "device", "status", "trials", "started", "ended", "host", "triton", "tuner")
    print_table(columns, rows, empty=empty)
    _say_hidden(len(listed), count)


@show.command()
@options.db_option
@options.json_option
def devices(*, db: str | None, as_json: bool) -> None:
    """Every GPU model that was tuned."""
    with options.open_store(db) as store:
        listed = store.devices()
        empty = store.lacks("device")
    if as_json:
        print_json([by_name(row.device) | by_name(row, "device") for row in listed])
        return
    rows = [
        (
            *(one.device.slug, one.device.name, ", ".join(one.aliases), one.device.arch),
            *(str(one.runs), str(one.trials), str(one.winners)),
        )
        for one in listed
    ]
    columns = ("device", "name", "also called", "arch", "runs", "trials", "winners")
    print_table(columns, rows, empty=empty)


@show.command()
@options.db_option
@options.slug_option
@_shape_option
@_limit_option
@options.json_option
def problems(*, db: str | None, device: str | None, filters: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """Every problem that was tried, with counts of its trials.

    `complete` is how many of them are COMPLETE, `winners` how many winners it has.
    """
    shape, key = _problems_of(filters)
    with options.open_store(db) as store:
        device = options.slug_in(store, device)
        listed = store.problems(device_slug=device, shape=shape, key=key, limit=limit)
        empty = "" if listed else _no_problem(store, key)
    if as_json:
        print_json(listed)
        return
    counts = ("trials", "complete", "winners")
    rows = [(str(row.problem), *(str(getattr(row, name)) for name in counts)) for row in listed]
    print_table(("problem", *counts), rows, empty=empty)


def _no_winner(store: Store, kernel: str | None, key: _Key) -> str:
    """Say why no winner is shown."""
    kernels = sorted({winner.config.kernel for winner in store.winners()})
    if not kernels:
        return store.lacks("winner")
    if kernel is not None and kernel not in kernels:
        return f"no winner is of kernel {kernel!r}: they are of {', '.join(kernels)}"
    return _no_problem(store, key)


def _no_trial(store: Store, kernel: str | None, key: _Key) -> str:
    """Say why no trial is shown."""
    from tuner.store.listing import TrialFilter

    if not store.count_trials():
        return store.lacks("trial")
    if kernel is not None and not store.count_trials(TrialFilter(kernel=kernel)):
        return f"no trial is of kernel {kernel!r}: leave --kernel out to see which there are"
    return _no_problem(store, key)


def _no_problem(store: Store, key: _Key) -> str:
    """Say why no problem is shown; a name that none has is told with those that there are."""
    there = [row.problem for row in store.problems()]
    if not there:
        return store.lacks("problem")
    known = tuple(dict.fromkeys(name for problem in there for name in text.names(problem)))
    for name, _ in key:
        if name not in known and name.lower() not in known:
            return f"no problem here has {name!r}: they have {', '.join(known)}"
    return "none match: leave a filter out"


def _newest(limit: int | None, *, as_json: bool) -> int | None:
    """Return how many rows to show: a table has a default limit."""
    return limit if as_json else limit or NEWEST


def _say_hidden(shown: int, count: int) -> None:
    if shown < count:
        click.echo(f"the newest {shown} of {count}: --limit {count} shows all", err=True)


def _range(served: tuple[Family, Range]) -> str:
    family, held = served
    batches = f", batch {family.batches[0]}-{family.batches[1]}" if family.batches else ""
    return f"{held.first_m}-{held.last_m}{batches}"


def _trial_cells(row: TrialRow) -> tuple[str, ...]:
    outcome, resources = row.outcome, row.outcome.resources
    taken = (resources.registers, resources.spill_bytes, resources.shared_bytes)
    return (
        row.device,
        str(row.problem),
        row.config.label,
        str(outcome.state),
        "" if outcome.median_us is None else f"{outcome.median_us:.2f}",
        *("" if value is None else str(value) for value in taken),
        row.measured_at,
        outcome.message.partition("\n")[0][:80],
    )


def _problems_of(filters: Sequence[str]) -> tuple[tuple[int, int, int] | None, tuple[tuple[str, Extra], ...]]:
    """Return the shape and the values of a key that each `--shape` and `--problem` asks for."""
    keys = [each for each in filters if "=" in each]
    shapes = [each for each in filters if "=" not in each]
    for each in shapes:
        if "x" not in each.lower():
            raise UsageError(f"{each!r}: expected a shape, 4096x4096x1024, or values of a key, N=1024,dtype=bf16")
    if len(shapes) > 1:
        raise UsageError(f"{shapes[0]} and {shapes[1]}: no problem has both: show one shape at a time")
    return (parse_shape(shapes[0]) if shapes else None), (text.key_values(",".join(keys)) if keys else ())


def _trial_document(row: TrialRow) -> dict[str, Any]:
    measured = {
        # JSON knows neither infinity nor NaN, which the error of a wrong result can be.
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in (by_name(row.outcome, "resources") | by_name(row.outcome.resources)).items()
    }
    return {**by_name(row, "config", "outcome"), **config_document(row.config), **measured}
