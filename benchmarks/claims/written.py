"""Tables and suites that benchmarks write."""

from __future__ import annotations

import csv
import platform
import sys
from collections.abc import Iterable
from pathlib import Path

from tuner.hardware.device import Device, Environment
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup.row import Provenance, Row
from tuner.lookup.table import Table
from tuner.problem import Problem, suite
from tuner.problem.batches import batch_of


def table_of(folder: Path, device: Device, problems: Iterable[Problem], config: Config) -> Path:
    """A table that says of one config that it won every problem."""
    import torch
    import triton

    versions = Environment(triton.__version__, torch.__version__, "benchmark", "", platform.python_version())
    version, made = registry.find("matmul", config.kernel).version, Provenance(versions, 1, "benchmark")
    rows = tuple(Row(each, config, version, made, 10.0, 1.1, 1.0, 1) for each in problems)
    folder.mkdir(exist_ok=True)
    return Table("matmul", device, "2026-01-01T00:00:00Z", rows).write(folder)


def write_suite(path: Path, problems: Iterable[Problem]) -> None:
    """Write problems that shape, dtype, layout, scaling, op, batch and epilogue describe as a suite."""
    listed = list(dict.fromkeys(problems))
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(("m", "n", "k", "dtype", "layout", "scaling", "op", "batch", "epilogue"))
        kinds = ((one.a_dtype, one.layout, one.scaling, one.op, batch_of(one), one.epilogue) for one in listed)
        table.writerows((*problem.shape, *kind) for problem, kind in zip(listed, kinds, strict=True))
    if suite.load(str(path)) != listed:
        sys.exit(f"{path}: some of these problems are described by more than these columns")
