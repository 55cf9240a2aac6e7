"""A table as a Python module that answers by itself, for packages that may not depend on triton-tuner.

The module is `dispatcher_template` with a table's configs as literals. What a lookup decides is decided here: rows
whose config cannot be used are left out, and their ranges are served by the configs that a lookup would take.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner import files
from tuner.errors import TableError
from tuner.kernel.config import Config
from tuner.lookup import families, match_rules
from tuner.lookup.device_winners import DeviceWinners, by_problem
from tuner.lookup.families import TunedBatches
from tuner.lookup.table import Table
from tuner.problem import Problem
from tuner.problem import dtype as dtypes
from tuner.problem.batches import split, with_batch
from tuner.problem.family import ms_within
from tuner.problem.gemm_fields import ACTIVATIONS, COARSE_SUMS, LAYOUTS, PRECISIONS, SCALINGS
from tuner.tables.export import usable
from tuner.version import __version__

_TEMPLATE = Path(__file__).with_name("dispatcher_template.py")
_VALUES: dict[str, tuple[Any, ...]] = {
    "layout": LAYOUTS,
    "epilogue": (*ACTIVATIONS, "bias", *(f"bias+{name}" for name in ACTIVATIONS)),
    "precision": (None, *PRECISIONS),
    "scaling": SCALINGS,
    "aligned": (None, False, True),
    "fast_accum": (False, True),
    "b_padded": (False, True),
}
"""What the arguments of a module may be; `()` is anything."""
_OF_OP: dict[str, dict[str, tuple[Any, ...]]] = {
    "matmul": {"invariant": (False, True)},
    "grouped_mm": {"listed": (False, True), "invariant": (False,)},
    "rms_norm": {"eps": (), "invariant": (False,)},
}
_SIZES = {
    "bmm": ("m", "n", "k", "batch"),
    "grouped_mm": ("m", "n", "k", "groups"),
    "fused_experts": ("m", "n", "k", "groups", "top_k"),
}
_DATA = re.compile(r"^OP = .*?\n\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """A module's text.

    Attributes:
        file_name: `<op>_<device slug>.py`, which can be imported.
        text: the module.
        rows, ranges: how many it has.
        refused: rows that were left out, and why.
    """

    file_name: str
    text: str
    rows: int
    ranges: int
    refused: tuple[str, ...]

    def write(self, directory: Path) -> Path:
        """Write the module into a folder, complete or not at all; returns its path."""
        return files.write_text(directory / self.file_name, self.text, error=TableError)


def is_keyed(table: Table) -> bool:
    """Whether a table's problems have keys of their own in place of M, N and K."""
    return any(row.problem.is_keyed for row in table.rows)


def dispatcher(table: Table) -> Dispatcher:
    """Make the module of a table.

    Raises:
        TableError: the op's problems have keys of their own in place of M, N and K.
    """
    if is_keyed(table):
        raise TableError(f"{table.op} has keys of its own: --format python is for ops with M, N and K; leave it out")
    kept, refused = usable(table.rows, table.device)
    configs: dict[Config, int] = {}

    def place(config: Config) -> int:
        return configs.setdefault(config, len(configs))

    rows: dict[Hashable, dict[tuple[int, int], int]] = {}
    for row in kept:
        rows.setdefault(_key(row.problem), {})[row.problem.m, split(row.problem)[1]] = place(row.config)
    winners = DeviceWinners("", by_problem(kept), "", families.ByKey(table.families))
    ranges = dict(_ranges(tuned, winners, table, place) for tuned in winners.families.values())
    sizes = _SIZES.get(table.op, ("m", "n", "k"))
    values = {**_VALUES, **_OF_OP.get(table.op, {"invariant": (False,)})}
    others = sorted({name for row in kept for name, _ in row.problem.extras} - {*sizes, *values})
    data = (
        f"OP = {table.op!r}\n"
        f"DEVICE = {table.device.slug!r}\n"
        f"CONFIGS: tuple[dict[str, Any], ...] = {_lines(map(_parameters, configs), '()')}\n"
        f"ROWS: dict[Any, dict[tuple[int, int], int]] = {_lines((f'{key}: {at}' for key, at in rows.items()), '{}')}\n"
        "RANGES: dict[Any, tuple[tuple[int, int, tuple[tuple[int, int, int], ...]], ...]] = "
        f"{_lines((f'{key}: {spans}' for key, spans in ranges.items()), '{}')}\n"
        f"BYTES: dict[str, int] = {dtypes.ITEMSIZE}\n"
        f"SHORT: dict[str, str] = {dtypes.SHORT}\n"
        f"COARSE_SUMS: tuple[str, ...] = {COARSE_SUMS}\n"
        f"SIZES: tuple[str, ...] = {sizes}\n"
        f"VALUES: dict[str, tuple[Any, ...]] = {values | dict.fromkeys(others, ())}\n\n"
    )
    name = re.sub(r"\W+", "_", f"{table.op}_{table.device.slug}", flags=re.ASCII)
    found = (span for spans in ranges.values() for span in spans)
    return Dispatcher(
        f"{name}.py",
        _module(table, data),
        len(kept),
        sum(len(served) for _, _, served in found),
        tuple(f"{row.problem}: {reason}" for row, reason in refused.items()),
    )


def _ranges(
    tuned: TunedBatches, winners: DeviceWinners, table: Table, place: Callable[[Config], int]
) -> tuple[Hashable, tuple[tuple[int, int, tuple[tuple[int, int, int], ...]], ...]]:
    """The key of a family; and by the first and last batch, the first and last M of each range with its config."""
    spans = []
    key: Hashable = None
    for first, last, held in tuned.ranges():
        family = tuned.at(last)
        assert family is not None
        served = []
        for at, each in enumerate(held):
            first_m, *_ = ms_within(family.family(at).problem, each.first_m, each.last_m) or (each.first_m,)
            problem = with_batch(family.family(at).at(first_m), last)
            key = _key(problem)
            decision = match_rules.of_family(problem, table.device, [winners])
            if decision is not None:
                served.append((each.first_m, each.last_m, place(decision.match.config)))
        spans.append((first, last, tuple(served)))
    return key, tuple(spans)


def _key(problem: Problem) -> tuple[Any, ...]:
    """All that tells problems apart but M and the batch, as the module's own `_key` makes it."""
    parts = problem.n, problem.k, problem.a_dtype, problem.b_dtype, problem.out_dtype, problem.layout, problem.aligned
    extras = tuple(extra for extra in problem.extras if extra[0] != "batch")
    return *parts, problem.epilogue, problem.precision, extras


def _parameters(config: Config) -> str:
    return repr({"kernel": config.kernel, **dict(config.pairs)})


def _lines(entries: Iterator[str], brackets: str) -> str:
    body = "".join(f"    {entry},\n" for entry in entries)
    return f"{brackets[0]}\n{body}{brackets[1]}" if body else brackets


def _module(table: Table, data: str) -> str:
    op, device, date = map(_in_docstring, (table.op, table.device.name, table.date))
    head = (
        f'"""Configs of {op}, tuned for {device}. Needs nothing but Python 3.10.\n\n'
        f"Written by triton-tuner {__version__} (`tuner export --format python`) from the table of {date}\n"
        f'{table.digest}.\n"""\n'
    )
    _, rest = _TEMPLATE.read_text(encoding="utf-8").split('"""\n', 1)
    before, after = _DATA.split(rest)
    return head + before + data + after


def _in_docstring(words: str) -> str:
    """What a database says, which is anybody's, as text that ends no docstring and begins no escape."""
    return ascii(words)[1:-1].replace("\\", "/").replace('"', "'")
