"""`tuner lookup`: says which config a problem would get, and why."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from tuner.cli import kernel_options, options, output
from tuner.errors import DeviceError, UsageError
from tuner.hardware.device import INTERPRETER, KNOWN, Device, current
from tuner.lookup import strict
from tuner.lookup.advice import command, how_to_tune
from tuner.lookup.decision import TUNED, Decision
from tuner.lookup.device_winners import DeviceWinners
from tuner.lookup.explain import evidence, explain, nearest, served
from tuner.lookup.fingerprint import digest
from tuner.lookup.lookup import resolver, use
from tuner.problem import Problem, parse_shape


@click.command()
@click.argument("shape", metavar="[MxNxK]", required=False)
@kernel_options.one_kernel_option
@kernel_options.one_problem_option
@options.dtype_option
@options.layout_option
@options.scaling_option
@options.precision_option
@options.invariant_option
@click.option(
    "--explain",
    "explained",
    is_flag=True,
    help="Also print the sources asked, the rows refused and the most similar problems.",
)
@click.option(
    "--device",
    "slug",
    callback=options.not_empty,
    metavar="NAME|ARCH",
    help="Look up for another device. [default: this machine's, or interpreter]",
)
@options.db_option
@options.json_option
@click.pass_context
def lookup(
    ctx: click.Context,
    *,
    shape: str | None,
    kernels: tuple[str, ...],
    problems: tuple[str, ...],
    dtype: str,
    layout: str,
    scaling: str,
    precision: str | None,
    invariant: bool,
    explained: bool,
    slug: str | None,
    db: str | None,
    as_json: bool,
) -> int:
    """Say which config a problem would get, and why.

    Prints the config, the match rule and the source. A database named with --db is asked before all other sources.
    Exits 1 if the config is only the default formula's, because nobody tuned this problem or a range that holds its M.
    """
    strict.is_on()  # a slip in its variable would stop the process for which this answers
    if shape is not None and not kernels and not problems:
        said: dict[str, Any] = {"dtype": dtype, "layout": layout, "scaling": scaling, "precision": precision}
        problem = Problem(*parse_shape(shape), **said, invariant=invariant)
    elif shape is None and len(kernels) == len(problems) == 1:
        for name in ("layout", "scaling", "precision", "invariant"):
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise UsageError(f"--{name} is for a shape: type it in --problem, M=8,N=64,K=64,layout=nt for instance")
        spec = kernel_options.find(kernels[0])
        problem = kernel_options.problem_of(spec, problems[0], dtype=kernel_options.typed_dtype(ctx))
    else:
        found = [shape] if shape is not None else []
        found += [f"--kernel {each}" for each in kernels] + [f"--problem {each}" for each in problems]
        expected = "a shape, 4096x4096x1024, or --kernel MODULE:NAME with --problem M=4096,N=1024"
        raise UsageError(
            f"found {', '.join(found)}: expected one problem alone: {expected}" if found else f"expected {expected}"
        )
    if db is not None:
        use(db)
    device = _this_device() if slug is None else _device(slug)
    device, by_source, decision = resolver().explanation(problem, device)
    # A file's module is found from its own folder only.
    kernel = kernels[0] if problem.is_keyed and ".py:" in kernels[0] else None
    to_tune = command(problem, decision.untuned, kernel=kernel)
    if as_json:
        output.print_json(_document(problem, device, by_source, decision) | {"command": to_tune})
    elif explained:
        click.echo(explain(problem, device, kernel=kernel))
    else:
        _print(problem, device, decision, to_tune)
    return 1 if decision.match.rule == "default" else 0


def _this_device() -> Device:
    try:
        return current()
    except DeviceError:
        click.echo("no GPU here: looking up for the interpreter (--device NAME for another)", err=True)
        return INTERPRETER


def _device(name: str) -> Device:
    """Return a device by slug, name or a word of it, or the known one of an architecture."""
    try:
        return KNOWN.get(name) or resolver().device(name)
    except DeviceError as e:
        raise UsageError(str(e)) from e


def _print(problem: Problem, device: Device, decision: Decision, to_tune: str) -> None:
    match = decision.match
    click.echo(f"{problem} on {device.slug}: {match.config}")
    click.echo(f"rule {match.rule}, grade {match.grade}, from {match.source}")
    if decision.row is not None:
        click.echo(evidence(decision.row) if match.rule == "exact" else f"{served(decision)}: {evidence(decision.row)}")
    if match.rule != "exact":
        click.echo(how_to_tune(problem, to_tune))


def _document(problem: Problem, device: Device, by_source: list[DeviceWinners], decision: Decision) -> dict[str, Any]:
    match, row = decision.match, decision.row
    return {
        "problem": problem,
        "device": device.slug,
        "kernel": match.kernel,
        "config": dict(match.config),
        "rule": match.rule,
        "source": match.source,
        "grade": match.grade,
        "expected_regret": match.regret,
        "median_us": row and row.median_us,
        "vs_default": row and row.vs_default,
        "vs_vendor": row and row.vs_vendor,
        "ties": row and row.ties,
        "tuned_for": row and row.problem,
        "measured_on": decision.measured_on or None,
        "sources": [{"name": winners.source, "holds": winners.note} for winners in by_source],
        "refused": [
            {"source": r.source, "rule": r.rule, "config": dict(r.row.config), "reason": r.reason}
            for r in decision.refused
        ],
        "range": decision.range,
        "batches": decision.batches,
        "fallen": decision.fallen,
        "nearest": [] if match.rule in TUNED else nearest(problem, by_source),
        "digest": digest(device),
    }
