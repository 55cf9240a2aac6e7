"""`tuner moe`: tuned configs of fused experts, as files that vLLM and SGLang read."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tuner.cli import measured, moe_files, options, output
from tuner.cli.moe_options import MoeOptions
from tuner.cli.options import seconds_of
from tuner.cli.output import how_to_resume, quantity
from tuner.cli.streams import stop_on_signal
from tuner.files import make_folder
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.problem import Problem

if TYPE_CHECKING:
    from tuner.moe.tuning import Row, Task
    from tuner.store.records import Winner

_COLUMNS = ("m", "ships", "us", "over file", "over default", "config")


def _sizes(text: str, example: str) -> tuple[int, ...]:
    """Return integers from 1 on that commas separate; `example` is for what is refused."""
    cells = text.split(",")
    if not all(re.fullmatch(r"\s*0*[1-9]\d{0,18}\s*", cell) for cell in cells):  # Python reads 4300 digits at most
        raise click.BadParameter(f"{text!r:.60} are no sizes: expected integers from 1 on, such as {example}")
    return tuple(int(cell) for cell in cells)


@click.command()
@click.option("--experts", type=click.IntRange(min=1), metavar="E", help="Experts on a rank.")
@click.option("--hidden", type=click.IntRange(min=1), metavar="K", help="Size of a token's vector.")
@click.option(
    "--intermediate", type=click.IntRange(min=1), metavar="N", help="Size between the two GEMMs, over all ranks."
)
@click.option("--topk", "top_k", type=click.IntRange(min=1), metavar="T", help="Experts of a token.")
@click.option(
    "--model",
    metavar="NAME|CONFIG.json",
    type=options.Place(),
    help="Take these sizes and the dtype from a Hugging Face config.",
)
@click.option(
    "--dtype",
    metavar="bf16|fp16|fp8_w8a8|int8_w8a16|int4_w4a16",
    help="Activations and weights. [default: the config's, else bf16]",
)
@click.option(
    "--block-shape",
    type=lambda text: _sizes(text, "128,128"),
    metavar="128,128",
    help="Block of fp8 weights that shares a scale, N and K.",
)
@click.option(
    "--group-size", type=click.IntRange(min=1), metavar="128", help="Number of int4 or int8 weights that share a scale."
)
@click.option("--zero-points", is_flag=True, default=None, help="Groups have zero points too, as AWQ's do.")
@click.option(
    "--tp",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of ranks; divides --intermediate.",
)
@click.option(
    "--m",
    "ms",
    type=lambda text: _sizes(text, "1,8,64"),
    metavar="1,8,64",
    help="Numbers of tokens. [default: the packages' own 18]",
)
@click.option(
    "--routing",
    default="uniform",
    show_default=True,
    metavar="uniform|zipf|FILE",
    type=options.Place(),
    help="Which experts tokens go to; FILE holds recorded ids as JSON, [[0, 5], [3, 1]].",
)
@click.option("--for", "package", type=click.Choice(["vllm", "sglang"]), required=True, help="The package to tune for.")
@click.option(
    "--out", required=True, metavar="DIR", type=options.Place(path_type=Path), help="Write the file into this folder."
)
@options.trials_option
@click.option(
    "--time-budget", "time_budget_s", type=seconds_of, metavar="60s", help="End tuning after about this long."
)
@click.option("--play-only", is_flag=True, help="Tune nothing: time the package's file beside its default config.")
@options.device_option("auto: every GPU; without one, Triton's interpreter.")
@options.db_option
@options.fresh_option
@options.fresh_since_option
@options.json_option
def moe(**typed: Any) -> int:
    """Tune the fused experts of vLLM or SGLang, and write their file.

    Tunes the kernel of the installed package. For each number of tokens the tuned config is timed beside the one in the
    package's file and the package's default config, and the fastest is written.
    """
    from tuner.moe import kernel, routing, tuning
    from tuner.moe.layer import LADDER
    from tuner.moe.package import load
    from tuner.sweep.job import SPENT

    asked = MoeOptions(**typed)
    asked.check()
    layer = asked.layer()
    if note := asked.shared_experts_note():
        click.echo(note, err=True)
    recording = None if asked.routing in (routing.UNIFORM, routing.ZIPF) else Path(asked.routing)
    routed = asked.routing if recording is None else routing.record(recording, layer.experts, layer.top_k)
    kernel.register(asked.package, recording, layer)
    task = tuning.Task(load(asked.package), layer, tuple(dict.fromkeys(asked.ms or LADDER)), routed)
    task.package.kernel_of(layer)
    gpus = options.gpus_of(asked.device)
    if not asked.play_only:
        make_folder(asked.out)
    configs, spent, fresh_since = _Tuned({}) if asked.play_only else _tuned(task, gpus, asked)
    not_tuned = [m for m in task.ms if not configs.get(m)] if spent else []
    if not_tuned:
        instead = f", and {how_to_resume(fresh_since)}" if fresh_since else " "
        click.echo(
            f"{SPENT}: not tuned: M {moe_files.listed(not_tuned)}; every trial is kept, the same command with a larger "
            f"--time-budget{instead}goes on from here",
            err=True,
        )
        if len(not_tuned) == len(task.ms):
            _say(task, [], [], not_tuned, [], as_json=asked.as_json)
            return 1
    from tuner.sweep.paired import PairedRunner

    with PairedRunner(gpus[0]) as runner:
        click.echo(f"{runner.device.slug}: timing {quantity(len(task.ms), 'row')}", err=True)
        rows, ended = measured.collect(
            tuning.play(task, configs, runner),
            lambda row, done: click.echo(f"[{done}/{len(task.ms)}] M {row.m}: {row.origin or row.reason}", err=True),
        )
        if ended is None:
            tuning.check(rows)
        keeps = not asked.play_only and any(row.configs for row in rows)
        written = moe_files.write(asked.out, task, rows, runner, in_part=ended is not None) if keeps else []
    not_played = task.ms[len(rows) :]
    _say(task, rows, written, not_tuned, not_played, as_json=asked.as_json)
    if ended is not None:
        again = f"the same command {how_to_resume(fresh_since)}times every row again"
        click.echo(f"not timed: M {moe_files.listed(not_played)}; {again}", err=True)
        raise ended
    return 0 if all(row.configs for row in rows) and not not_tuned else 1


class _Tuned(NamedTuple):
    """What tuning gave.

    Attributes:
        configs: those found, by M.
        is_spent: whether the time budget ended before all was decided.
        fresh_since: see `tuner.sweep.report.Report`.
    """

    configs: Mapping[int, Sequence[Any]]
    is_spent: bool = False
    fresh_since: str | None = None


def _tuned(task: Task, gpus: Sequence[int | None], asked: MoeOptions) -> _Tuned:
    """Tune all rows in the database, which keeps every measurement as for `tuner run`."""
    from tuner.cli.run_output import Progress
    from tuner.moe import tuning
    from tuner.store.store import Store
    from tuner.sweep.plan import Plan
    from tuner.sweep.run import sweep

    begun, spent, fresh_since = time.monotonic(), list[bool](), asked.fresh_since

    def budget_s() -> float | None:
        """What is left for the next sweep: SGLang's rows may take two."""
        return asked.time_budget_s and max(0.0, asked.time_budget_s - (time.monotonic() - begun))

    with Store.open(asked.db) as store, stop_on_signal(fresh=asked.fresh) as stop:

        def run(
            problems: Callable[[Device], Sequence[Problem]], suggested: Mapping[Problem, Sequence[Config]]
        ) -> Sequence[Winner]:
            nonlocal fresh_since
            plan = Plan(
                trials=asked.trials,
                time_budget_s=budget_s(),
                fresh=asked.fresh or fresh_since is not None,
                fresh_since=fresh_since,
                suggested=suggested,
            )
            with Progress() as progress:
                report = sweep(store, problems, gpus, plan, argv=sys.argv, observer=progress, stop=stop)
            fresh_since = report.fresh_since
            if stop.is_set():
                instead = how_to_resume(fresh_since)
                click.echo(f"interrupted: every trial is kept, the same command {instead}goes on from here", err=True)
                raise click.exceptions.Exit(130)
            spent.append(report.is_spent)
            return [each.winner for each in report.problems if each.winner is not None]

        configs = tuning.tuned(task, run, lambda device: store.winners(device_slug=device.slug))
    return _Tuned(configs, any(spent), fresh_since)


def _say(
    task: Task,
    rows: Sequence[Row],
    written: Sequence[Path],
    not_tuned: Sequence[int],
    not_played: Sequence[int],
    *,
    as_json: bool,
) -> None:
    from tuner.moe import tuning
    from tuner.moe.config_file import VARIABLES

    gained = sum(row.gain > 1 + tuning.NOISE for row in rows)
    if as_json:
        document = {"layer": task.layer, "routing": task.routing, "rows": rows, "files": written, "gained": gained}
        output.print_json({**document, "not_tuned": not_tuned, "not_played": not_played})
        return
    for row in rows:
        if row.configs and row.reason:
            click.echo(f"M {row.m}: {row.reason}", err=True)
    if not rows:
        return
    output.print_table(_COLUMNS, [_cells(row) for row in rows], empty="")
    package = task.package.name
    if not written:
        return
    for path in written:
        click.echo(str(path))
    if gained:
        faster = f"{quantity(gained, 'row')} {'is' if gained == 1 else 'are'}"
    else:
        faster = "no tuned row is" if not_tuned else "no timed row is" if not_played else "no row is"
    click.echo(f"{faster} faster by more than 1% than what {package} does without this file")
    folder = written[0].parents[0 if package == "vllm" else 2]
    click.echo(f"to use it: {VARIABLES[package]}={shlex.quote(str(folder))}")


def _cells(row: Row) -> tuple[str, ...]:
    if not row.configs:
        return (str(row.m), "nothing", "", "", "", row.reason)
    ratios = [f"{row.ratios[name]:.3f}" if name in row.ratios else "" for name in ("file", "default")]
    return (str(row.m), row.origin, f"{row.us:.2f}", *ratios, "; ".join(config.label for config in row.configs))
