"""What one source holds for one device, as the match rules ask for it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tuner.lookup.families import TunedBatches
from tuner.lookup.row import Row
from tuner.problem import Problem
from tuner.problem.batches import Key

Rows = Mapping[Problem, Sequence[Row]]


class DeviceWinners(NamedTuple):
    """What one source holds for one device.

    Attributes:
        source: the source's name.
        rows: the candidates for each problem, the best first. A row may be made when it is asked for, so going through
            all of them takes a while.
        note: how much there is, or why there is nothing; `tuner.explain` shows it.
        families: by what problems have in common that differ in M and batch, the ranges that rows serve.
        device: the device's slug; "" where nothing is looked up.
    """

    source: str
    rows: Rows
    note: str
    families: Mapping[Key, TunedBatches] = MappingProxyType({})
    device: str = ""


def by_problem(rows: Iterable[Row]) -> Rows:
    """Group rows by problem; rows of one problem keep their order."""
    found: dict[Problem, list[Row]] = {}
    for row in rows:
        found.setdefault(row.problem, []).append(row)
    return found


def merged(parts: Sequence[Rows]) -> Rows:
    """Several mappings, or none, as one; of rows for one problem, which two ops' tables do not have, the first's."""
    return parts[0] if len(parts) == 1 else ChainMap(*parts)  # type: ignore[arg-type]  # nobody writes into it
