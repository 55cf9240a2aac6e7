"""`tuner model`: the GEMMs and norms of a Hugging Face model, as a suite."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.cli import options, output
from tuner.cli.output import quantity
from tuner.errors import ModelError, TableError, UsageError
from tuner.files import write_text
from tuner.lookup.sources import OWN
from tuner.models import config as configs
from tuner.models import written_suites
from tuner.models.lines import Line, dumps
from tuner.models.sizes import Sizes
from tuner.moe import model as experts
from tuner.problem import dtype as dtypes
from tuner.problem.batches import Key, split

_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn")
"""Of linear layers, by `--dtype`."""
_KIND = ("n", "k", "dtype", "layout", "epilogue", "scaling", "op", "batch", "groups", "top_k", "eps", "parts")
_SHOWN = (*_KIND, "count", "note")
_NAMED = 3
"""How many of the layers that are not listed are named."""
_RECORD = "record a program that does: tuner capture --out DIR -- COMMAND"

if TYPE_CHECKING:
    from tuner.models.families import ModelGemms


@click.command()
@click.argument("name", metavar="NAME|CONFIG.json", type=options.Place())
@click.option(
    "--tp", type=click.IntRange(min=1), metavar="N", default=1, show_default=True, help="Number of GPUs to shard over."
)
@click.option(
    "--m",
    "sizes",
    metavar="1-512,8192",
    default="1-512,8192",
    show_default=True,
    help="Tokens of a step: ranges or sizes.",
)
@click.option("--dtype", metavar="bf16|fp16|fp32|e4m3", help="The linear layers' dtype. [default: the config's]")
@click.option(
    "--out", metavar="SUITE.csv", required=True, type=options.Place(path_type=Path), help="Write the suite there."
)
@options.json_option
def model(name: str, *, tp: int, sizes: str, dtype: str | None, out: Path, as_json: bool) -> None:
    """Write the GEMMs and norms of a Hugging Face model as a suite.

    `tuner run --suite` tunes it. transformers builds the model from its config, a file or a name in the local cache,
    without weights and without network, and its forward says what it multiplies.
    """
    ms = Sizes.parse(sizes)
    asked = None if dtype is None else dtypes.canonical(dtype, _DTYPES)
    if out.suffix != ".csv":
        raise UsageError(f"--out {out}: the name of a suite ends in .csv: type --out {out.with_suffix('.csv')}")
    if not out.parent.is_dir():
        raise ModelError(f"cannot write {out}: there is no folder {out.parent}: make it, or name another")
    if written_suites.is_edited(out):
        raise UsageError(f"{out} was edited, or another program's: name another with --out, or move it away")
    config = configs.load(name)
    precision = configs.take_precision(config, asked)
    built = configs.build(config, precision.dtype)
    from tuner.models import families  # after the config was read, because torch takes seconds

    if (named := getattr(config, "architectures", None)) and type(built).__name__ not in named:
        click.echo(f"transformers builds no {' or '.join(named)}: this is {type(built).__name__}", err=True)
    gemms = families.find(built, precision, tp=tp)
    listed = families.lines(gemms, ms)
    text = dumps(listed, f"The GEMMs and norms of {name}, by `tuner model`; count: how often a step calls each.")
    write_text(out, written_suites.signed(text), error=ModelError)
    commands = families.moe_commands(gemms, experts.quantization_options(name, asked))
    shipped = _shipped(out)
    if as_json:
        every = [
            {"m": line.ms, **line.product._asdict(), "top_k": 0, "eps": 0.0, "parts": ""}
            | dict(line.extras)
            | {"count": line.count, "note": line.note}
            for line in listed
        ]
        lines = [{name: value for name, value in each.items() if name != "device"} for each in every]
        document = {"suite": out, "model": type(built).__name__, "families": lines, "commands": commands}
        document |= {"left_out": gemms.left_out, "whole": gemms.whole, "remark": precision.remark}
        output.print_json({**document, "shipped": shipped, "uncalled": gemms.uncalled})
        return
    _say(gemms, precision.remark, commands)
    if any(experts.OPEN_DTYPE in command for command in commands):
        try:
            experts.quantization(name)
        except ModelError as e:
            click.echo(f"DTYPE of {e}", err=True)
    printed = quantity(_print(listed), "family")
    command = shlex.join(["tuner", "run", "--suite", str(out)])
    click.echo(f"{out}: {printed} of {type(built).__name__}; to tune them: {command}")
    if shipped:
        counts = ", ".join(f"{count} of these for {slug}" for slug, count in shipped.items())
        command = shlex.join(["tuner", "import", OWN, "--suite", str(out)])
        click.echo(f"{OWN}'s own tables have {counts}; to bring them: {command} --device NAME --with-kernels --out DIR")


def _shipped(suite: Path) -> dict[str, int]:
    """By device, of how many families of a suite the tables that come with triton-tuner have rows."""
    from tuner.lookup import sources
    from tuner.problem import suite as suite_files
    from tuner.tables.importing import tables

    held: dict[str, set[Key]] = {}
    with contextlib.suppress(TableError):  # of an installation that lookups warn of
        if (package := sources.package(OWN)) is not None:
            held = tables.families_held(package)
    asked = {split(problem)[0] for problem in suite_files.load(suite)}
    return {slug: count for slug, families in sorted(held.items()) if (count := len(asked & families))}


def _print(lines: Sequence[Line]) -> int:
    """Print each family once, with all of its Ms; return how many there are."""
    families: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        families.setdefault(tuple(line.cells()[name] for name in _SHOWN), []).append(line.ms)
    used = [at for at in range(len(_SHOWN)) if any(row[at] for row in families)]
    rows = [[",".join(ms), *(row[at] for at in used)] for row, ms in families.items()]
    output.print_table(["m", *(_SHOWN[at] for at in used)], rows, empty="")
    return len(rows)


def _say(gemms: ModelGemms, remark: str | None, commands: Sequence[str]) -> None:
    """Say on stderr what is not in the suite, or not as people may expect it."""
    remarks = [remark] if remark else []
    remarks += [f"left out, {quantity(count, 'call')} a step: {reason}" for reason, count in gemms.left_out.items()]
    if uncalled := [*gemms.uncalled]:
        layers = quantity(sum(gemms.uncalled.values()), "linear layer")
        named = ", ".join(uncalled[:_NAMED]) + (", ..." if len(uncalled) > _NAMED else "")
        remarks.append(f"not listed, since a forward of tokens does not call them: {layers} ({named}): {_RECORD}")
    remarks += [f"whole on each GPU by the model's own plan: {', '.join(gemms.whole)}"] if gemms.whole else []
    remarks += [f"experts, for vLLM's fused kernel: {command}" for command in commands]
    for line in remarks:
        click.echo(line, err=True)
