"""`tuner inspect`: shows what the compiler makes of a kernel's config."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import click

from tuner import files
from tuner.cli import kernel_options
from tuner.cli.options import Place, json_option, not_empty
from tuner.cli.output import print_json, quantity
from tuner.errors import TunerError, UsageError
from tuner.hardware.device import Device
from tuner.inspection.binary import STAGES, Binary, compile_binary
from tuner.inspection.request import Chosen, choose, find_kernel, find_target, read_config, target_of
from tuner.problem import Problem

_ALL = tuple(dict.fromkeys(stage for stages in STAGES.values() for stage in stages))


@click.command("inspect")
@click.argument("kernel", metavar="KERNEL")
@click.option(
    "--problem",
    "problem_text",
    required=True,
    metavar="M=..,N=..,K=..[,dtype=..,layout=..]",
    help="What is computed, by the names of a suite's columns.",
)
@click.option(
    "--config",
    metavar="JSON|NAME=VALUE,..",
    help="JSON of all parameters, or pairs that change the default. [default: what a lookup returns]",
)
@click.option("--diff", nargs=2, metavar="CONFIG CONFIG", help="Show two configs, each as for --config, side by side.")
@click.option(
    "--target",
    callback=not_empty,
    metavar="cuda:90|hip:gfx942",
    help="Compile for this GPU, which this machine need not have. [default: this machine's, else cuda:90]",
)
@click.option("--stage", type=click.Choice(_ALL), help="Print this form; with --diff, a diff of it.")
@click.option("--out", type=Place(file_okay=False, path_type=Path), help="Save every form (or --stage) there.")
@json_option
def inspect(
    kernel: str,
    *,
    problem_text: str,
    config: str | None,
    diff: tuple[str, str] | None,
    target: str | None,
    stage: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Compile a kernel's config; show registers, memory, occupancy.

    --stage prints an intermediate form instead. KERNEL is a kernel's name, or op/name. No GPU is needed. Of several
    launches, the last one is shown.
    """
    if diff and config is not None:
        raise UsageError("--config and --diff exclude each other: --diff names both configs")
    spec = kernel_options.find(kernel) if ":" in kernel else find_kernel(kernel)
    device = find_target(target)
    if stage is not None and stage not in STAGES[device.vendor]:
        raise UsageError(f"no stage {stage} for {target_of(device)}: expected {', '.join(STAGES[device.vendor])}")
    problem = kernel_options.problem_of(spec, problem_text, dtype=None)
    if diff:
        chosen = [read_config(text, spec, problem, device) for text in diff]
    else:
        chosen = [choose(spec, problem, device) if config is None else read_config(config, spec, problem, device)]
    if target is None:
        click.echo(f"compiling for {target_of(device)} (--target for another)", err=True)
    for one in chosen:
        if one.remark:
            click.echo(f"note: {one.config}: {one.remark}", err=True)
    compiled = {
        config: compile_binary(problem, config, device) for config in dict.fromkeys(one.config for one in chosen)
    }
    binaries = [compiled[one.config] for one in chosen]
    saved = [_save(binary, out, stage) if out else [] for binary in binaries]
    changes = _difference(binaries, stage) if diff and stage else ""
    if as_json:
        documents = [
            {**binary.facts(), "rule": one.rule, "remark": one.remark, "stages": list(binary.stages), "files": paths}
            | {"text": _text(binary, stage) if stage else None}
            for one, binary, paths in zip(chosen, binaries, saved, strict=True)
        ]
        head = {"problem": problem, "target": target_of(device), "stage": stage}
        print_json({**head, "binaries": documents, "diff": changes if diff else None})
        return
    for path in (path for paths in saved for path in paths):
        click.echo(f"saved {path}", err=True)
    # A single form goes to stdout, so that it can be piped; figures then go to stderr.
    alone = stage is not None and not diff and out is None
    click.echo(_table(problem, device, chosen, binaries), err=alone)
    if alone and stage:
        click.echo(_text(binaries[0], stage), nl=False)
    if diff and stage:
        click.echo(f"\n{changes}" if changes else f"\n{stage}: no difference", nl=not changes)


def _text(binary: Binary, stage: str) -> str:
    if stage not in binary.stages:
        raise TunerError(f"no {stage} of {binary.config}: nothing here disassembles it; try --stage ptx")
    return binary.stages[stage]


def _save(binary: Binary, out: Path, stage: str | None) -> list[str]:
    """Write a file for each form, and the figures as JSON; return the paths."""
    stem = f"{binary.config.kernel}-{binary.arch}-{binary.config.digest}"
    texts = {stage: _text(binary, stage)} if stage else dict(binary.stages)
    texts["json"] = json.dumps(binary.facts(), indent=2, sort_keys=True) + "\n"
    files.make_folder(out)
    for suffix, text in texts.items():
        files.write_text(out / f"{stem}.{suffix}", text)
    return [str(out / f"{stem}.{suffix}") for suffix in texts]


def _difference(binaries: list[Binary], stage: str) -> str:
    before, after = (_text(binary, stage).splitlines(keepends=True) for binary in binaries)
    names = [f"{binary.config.label}.{stage}" for binary in binaries]
    return "".join(difflib.unified_diff(before, after, names[0], names[1]))


def _table(problem: Problem, device: Device, chosen: list[Chosen], binaries: list[Binary]) -> str:
    """Return the figures as a table with a column for each config."""
    columns = [_figures(one, binary) for one, binary in zip(chosen, binaries, strict=True)]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    seen = binaries[0].occupancy
    source = [f"occupancy: {seen.source}"] if seen else []
    return "\n".join([f"{problem} for {target_of(device)}", *shown, *source])


def _figures(one: Chosen, binary: Binary) -> dict[str, str]:
    config = binary.config
    figures = {"kernel": config.kernel, "rule": one.rule}
    figures |= {name: str(value) for name, value in config.pairs if name not in ("num_warps", "num_stages")}
    for name in ("num_warps", "num_stages", "num_ctas", "registers", "spill_bytes", "shared_bytes"):
        value = getattr(binary, name)
        figures[name] = "unknown" if value is None else str(value)
    seen = binary.occupancy
    if seen is None:
        return {**figures, "occupancy": "unknown"}
    blocks = quantity(seen.blocks, "block")
    figures["occupancy"] = f"{blocks}, {seen.warps} of {seen.most_warps} warps, by {seen.limits}"
    figures["blocks by"] = ", ".join(f"{name} {'-' if count is None else count}" for name, count in seen.by.items())
    return figures | {"stages": " ".join(binary.stages)}
