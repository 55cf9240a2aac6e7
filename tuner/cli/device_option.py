"""What `--device` means to the commands that measure: which GPUs, or the interpreter."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from tuner.errors import DeviceError, UsageError
from tuner.problem import Problem

LARGE_FLOPS = 2 * 512**3
"""From here on the interpreter takes seconds to minutes a config."""


def gpus_of(name: str) -> list[int | None]:
    """CUDA indices of `--device`; [None] is the interpreter. Counts GPUs without opening a CUDA context."""
    if name == "interpreter":
        return [None]
    count, interpreting = _gpu_count()
    if name == "auto":
        if count:
            return list(range(count))
        why = "TRITON_INTERPRET is set" if interpreting else "no GPU found"
        click.echo(f"{why}: running on Triton's interpreter; its figures say nothing about a GPU", err=True)
        return [None]
    if not re.fullmatch(r"cuda:\d+(,cuda:\d+)*", name):
        raise UsageError(f"unknown device {name!r}: expected auto, cuda:0, cuda:0,cuda:1 or interpreter")
    indices = [int(part.removeprefix("cuda:")) for part in name.split(",")]
    if max(indices) >= count:
        why = "TRITON_INTERPRET is set, unset it" if interpreting else f"this machine has {count} GPUs"
        raise DeviceError(f"no GPU {name}: {why}; or type --device interpreter")
    return list(dict.fromkeys(indices))


def _gpu_count() -> tuple[int, bool]:
    """How many GPUs there are, and whether Triton's interpreter hides them."""
    from tuner.sweep.visible_gpus import gpu_count

    if (known := gpu_count()) is not None:
        return known, False
    import torch
    from triton import knobs

    return (0, True) if knobs.runtime.interpret else (torch.cuda.device_count(), False)


def warn_of_large(problems: Sequence[Problem]) -> None:
    """Say on stderr which problems the interpreter would take hours for."""
    large = [problem for problem in problems if problem.flops > LARGE_FLOPS]
    if large:
        click.echo(
            f"too large for the interpreter to end soon: {len(large)} of {len(problems)} problems, {large[0]} for one; "
            "--suite demo is made for it",
            err=True,
        )
