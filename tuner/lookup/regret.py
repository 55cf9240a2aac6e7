"""What borrowing by a match rule has cost on problems held out of a table, beside the default formula.

The figures are a part of the table and ship with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

FEWEST = 5
"""A figure over fewer problems decides nothing."""


@dataclass(frozen=True, slots=True)
class Regret:
    """How one match rule did on problems held out: its time over that of the fastest config known, 1 for no regret.

    Attributes:
        count: how many problems the rule answered.
        geomean, worst: the geometric mean and the worst of its answers.
        formula_geomean, formula_worst: the same figures for the default formula's configs on these problems.
    """

    count: int
    geomean: float
    worst: float
    formula_geomean: float
    formula_worst: float

    @property
    def is_worse(self) -> bool:
        """Whether the formula alone would have done better."""
        return self.count >= FEWEST and self.geomean > self.formula_geomean


Regrets = Mapping[str, Regret]
"""A regret for each match rule that has one."""


def to_json(regrets: Regrets) -> dict[str, dict[str, float]]:
    """Regrets as a table's head holds them: rounded to four digits, sorted by rule."""
    return {
        rule: {name: round(value, 4) for name, value in asdict(regret).items()}
        for rule, regret in sorted(regrets.items())
    }


def from_json(raw: Any) -> dict[str, Regret]:
    """Read what `to_json` wrote. A figure that cannot be read is left out, and lookups go on without it."""
    found: dict[str, Regret] = {}
    for rule, figures in raw.items() if isinstance(raw, dict) else ():
        values: list[Any] = [figures.get(field.name) if isinstance(figures, dict) else None for field in fields(Regret)]
        if all(type(value) in (int, float) and math.isfinite(value) and value > 0 for value in values):
            count, *ratios = values
            found[rule] = Regret(int(count), *ratios)
    return found
