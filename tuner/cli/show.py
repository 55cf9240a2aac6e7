"""`tuner show`: lists winners, trials, runs, devices and problems."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tuner.cli import options
from tuner.cli.output import FIGURES, config_document, figures, print_json, print_table, winner_document
from tuner.errors import UsageError
from tuner.problem import parse_shape, text
from tuner.problem.generic_key import Extra
from tuner.store.records import State

if TYPE_CHECKING:
    from tuner.store.listing import TrialRow
    from tuner.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])

NEWEST = 50
"""How many trials or runs a table shows without `--limit`; JSON has them all."""
_NONE_MATCH = "none match: leave a filter out"


@click.group()
def show() -> None:
    """List winners, trials, runs, devices or problems."""


_device_option = click.option("--device", metavar="SLUG", help="Of this device only; `tuner show devices` lists them.")
_shape_option = click.option(
    "--shape", "--problem", "shape", metavar="MxNxK|N=1024", help="Of this shape, or of these values of a key, only."
)
_kernel_option = click.option("--kernel", metavar="NAME", help="Of this kernel only.")
_limit_option = click.option("--limit", type=click.IntRange(min=1), help="At most so many.")


@show.command()
@options.db_option
@_device_option
@_shape_option
@_kernel_option
@_limit_option
@options.json_option
def winners(
    *, db: str | None, device: str | None, shape: str | None, kernel: str | None, limit: int | None, as_json: bool
) -> None:
    """The current winner of each problem, by device."""
    wanted, key = _problems_of(shape)
    with _open(db, device) as store:
        found = [
            winner
            for winner in store.winners(device_slug=device)
            if wanted in (None, winner.problem.shape)
            and text.has(winner.problem, key)
            and kernel in (None, winner.config.kernel)
        ][:limit]
        empty = _NONE_MATCH if not found and store.winners() else "no winners: `tuner run` makes them"
    if as_json:
        print_json([winner_document(winner) for winner in found])
        return
    print_table(
        ("device", "problem", "config", *FIGURES, "triton"),
        [
            (
                winner.device.slug,
                str(winner.problem),
                winner.config.label,
                *figures(winner),
                winner.environment.triton,
            )
            for winner in found
        ],
        empty=empty,
    )


@show.command()
@options.db_option
@_device_option
@_shape_option
@_kernel_option
@click.option("--state", type=click.Choice([state.value for state in State], case_sensitive=False))
@_limit_option
@options.json_option
def trials(
    *,
    db: str | None,
    device: str | None,
    shape: str | None,
    kernel: str | None,
    state: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Every config that was measured, the newest first."""
    from tuner.store.listing import TrialFilter

    wanted, key = _problems_of(shape)
    asked = TrialFilter(device, wanted, kernel, State(state) if state else None, key)
    with _open(db, device) as store:
        found = store.trials(asked, limit=limit if as_json else limit or NEWEST)
        count = store.count_trials(asked)
        empty = _NONE_MATCH if not count and store.count_trials() else "no trials: `tuner run` makes them"
    if as_json:
        print_json([_trial_document(row) for row in found])
        return
    print_table(
        ("device", "problem", "config", "state", "us", "registers", "spills", "shared", "measured", "message"),
        [
            (
                row.device,
                str(row.problem),
                row.config.label,
                str(row.outcome.state),
                "" if row.outcome.median_us is None else f"{row.outcome.median_us:.2f}",
                _figure(row.outcome.resources.registers),
                _figure(row.outcome.resources.spill_bytes),
                _figure(row.outcome.resources.shared_bytes),
                row.measured_at,
                row.outcome.message.partition("\n")[0][:80],
            )
            for row in found
        ],
        empty=empty,
    )
    if len(found) < count:
        click.echo(f"the newest {len(found)} of {count}: --limit {count} shows all", err=True)


@show.command()
@options.db_option
@_device_option
@_limit_option
@options.json_option
def runs(*, db: str | None, device: str | None, limit: int | None, as_json: bool) -> None:
    """Every `tuner run`, the newest first."""
    with _open(db, device) as store:
        found = store.runs(device_slug=device, limit=limit if as_json else limit or NEWEST)
    if as_json:
        print_json([asdict(row) for row in found])
        return
    print_table(
        ("run", "device", "status", "trials", "started", "ended", "host", "triton", "tuner"),
        [
            (
                row.uuid,
                row.device,
                row.status,
                str(row.trials),
                row.started_at,
                row.ended_at or "",
                row.host,
                row.environment.triton,
                row.tool_version,
            )
            for row in found
        ],
        empty="no runs: `tuner run` makes one",
    )


@show.command()
@options.db_option
@options.json_option
def devices(*, db: str | None, as_json: bool) -> None:
    """Every GPU model that was tuned."""
    with _open(db, None) as store:
        found = store.devices()
    if as_json:
        print_json(
            [
                asdict(row.device) | {key: value for key, value in asdict(row).items() if key != "device"}
                for row in found
            ]
        )
        return
    print_table(
        ("device", "name", "also called", "arch", "runs", "trials", "winners"),
        [
            (
                row.device.slug,
                row.device.name,
                ", ".join(row.aliases),
                row.device.arch,
                str(row.runs),
                str(row.trials),
                str(row.winners),
            )
            for row in found
        ],
        empty="no devices: `tuner run` adds the one it runs on",
    )


@show.command()
@options.db_option
@_device_option
@_shape_option
@_limit_option
@options.json_option
def problems(*, db: str | None, device: str | None, shape: str | None, limit: int | None, as_json: bool) -> None:
    """Every problem that was tried, with its trials, how many of them are COMPLETE, and its winners."""
    wanted, key = _problems_of(shape)
    with _open(db, device) as store:
        found = store.problems(device_slug=device, shape=wanted, key=key, limit=limit)
        empty = _NONE_MATCH if not found and store.problems(limit=1) else "no problems: `tuner run` tries some"
    if as_json:
        print_json(
            [
                {
                    "problem": row.problem.fields(),
                    "trials": row.trials,
                    "complete": row.complete,
                    "winners": row.winners,
                }
                for row in found
            ]
        )
        return
    print_table(
        ("problem", "trials", "complete", "winners"),
        [(str(row.problem), str(row.trials), str(row.complete), str(row.winners)) for row in found],
        empty=empty,
    )


def _problems_of(given: str | None) -> tuple[tuple[int, int, int] | None, tuple[tuple[str, Extra], ...]]:
    """Return the shape, or the values of a key, that `--shape` or `--problem` asks for."""
    if given is None:
        return None, ()
    if "=" in given:
        return None, text.key_values(given)
    if "x" not in given.lower():
        raise UsageError(f"{given!r}: expected a shape, 4096x4096x1024, or values of a key, N=1024,dtype=bf16")
    return parse_shape(given), ()


def _open(db: str | None, device: str | None) -> Store:
    """Open the database read-only; a device that is not in it is an error."""
    from tuner.store.store import Store

    store = Store.open(db, read_only=True)
    if device is not None:
        known = [row.device.slug for row in store.devices()]
        if device not in known:
            store.close()
            raise UsageError(f"no device {device!r} in {store.location}: known are {', '.join(known) or 'none'}")
    return store


def _figure(value: int | None) -> str:
    return "" if value is None else str(value)


def _trial_document(row: TrialRow) -> dict[str, Any]:
    outcome = asdict(row.outcome)
    resources = outcome.pop("resources")
    figures = {
        # JSON knows neither infinity nor NaN, which the error of a wrong result can be.
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in (outcome | resources).items()
    }
    return {
        "trial_id": row.trial_id,
        "run": row.run,
        "device": row.device,
        "problem": row.problem.fields(),
        **config_document(row.config),
        "kernel_version": row.kernel_version,
        **figures,
        "measured_at": row.measured_at,
    }
