"""Options that several commands share, and what `--device` means to those that measure."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tuner.cli.output import span
from tuner.errors import DeviceError, UsageError
from tuner.hardware.device import INTERPRETED_FLOPS_S
from tuner.location import database_location, expanded, sqlite_path
from tuner.problem import Problem
from tuner.problem.gemm_fields import PRECISIONS, SCALINGS

if TYPE_CHECKING:
    from tuner.store.store import Store

F = TypeVar("F", bound=Callable[..., Any])

LARGE_FLOPS = 2 * 512**3
"""Beyond this, the interpreter takes seconds to minutes for each config."""
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _named(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    # A script's `--db "$UNSET"` must not write into the user's own database.
    if value == "":
        raise UsageError("--db is empty: expected a path or a URL; leave it out for $TUNER_DB or the user data folder")
    return value


class Place(click.Path):
    """The name of a file, a folder or a database.

    An empty name is refused: pathlib would take it for the current folder, and `--db` for the user's own database, but
    a script that types "$UNSET" means neither. A leading `~` is the user's home: shells leave it in `--out=~/tables`.
    Whether the place can be read is for the command to say.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(readable=False, **given)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value as click.Path does."""
        if value == "":
            self.fail("it is empty: expected a name", param, ctx)
        if isinstance(value, str) and value.startswith("~"):  # a Path would make another name of a URL, or of ./demo
            value = os.fspath(expanded(value))
        return super().convert(value, param, ctx)


def not_empty(_ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty name: who typed "$UNSET" did not mean to leave the option out."""
    if value == "":
        raise UsageError(f"{param.opts[0]} is empty: expected a name, or leave it out")
    return value


def seconds_of(text: str) -> float:
    """Return the seconds of a time span such as 60s, 5m or 1h; without a unit they are seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min|h|)", text.strip())
    seconds = float(match.group(1)) * _UNITS_S[match.group(2)] if match else 0.0
    if not seconds:
        raise click.BadParameter(f"{text!r} is no time span: expected for instance 60s, 5m or 1h")
    return seconds


def _document_only(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    if value:
        from tuner.cli import output

        ctx.with_resource(output.document_only())
    return value


db_option = click.option(
    "--db",
    metavar="PATH|URL",
    default=None,
    callback=_named,
    help="The database. [default: $TUNER_DB, else tuner.db in the user data folder]",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_document_only, help="Print one JSON document on stdout."
)
suite_option = click.option(
    "--suite", "suites", multiple=True, metavar="NAME|FILE.csv", type=Place(), help="Problems by list; may be repeated."
)
shape_option = click.option(
    "--shape", "shapes", multiple=True, metavar="MxNxK", help="A problem by shape; may be repeated."
)
dtype_option = click.option(
    "--dtype", default="float16", show_default=True, help="torch's names, or bf16, e4m3, i8 ..."
)
layout_option = click.option(
    "--layout", default="nn", show_default=True, help="nn, nt (B stored [N, K], as nn.Linear weights), tn, tt."
)
scaling_option = click.option(
    "--scaling",
    type=click.Choice(SCALINGS),
    default="none",
    show_default=True,
    help="Scales of fp8 and int8: one for each operand, for each row of A and column of B, or for each block of 128.",
)
precision_option = click.option(
    "--precision",
    type=click.Choice([name for name in PRECISIONS if name != "default"]),
    help="How float32 is multiplied: tf32 is torch's allow_tf32.  [default: ieee]",
)
invariant_option = click.option(
    "--invariant", is_flag=True, help="A row's bits must not depend on M: one order of sums for every M."
)
trials_option = click.option(
    "--trials", type=click.IntRange(min=1), metavar="N", help="Configs tried per problem at most."
)
fresh_option = click.option("--fresh", is_flag=True, help="Measure again what earlier runs measured.")
fresh_since_option = click.option(
    "--fresh-since",
    metavar="RUN",
    callback=not_empty,
    help="Go on with a run of --fresh that was stopped, by its name in `tuner show runs` or the beginning of it.",
)
slug_option = click.option(
    "--device",
    metavar="NAME",
    callback=not_empty,
    help="Only this device, by slug, name or a word of it; `tuner show devices` lists them.",
)


OF_SHAPES = ("dtype", "layout", "scaling", "precision")
"""The options that say more of problems by shape."""


def check_shaped(ctx: click.Context, shapes: Sequence[str], names: Sequence[str], advice: str) -> None:
    """Refuse options for problems by shape, such as `--dtype`, where there is no `--shape`.

    Args:
        ctx: the command's context, which tells typed options from defaults.
        shapes: what `--shape` names.
        names: the options to refuse.
        advice: what the message says to do.
    """
    typed = [name for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if typed and not shapes:
        raise UsageError(f"--{typed[0]} is for problems by --shape: {advice}")


def check_fresh_since(name: str | None, db: str | None) -> None:
    """Refuse to go on with a run of a database that is not there, before a run makes it.

    Raises:
        UsageError: a run is named, and there is no such file.
    """
    if name is None:
        return
    if (path := sqlite_path(database_location(db))) is not None and not path.exists():
        raise UsageError(
            f"there is no run {name!r}: {path} is not there yet: leave --fresh-since out, or name another --db"
        )


def open_store(db: str | None) -> Store:
    """Open the database read-only."""
    from tuner.store.store import Store

    return Store.open(db, read_only=True)


def slug_in(store: Store, device: str | None) -> str | None:
    """The slug of the one device of a store that was named; None where none was.

    Raises:
        UsageError: the store has no such device, or more than one.
    """
    from tuner.lookup import device_names

    if device is None:
        return None
    slugs = [row.device.slug for row in store.devices()]
    found = device_names.matching(slugs, device)
    if len(found) == 1:
        return found[0]
    if not slugs:
        raise UsageError(store.lacks("device"))
    if found:
        raise UsageError(f"{device!r} names several devices in {store.location}: type {' or '.join(found)}")
    raise UsageError(f"no device {device!r} in {store.location}: known are {', '.join(slugs)}")


def device_option(help_text: str) -> Callable[[F], F]:
    """Return the option `--device` of a command that measures."""
    return click.option(
        "--device", default="auto", show_default=True, metavar="auto|cuda:0|interpreter", help=help_text
    )


def gpus_of(name: str, *, several: bool = True) -> list[int | None]:
    """Return the CUDA indices that `--device` names, [None] for the interpreter, without opening a CUDA context.

    Args:
        name: what was typed.
        several: whether a message may advise several GPUs.
    """
    if name == "interpreter":
        return [None]
    count, interpreting = _gpu_count()
    if name == "auto":
        if count:
            return list(range(count))
        why = "TRITON_INTERPRET is set" if interpreting else "no GPU found"
        click.echo(
            f"{why}: running on Triton's interpreter, which may take minutes; its figures say nothing about a GPU",
            err=True,
        )
        return [None]
    if not re.fullmatch(r"cuda:\d{1,9}(,cuda:\d{1,9})*", name):
        raise UsageError(
            f"unknown device {name!r:.60}: expected auto, cuda:0{', cuda:0,cuda:1' * several} or interpreter"
        )
    indices = [int(part.removeprefix("cuda:")) for part in name.split(",")]
    if max(indices) >= count:
        if interpreting:
            why = "TRITON_INTERPRET is set: unset it, or"
        elif count:
            there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
            why = f"this machine has {there}: name {'that' if count == 1 else 'these'}, or"
        else:
            why = "this machine has none:"
        raise DeviceError(f"no GPU {name}: {why} type --device interpreter")
    return list(dict.fromkeys(indices))


def gpu_of(name: str, who: str) -> int | None:
    """Return the CUDA index of the one GPU that `--device` names, the first for auto, None for the interpreter.

    Args:
        name: what was typed.
        who: what runs there, in words.
    """
    if "," in name:
        raise UsageError(f"--device {name}: {who} runs on one GPU, for instance --device cuda:0")
    return gpus_of(name, several=False)[0]


def _gpu_count() -> tuple[int, bool]:
    """Return how many GPUs there are, and whether Triton's interpreter hides them."""
    from tuner.sweep.nvml import gpu_count

    if (count := gpu_count()) is not None:
        return count, False
    import torch
    from triton import knobs

    return (0, True) if knobs.runtime.interpret else (torch.cuda.device_count(), False)


def warn_of_large(problems: Sequence[Problem], launches: int) -> None:
    """Warn on stderr of problems that take the interpreter long, and say about how long.

    Args:
        problems: all problems.
        launches: how often the command launches a kernel for each.
    """
    large = [problem for problem in problems if problem.flops > LARGE_FLOPS]
    if large:
        whole_s = launches * sum(problem.flops for problem in large) / INTERPRETED_FLOPS_S
        click.echo(
            f"too large for the interpreter to end soon: {len(large)} of {len(problems)} problems, {large[0]} for one; "
            f"expect about {span(whole_s)} on a core of its own; --suite demo is made for it",
            err=True,
        )
