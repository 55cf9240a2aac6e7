"""`tuner run`: tune problems and keep every measurement."""

from __future__ import annotations

import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.adopt import calls
from tuner.cli import kernel_options, options, streams
from tuner.cli.kernel_options import kernel_option, problem_option
from tuner.cli.output import print_json, quantity
from tuner.errors import ProblemError, SuiteError, UsageError
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.lookup import misses
from tuner.models import captured
from tuner.problem import Problem, family
from tuner.problem import suite as suites
from tuner.problem.family import Ladder
from tuner.problem.shard import Shard
from tuner.tables.importing import candidates

if TYPE_CHECKING:
    from tuner.sweep.report import Plan, Report
    from tuner.sweep.run import Problems

Suggested = Mapping[Problem, Sequence[Config]]
_TRIALS = 48
"""About how many configs of a problem are tried under the interpreter; each is launched to be checked and timed."""
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class Duration(click.ParamType[float]):
    """A time span such as 60s, 5m or 1h; seconds without a unit."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds, as a float."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|)", str(value).strip())
        if not found:
            self.fail(f"{value!r} is no time span: expected for instance 60s, 5m or 1h", param, ctx)
        return float(found.group(1)) * _UNITS[found.group(2)]


class ShardOption(click.ParamType[Shard]):
    """A part of the problems, such as 3/8."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        """Read "I/N"."""
        try:
            return value if isinstance(value, Shard) else Shard.parse(value)
        except UsageError as e:
            self.fail(str(e), param, ctx)


@click.command()
@options.suite_option
@options.shape_option
@kernel_option
@problem_option
@options.dtype_option
@options.layout_option
@options.scaling_option
@options.invariant_option
@click.option(
    "--from-misses",
    "records",
    multiple=True,
    metavar="FILE",
    type=options.Place(path_type=Path),
    help="Problems that were called untuned on this device, the most called first; may be repeated.",
)
@click.option(
    "--captured",
    multiple=True,
    metavar="DIR",
    type=options.Place(path_type=Path),
    help="What a program called under tuner capture; may be repeated.",
)
@click.option("--widen", is_flag=True, help="With --captured: try neighbours of adopted kernels' configs, too.")
@click.option(
    "--strategy",
    type=click.Choice(["race", "exhaustive", "random"]),
    default="race",
    show_default=True,
    help="Which configs: the likely ones, all, or a sample.",
)
@click.option("--trials", type=click.IntRange(min=1), metavar="N", help="Configs tried per problem at most.")
@click.option("--time-budget", type=Duration(), metavar="60s", help="End after about this long.")
@click.option(
    "--shard", type=ShardOption(), metavar="I/N", help="The I-th of N parts of the problems, of about equal cost."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of random choices.")
@options.device_option("auto: every GPU; without one, Triton's interpreter. Several: cuda:0,cuda:1.")
@click.option("--ray", metavar="ADDRESS", help="Tune on all machines of a Ray cluster: HOST:PORT of its head, or auto.")
@click.option("--mixed", is_flag=True, help="With --ray: nodes may have several versions; each is tuned for.")
@options.db_option
@click.option("--fresh", is_flag=True, help="Measure again what earlier runs measured.")
@click.option("--dry-run", is_flag=True, help="Say what would be tried; measure and write nothing.")
@options.json_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    suite_names: tuple[str, ...],
    shapes: tuple[str, ...],
    records: tuple[Path, ...],
    **given: Any,
) -> int:
    """Tune problems on this machine's GPUs and keep every measurement.

    Goes on where an earlier run of the same problems stopped. Ctrl-C finishes the trial under way first.
    """
    named = _named(ctx, suite_names, shapes, given)
    if not named and not records:
        raise UsageError(
            "no problem given: name some with --suite demo, --suite FILE.csv, --shape 4096x4096x1024, "
            "--kernel MODULE:NAME --problem M=4096,N=1024, --captured DIR or --from-misses FILE"
        )
    if given["names"]:
        advice = "type it in --problem, M=8,N=64,K=64,layout=nt for instance"
        options.check_shaped(ctx, shapes, ("layout", "scaling"), advice)
    else:
        advice = "a suite says its own, and so does what was captured or missed"
        options.check_shaped(ctx, shapes, ("dtype", "layout", "scaling"), advice)
    missed = _missed(records)
    if given["invariant"] and not named:
        raise UsageError("--invariant is for --suite and --shape: what was missed says itself whether it is invariant")
    if given["widen"] and not given["captured"]:
        raise UsageError("--widen is for --captured DIR: a kernel of ours says itself what is tried")
    if given["mixed"] and given["ray"] is None:
        raise UsageError("--mixed is for --ray ADDRESS: one machine has one set of versions")
    gpus = [] if given["ray"] is not None else options.gpus_of(given["device"])

    def problems(device: Device) -> list[Problem | Ladder]:
        found = [*missed(device), *named]
        if (shard := given["shard"]) is not None:
            whole, found = found, shard.of(found)
            if not found:
                click.echo(f"shard {shard} has no part of {quantity(len(whole), 'problem')}", err=True)
        if device.is_interpreter:
            largest = [each.rungs[-1] if isinstance(each, Ladder) else each for each in found]
            options.warn_of_large(largest, 2 * min(given["trials"] or _TRIALS, _TRIALS))
        return found

    if given["ray"] is not None:
        return _run_fleet(problems, _ops(named, records), suggested(suite_names), given)
    work = _dry_run if given["dry_run"] else _run
    return work(problems, gpus, suggested(suite_names), given)


def suggested(suite_names: Sequence[str]) -> dict[Problem, list[Config]]:
    """Return by problem the configs that `tuner import` wrote beside a suite such as DIR/imported.csv.

    Raises:
        TableError: such a file is damaged.
    """
    found: dict[Problem, list[Config]] = {}
    for name in suite_names:
        path = Path(name).with_suffix(".candidates.json")
        for candidate in candidates.load(path) if name.endswith(".csv") and path.exists() else ():
            found.setdefault(candidate.problem, []).append(candidate.config)
    return found


def _invariant(each: Problem | Ladder, folders: Sequence[Path]) -> Problem | Ladder:
    try:
        return each.as_invariant()
    except ProblemError as e:
        where = " and ".join(f"--suite {shlex.quote(str(folder / captured.SUITE))}" for folder in folders)
        raise ProblemError(f"{e}; of what was captured, the products alone: {where}" if folders else str(e)) from e


def _named(
    ctx: click.Context, suite_names: Sequence[str], shapes: Sequence[str], given: dict[str, Any]
) -> Sequence[Problem | Ladder]:
    """Return the problems of the named kernel; without one, the problems and ladders with M, N and K."""
    if not given["names"]:
        if given["written"]:
            raise UsageError("--problem names a key of a kernel: say which by --kernel my_pkg.my_module:my_kernel")
        kind = {name: given[name] for name in ("dtype", "layout", "scaling")}
        listed = [each for name in suite_names for each in suites.load_with_ladders(name)]
        listed += _captured(given["captured"], widen=given["widen"])
        for shape in shapes:
            listed += family.parse_shape(shape, lambda m, n, k: Problem(m, n, k, **kind))
        return [_invariant(each, given["captured"]) for each in listed] if given["invariant"] else listed
    if given["captured"]:
        raise UsageError("--captured names its kernels itself: leave --kernel out, or name problems by --problem")
    if shapes:
        raise UsageError("--shape is for GEMMs: name a problem of --kernel by --problem M=4096,N=1024")
    if given["invariant"]:
        raise UsageError("--invariant is for --suite and --shape: type --problem M=1-512,N=4096,K=4096,invariant=true")
    specs = [kernel_options.find(name) for name in given["names"]]
    if len(specs) > 1 and (given["written"] or suite_names):
        raise UsageError("--problem and --suite name keys of one kernel: several --kernel are for --from-misses")
    return kernel_options.problems_of(specs[0], given["written"], suite_names, dtype=kernel_options.typed_dtype(ctx))


def _captured(folders: Sequence[Path], *, widen: bool) -> Sequence[Problem | Ladder]:
    """Return the GEMMs of folders and the calls of adopted kernels."""
    adopted = [folder for folder in folders if calls.paths(folder)]
    listed = [each for folder in folders if folder not in adopted for each in captured.problems(folder)]
    if not adopted:
        return listed
    replayed = kernel_options.find_captured(adopted)
    for kernel in replayed.kernels.values():
        kernel.widen = widen
    products: list[Problem | Ladder] = []
    for folder in adopted:
        captured.write_suite(folder)
        products += captured.problems(folder) if (folder / captured.SUITE).exists() else []
    if not replayed.problems and not products:
        where = " and ".join(map(str, adopted))
        raise SuiteError(f"nothing that was captured in {where} can be tuned: capture it again")
    return [*listed, *products, *replayed.problems]


def _missed(records: Sequence[Path]) -> Callable[[Device], list[Problem | Ladder]]:
    """Return a function from a device to what was missed on it, which says on stderr how much that is."""
    record = sum((misses.load(path) for path in records), misses.Record())

    def of_device(device: Device) -> list[Problem | Ladder]:
        found = record.problems(device.slug)
        if records:
            _say_missed(record, device, found)
        return list(found)

    return of_device


def _say_missed(record: misses.Record, device: Device, found: dict[Problem | Ladder, int]) -> None:
    calls = sum(found.values())
    of_others = sorted({miss.device for miss in record.calls} - {device.slug})
    others = f"; others missed on {', '.join(of_others)}" if of_others else ""
    click.echo(
        f"missed on {device.slug}: {quantity(len(found), 'problem')}, {quantity(calls, 'call')}{others}", err=True
    )
    if lacking := record.not_shipped(device.slug):
        click.echo(
            f"tuned, but without a shipped binary: {quantity(len(lacking), 'problem')}, "
            f"{quantity(sum(lacking), 'call')}; to ship them: tuner export DIR --with-kernels",
            err=True,
        )


def _run(problems: Problems, gpus: Sequence[int | None], suggested: Suggested, given: dict[str, Any]) -> int:
    from tuner.sweep.crew import Crew

    with Crew(gpus) as crew:
        # Imported while the processes start, because SQLAlchemy and rich take as long.
        from tuner.cli.run_output import Progress, closing_table, report_json
        from tuner.store.store import Store
        from tuner.sweep.run import sweep

        plan = _plan(given, suggested)
        with Store.open(given["db"]) as store, Progress() as progress, stop_on_signal() as stop:
            report = sweep(store, problems, crew, plan, argv=sys.argv, observer=progress, stop=stop)
    if given["as_json"]:
        print_json(report_json(report))
    else:
        closing_table(report)
    return _exit_code(report)


def _ops(named: Sequence[Problem | Ladder], records: Sequence[Path]) -> list[str]:
    """The ops of the problems that were named or missed on any device."""
    missed = {miss.problem.op for path in records for miss in misses.load(path).calls}
    return sorted(missed | {(each.family if isinstance(each, Ladder) else each).op for each in named})


def _run_fleet(
    problems: Callable[[Device], Sequence[Problem | Ladder]],
    ops: Sequence[str],
    suggested: Suggested,
    given: dict[str, Any],
) -> int:
    from tuner.cli import run_fleet

    with stop_on_signal() as stop:
        reports = run_fleet.tune(problems, ops, _plan(given, suggested), stop, given)
    return max(map(_exit_code, reports), default=0)


def _exit_code(report: Report) -> int:
    if report.interrupted:
        return 130
    return 1 if report.without_winner else 0


def _dry_run(problems: Problems, gpus: Sequence[int | None], suggested: Suggested, given: dict[str, Any]) -> int:
    from tuner.cli.run_output import forecast_table
    from tuner.location import database_location
    from tuner.sweep.run import forecast

    forecasts = forecast(database_location(given["db"]), problems, gpus[0], _plan(given, suggested))
    if given["as_json"]:
        print_json(forecasts)
    else:
        forecast_table(forecasts)
    return 0


def _plan(given: dict[str, Any], suggested: Suggested) -> Plan:
    from tuner.sweep.report import Plan
    from tuner.sweep.strategies import STRATEGIES

    return Plan(
        strategy=STRATEGIES[given["strategy"]],
        trials=given["trials"],
        time_budget_s=given["time_budget"],
        fresh=given["fresh"],
        seed=given["seed"],
        suggested=suggested,
    )


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C (or SIGTERM) sets; a second one raises KeyboardInterrupt."""
    stop = threading.Event()

    def handle(_number: int, _frame: object) -> None:
        if stop.is_set():
            click.echo("\nevery finished trial is kept; the same command (without --fresh) goes on from here", err=True)
            raise KeyboardInterrupt
        stop.set()
        click.echo("\nfinishing the trials under way; again to stop at once", err=True)

    with streams.handling(dict.fromkeys((signal.SIGINT, signal.SIGTERM), handle)):
        yield stop
