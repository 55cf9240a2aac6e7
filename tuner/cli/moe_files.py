"""The files that `tuner moe` writes: rows beside those that are there, with the evidence for each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.cli import output
from tuner.files import make_folder, write_text
from tuner.kernel.config import Config

if TYPE_CHECKING:
    from tuner.moe.tuning import Row, Task
    from tuner.sweep.paired import PairedRunner


def write(out: Path, task: Task, rows: Sequence[Row], runner: PairedRunner, *, in_part: bool) -> list[Path]:
    """Write the package's file or files, each with its evidence beside it; return their paths.

    Where the rows are a part of what was asked for, they take nothing away: the files stay as they are where they have
    rows that cannot be kept.
    """
    from tuner.errors import TableError
    from tuner.moe import config_file

    shipped = [row for row in rows if row.configs]
    evidence = {
        "device": runner.device.slug,
        "environment": runner.environment,
        "package": f"{task.package.name} {task.package.version}",
        "kernel_source": task.package.source_hash,
        "layer": task.layer,
        "routing": task.routing,
        "rows": [{**output.by_name(row), "configs": [dict(each.pairs) for each in row.configs]} for row in shipped],
    }
    evidence = json.loads(json.dumps(evidence, default=output.plain))
    texts: dict[Path, str] = {}
    paths = []
    for at, problem in enumerate(task.problems(1)):
        name = config_file.path_of(task.package, task.layer, runner.device.name, down=problem["gemm"] == "down")
        path = out / name
        configs = {row.m: row.configs[at] for row in shipped}
        kept, proofs, dropped = rows_kept(path, evidence, configs)
        if dropped and in_part:
            click.echo(
                f"{path} stays as it was: it has rows for M {listed(dropped)}, and no evidence beside it says that "
                "they are of the same layer, routing and versions",
                err=True,
            )
            return []
        say_kept(path, kept, dropped)
        rows_of_all = sorted([*evidence["rows"], *proofs], key=lambda row: int(row["m"]))
        texts[evidence_of(path)] = json.dumps({**evidence, "rows": rows_of_all}, indent=2)
        texts[path] = config_file.dumps(task.package.name, task.layer, configs, kept)
        paths.append(path)
    for path, text in texts.items():
        make_folder(path.parent)
        write_text(path, text, error=TableError)
    return paths


def rows_kept(
    path: Path, evidence: Mapping[str, Any], configs: Mapping[int, Config]
) -> tuple[dict[str, Any], list[Any], list[str]]:
    """Return the rows that the old file has for other Ms, with their evidence, if measured alike; and the other Ms."""
    from tuner.files import parse_json
    from tuner.moe import config_file

    others = {m: row for m, row in config_file.rows_of(path).items() if int(m) not in configs}
    try:
        before = parse_json(evidence_of(path).read_bytes())
        proofs = {str(row["m"]): row for row in before["rows"]}
        is_same = {**before, "rows": evidence["rows"]} == evidence
    except (OSError, ValueError, TypeError, KeyError):
        proofs, is_same = {}, False
    kept = {m: row for m, row in others.items() if is_same and m in proofs}
    return kept, [proofs[m] for m in kept], [m for m in others if m not in kept]


def say_kept(path: Path, kept: Iterable[str], dropped: Sequence[str]) -> None:
    """Say which rows of the old file stay in the new one, and which do not."""
    from tuner.moe import config_file

    if path.exists() and not config_file.rows_of(path):
        click.echo(f"{path}: replaced: no row of what was there can be read", err=True)
    if kept:
        click.echo(f"{path}: kept the rows that it had for M {listed(kept)}", err=True)
    if dropped:
        click.echo(
            f"{path}: dropped the rows that it had for M {listed(dropped)}: no evidence beside it says that they are "
            "of the same layer, routing and versions",
            err=True,
        )


def evidence_of(path: Path) -> Path:
    """The file beside a file of configs that says how each row was measured."""
    return path.with_suffix(".evidence.json")


def listed(ms: Iterable[int | str]) -> str:
    """Ms for a message, the smallest first."""
    return ", ".join(map(str, sorted(map(int, ms))))
