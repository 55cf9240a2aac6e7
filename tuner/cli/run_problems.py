"""Which problems `tuner run` tunes: those that its options name, and those that were missed on a device."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from tuner.adopt import calls
from tuner.cli import kernel_options
from tuner.cli.options import OF_SHAPES
from tuner.cli.output import quantity
from tuner.cli.run_options import RunOptions
from tuner.errors import ProblemError, SuiteError
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.lookup import misses
from tuner.models import captured
from tuner.problem import Problem, family, suite
from tuner.problem.family import Ladder
from tuner.tables.importing import candidates


@dataclass(frozen=True, slots=True)
class RunProblems:
    """The problems of a run.

    Attributes:
        named: those that the options name.
        missed: what processes recorded that nobody had tuned, on any device.
        has_record: whether there is such a record at all.
    """

    named: Sequence[Problem | Ladder]
    missed: misses.Record
    has_record: bool

    def on(self, device: Device) -> list[Problem | Ladder]:
        """Return what was missed on a device, which is said on stderr, and then what was named."""
        calls_of = self.missed.problems(device.slug)
        if self.has_record:
            _say_missed(self.missed, device, calls_of)
        return [*calls_of, *self.named]

    @property
    def ops(self) -> list[str]:
        """The ops of the problems that were named, or missed on any device."""
        missed = {miss.problem.op for miss in self.missed.calls}
        return sorted(missed | {(each.family if isinstance(each, Ladder) else each).op for each in self.named})


def problems_of(options: RunOptions, *, typed_dtype: str | None) -> RunProblems:
    """Return the problems of a run.

    Args:
        options: the options, checked.
        typed_dtype: `--dtype` if it was typed: a kernel's problems have none by default.

    Raises:
        UsageError, KernelError: there is no such kernel.
        ProblemError, SuiteError: a problem, a suite or a folder of calls cannot be read or tuned.
    """
    named = _of_kernel(options, typed_dtype) if options.kernels else _listed(options)
    record = sum((misses.load(path) for path in options.misses), misses.Record())
    return RunProblems(named, record, bool(options.misses))


def suggested(suites: Sequence[str]) -> dict[Problem, list[Config]]:
    """Return by problem the configs that `tuner import` wrote beside a suite such as DIR/imported.csv.

    Raises:
        TableError: such a file is damaged.
    """
    configs: dict[Problem, list[Config]] = {}
    for name in suites:
        path = Path(name).with_suffix(".candidates.json")
        for candidate in candidates.load(path) if name.endswith(".csv") and path.exists() else ():
            configs.setdefault(candidate.problem, []).append(candidate.config)
    return configs


def _of_kernel(options: RunOptions, dtype: str | None) -> Sequence[Problem | Ladder]:
    specs = [kernel_options.find(name) for name in options.kernels]
    return kernel_options.problems_of(specs[0], options.problems, options.suites, dtype=dtype)


def _listed(options: RunOptions) -> Sequence[Problem | Ladder]:
    """Return the problems and ladders of suites, of captured programs and by shape."""
    listed = [each for name in options.suites for each in suite.load_with_ladders(name)]
    listed += _captured(options)
    said: dict[str, Any] = {name: getattr(options, name) for name in OF_SHAPES}
    for shape in options.shapes:
        listed += family.parse_shape(shape, lambda m, n, k: Problem(m, n, k, **said))
    return [_invariant(each, options.captured) for each in listed] if options.invariant else listed


def _invariant(each: Problem | Ladder, folders: Sequence[Path]) -> Problem | Ladder:
    try:
        return each.as_invariant()
    except ProblemError as e:
        where = " and ".join(f"--suite {shlex.quote(str(folder / captured.SUITE))}" for folder in folders)
        raise ProblemError(f"{e}; of what was captured, the products alone: {where}" if folders else str(e)) from e


def _captured(options: RunOptions) -> Sequence[Problem | Ladder]:
    """Return the GEMMs of folders and the calls of adopted kernels."""
    folders, write = options.captured, not options.dry_run
    adopted = [folder for folder in folders if calls.paths(folder)]
    listed = [each for folder in folders if folder not in adopted for each in captured.problems(folder, write=write)]
    if not adopted:
        return listed
    replayed = kernel_options.find_captured(adopted)
    for kernel in replayed.kernels.values():
        kernel.widen = options.widen
    products: list[Problem | Ladder] = []
    for folder in adopted:
        products += captured.of_suite(folder, write=write)
    if not replayed.problems and not products:
        where = " and ".join(map(str, adopted))
        raise SuiteError(f"nothing that was captured in {where} can be tuned: capture it again")
    return [*listed, *products, *replayed.problems]


def _say_missed(record: misses.Record, device: Device, calls_of: dict[Problem | Ladder, int]) -> None:
    of_others = sorted({miss.device for miss in record.calls} - {device.slug})
    others = f"; others missed on {', '.join(of_others)}" if of_others else ""
    counts = f"{quantity(len(calls_of), 'problem')}, {quantity(sum(calls_of.values()), 'call')}"
    click.echo(f"missed on {device.slug}: {counts}{others}", err=True)
    if lacking := record.not_shipped(device.slug):
        click.echo(
            f"tuned, but without a shipped binary: {quantity(len(lacking), 'problem')}, "
            f"{quantity(sum(lacking), 'call')}; to ship them: tuner export DIR --with-kernels",
            err=True,
        )
