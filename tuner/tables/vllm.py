"""Winners of block-scaled fp8 as the files that vLLM and SGLang read for their own kernel of it.

Both look for `N=...,K=...,device_name=...,dtype=fp8_w8a8,block_shape=[128,128].json` (SGLang: `[128, 128]`), read a
JSON object from M to launch parameters, take the entry of the nearest M and pass all of it to their kernel. Source:
get_w8a8_block_fp8_configs in vLLM's fp8_utils.py and SGLang's fp8_kernel.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuner import files
from tuner.errors import TableError
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.lookup.row import Row
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.store.records import State

if TYPE_CHECKING:
    from tuner.store.store import Store

KERNEL = "block_scaled"
BLOCK = 128
"""Length of a scale's block along N and K."""
Measured = Callable[[Device, Row], Sequence[Config]]

NEEDED = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps")
KEYS = (*NEEDED, "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
"""Launch parameters of their kernel: those that every entry has, and all."""
THEIRS = {"LOADS": "pointer", "SPLIT_K": 1, "SWAP_AB": False}
"""What their kernel does, in our parameters. SGLang's from 0.5.21 on has a choice of the last two, on Hopper only; an
earlier one fails on rows that name them."""
_BLOCK_SHAPES = {"vllm": f"[{BLOCK},{BLOCK}]", "sglang": f"[{BLOCK}, {BLOCK}]"}


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file: the launch parameters by M of one weight shape on one device, which goes by its driver's name."""

    device_name: str
    n: int
    k: int
    rows: dict[int, dict[str, int]]

    def name(self, dialect: str) -> str:
        """The file's name as "vllm" or "sglang" spells it."""
        device = re.sub(r"[\s/]+" if dialect == "vllm" else " ", "_", self.device_name)
        shape = _BLOCK_SHAPES[dialect]
        return f"N={self.n},K={self.k},device_name={device},dtype=fp8_w8a8,block_shape={shape}.json"

    def dumps(self) -> str:
        """The file's text."""
        return json.dumps({str(m): self.rows[m] for m in sorted(self.rows)}, indent=4) + "\n"

    def write(self, directory: Path, dialect: str) -> Path:
        """Write the file into a folder, complete or not at all; returns its path."""
        return files.write_text(directory / self.name(dialect), self.dumps(), error=TableError)


@dataclass(frozen=True, slots=True)
class Selection:
    """The winners that these files can express, and the others.

    Attributes:
        files: by device, N and K.
        replaced: rows that ship with another config, the fastest measured that their kernel can run.
        skipped: rows for which no such config was measured.
        others: how many rows are for problems that these files do not cover.
    """

    files: tuple[ConfigFile, ...]
    replaced: tuple[Row, ...]
    skipped: tuple[Row, ...]
    others: int


def select(tables: Iterable[Table], measured: Measured) -> Selection:
    """Choose what ships.

    Of one shape with several output dtypes the row of bfloat16 does. An invariant problem's row, which may be slower,
    does where there is no other.

    Args:
        tables: what ships otherwise.
        measured: the configs with a COMPLETE trial where and how a row was measured, the fastest first.
    """
    made: dict[tuple[str, int, int], ConfigFile] = {}
    replaced: list[Row] = []
    skipped: list[Row] = []
    others = 0
    for table in sorted(tables, key=lambda table: table.device.slug):
        rows = [row for row in table.rows if is_theirs(row.problem)]
        others += len(table.rows) - len(rows)
        for row in sorted(rows, key=_preference):
            n, k = row.problem.n, row.problem.k
            place = made.setdefault((table.device.slug, n, k), ConfigFile(table.device.name, n, k, {}))
            if row.problem.m in place.rows:
                continue
            config = expressed(row.config)
            if config is None:
                usable = (expressed(other) for other in measured(table.device, row))
                config = next((found for found in usable if found is not None), None)
                (skipped if config is None else replaced).append(row)
            if config is not None:
                place.rows[row.problem.m] = config
    kept = tuple(made[key] for key in sorted(made) if made[key].rows)
    return Selection(kept, tuple(replaced), tuple(skipped), others)


def is_theirs(problem: Problem) -> bool:
    """Whether their kernel computes this: fp8 activations times a weight stored [N, K], both scaled by blocks."""
    dtypes = (problem.a_dtype, problem.b_dtype)
    plain = (problem.op, problem.layout, problem.epilogue) == ("matmul", "nt", "none")
    return plain and problem.scaling == "block" and dtypes == ("float8_e4m3fn", "float8_e4m3fn")


def expressed(config: Config) -> dict[str, int] | None:
    """A config of ours in their terms; None where their kernel cannot do what it says.

    `launch_pdl` is left out: it changes when a kernel starts, not what it does, and theirs does not wait for its
    predecessor by itself.
    """
    rest = {name for name, _ in config.pairs} - set(KEYS) - {"launch_pdl"}
    if config.kernel != KERNEL or any(name not in THEIRS or config[name] != THEIRS[name] for name in rest):
        return None
    return {name: config.integer(name, 1) for name in KEYS if name in config or name in NEEDED}


def measured_in(store: Store) -> Measured:
    """What `select` asks for, from the trials of a database."""
    from tuner.store.store import TrialFilter

    runs = {run.uuid: run for run in store.runs()}

    def configs(device: Device, row: Row) -> list[Config]:
        asked = TrialFilter(device.slug, row.problem.shape, KERNEL, State.COMPLETE)
        fitting = [
            trial
            for trial in store.trials(asked)
            if trial.problem == row.problem
            and trial.run in runs  # a damaged one is left out
            and runs[trial.run].environment == row.made.environment
            and runs[trial.run].protocol == row.made.protocol
        ]
        # A winner by another kernel has that one's version.
        newest = max((trial.kernel_version for trial in fitting), default=0)
        version = row.kernel_version if row.config.kernel == KERNEL else newest
        timed = ((trial.outcome.median_us or 0.0, trial.config) for trial in fitting if trial.kernel_version == version)
        return [config for _, config in sorted(timed)]

    return configs


def _preference(row: Row) -> tuple[object, ...]:
    problem = row.problem  # the names of dtypes sort as they are wanted: bfloat16, float16, float32
    return problem.n, problem.k, problem.m, problem.invariant, problem.out_dtype, not problem.aligned
