"""`tuner run`: tune problems and keep every measurement."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli.kernel_options import kernel_option, problem_option, typed_dtype
from tuner.cli.options import (
    Place,
    db_option,
    device_option,
    dtype_option,
    fresh_option,
    fresh_since_option,
    gpus_of,
    invariant_option,
    json_option,
    layout_option,
    precision_option,
    scaling_option,
    seconds_of,
    shape_option,
    suite_option,
    trials_option,
    warn_of_large,
)
from tuner.cli.output import print_json, quantity
from tuner.cli.run_options import RunOptions
from tuner.cli.run_problems import RunProblems, problems_of, suggested
from tuner.cli.streams import stop_on_signal
from tuner.errors import UsageError
from tuner.hardware.device import Device
from tuner.problem import Problem
from tuner.problem.family import Ladder
from tuner.problem.shard import Shard

if TYPE_CHECKING:
    from tuner.sweep.report import Report


def _shard(text: str) -> Shard:
    try:
        return Shard.parse(text)
    except UsageError as e:
        raise click.BadParameter(str(e)) from e


@click.command()
@suite_option
@shape_option
@kernel_option
@problem_option
@dtype_option
@layout_option
@scaling_option
@precision_option
@invariant_option
@click.option(
    "--from-misses",
    "misses",
    multiple=True,
    metavar="FILE",
    type=Place(path_type=Path),
    help="Problems that were called untuned on this device, the most called first; may be repeated.",
)
@click.option(
    "--captured",
    multiple=True,
    metavar="DIR",
    type=Place(path_type=Path),
    help="Calls recorded by tuner capture --out DIR; may be repeated.",
)
@click.option(
    "--widen", is_flag=True, help="With --captured: also try adopted kernels' configs with other warps and stages."
)
@click.option(
    "--strategy",
    type=click.Choice(["race", "exhaustive", "random"]),
    default="race",
    show_default=True,
    help="Which configs are tried: the likely ones, all, or a random sample.",
)
@trials_option
@click.option("--time-budget", "time_budget_s", type=seconds_of, metavar="60s", help="End after about this long.")
@click.option("--shard", type=_shard, metavar="I/N", help="The I-th of N parts of the problems, of about equal cost.")
@click.option("--seed", type=int, metavar="N", default=0, show_default=True, help="Seeds random choices.")
@device_option("auto: every GPU; without one, Triton's interpreter. Several: cuda:0,cuda:1.")
@click.option("--ray", metavar="ADDRESS", help="Tune on all machines of a Ray cluster: HOST:PORT of its head, or auto.")
@click.option("--mixed", is_flag=True, help="With --ray: nodes may have different versions; tune under each.")
@db_option
@fresh_option
@fresh_since_option
@click.option("--dry-run", is_flag=True, help="Print what would be tried; measure and write nothing.")
@json_option
@click.pass_context
def run(ctx: click.Context, /, **typed: Any) -> int:
    """Tune problems on this machine's GPUs and keep every measurement.

    Goes on where an earlier run of the same problems stopped. Ctrl-C finishes the trial under way first.
    """
    options = RunOptions(**typed)
    options.check(ctx)
    problems = problems_of(options, typed_dtype=typed_dtype(ctx))
    if options.ray is not None:
        return _run_fleet(problems, options)
    gpus = gpus_of(options.device)
    return _dry_run(problems, gpus, options) if options.dry_run else _run(problems, gpus, options)


def _on_device(problems: RunProblems, options: RunOptions) -> Callable[[Device], list[Problem | Ladder]]:
    """Return a function from a device to what is tuned on it, which says what a user should know about that."""

    def on_device(device: Device) -> list[Problem | Ladder]:
        tuned = problems.on(device)
        if options.shard is not None:
            whole, tuned = tuned, options.shard.of(tuned)
            if not tuned:
                click.echo(f"shard {options.shard} has no part of {quantity(len(whole), 'problem')}", err=True)
        if device.is_interpreter:
            from tuner.sweep.race import LEAST_TRIALS  # it needs numpy

            largest = [each.rungs[-1] if isinstance(each, Ladder) else each for each in tuned]
            warn_of_large(largest, 2 * min(options.trials or LEAST_TRIALS, LEAST_TRIALS))  # each is checked and timed
        return tuned

    return on_device


def _run(problems: RunProblems, gpus: Sequence[int | None], options: RunOptions) -> int:
    from tuner.sweep.sweep_processes import SweepProcesses

    configs = suggested(options.suites)
    with SweepProcesses(gpus) as processes:
        # Imported while the processes start, because SQLAlchemy and rich take as long.
        from tuner.cli.run_output import Progress, closing_table, report_json
        from tuner.store.store import Store
        from tuner.sweep.run import sweep

        plan = options.plan(configs)
        with Store.open(options.db) as store, Progress() as progress, stop_on_signal(fresh=options.fresh) as stop:
            problems_on = _on_device(problems, options)
            report = sweep(store, problems_on, processes, plan, argv=sys.argv, observer=progress, stop=stop)
    if options.as_json:
        print_json(report_json(report))
    else:
        closing_table(report)
    return _exit_code(report)


def _run_fleet(problems: RunProblems, options: RunOptions) -> int:
    from tuner.cli import run_fleet

    plan = options.plan(suggested(options.suites))
    with stop_on_signal(fresh=options.fresh) as stop:
        reports = run_fleet.tune(_on_device(problems, options), problems.ops, plan, options, stop)
    return max(map(_exit_code, reports), default=0)


def _exit_code(report: Report) -> int:
    if report.interrupted:
        return 130
    return 1 if report.undecided_count or report.deserted else 0


def _dry_run(problems: RunProblems, gpus: Sequence[int | None], options: RunOptions) -> int:
    from tuner.cli.run_output import forecast_table
    from tuner.location import database_location
    from tuner.sweep.run import forecast

    plan = options.plan(suggested(options.suites))
    forecasts = forecast(database_location(options.db), _on_device(problems, options), gpus[0], plan)
    if options.as_json:
        print_json(forecasts)
    else:
        forecast_table(forecasts)
    return 1 if any(each.reason for each in forecasts) else 0
