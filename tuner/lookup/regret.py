"""What borrowing by a rule has cost on problems held out of a table, beside the default formula; it ships with it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

FEWEST = 5
"""Problems of a rule below which its figure decides nothing."""


@dataclass(frozen=True, slots=True)
class Regret:
    """One rule's answers on problems held out, each over the fastest config known: 1 for no regret.

    Attributes:
        count: how many problems the rule answered.
        geomean, worst: of its answers.
        formula_geomean, formula_worst: of the default formula's configs, on the same problems.
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
"""By rule."""


def to_json(regrets: Regrets) -> dict[str, dict[str, float]]:
    """As a table's head holds them, rounded to four digits, sorted by rule."""
    return {
        rule: {name: round(value, 4) for name, value in asdict(regret).items()}
        for rule, regret in sorted(regrets.items())
    }


def from_json(raw: Any) -> dict[str, Regret]:
    """What `to_json` wrote; whatever cannot be is left out: a lookup goes on without that figure."""
    found: dict[str, Regret] = {}
    for rule, figures in raw.items() if isinstance(raw, dict) else ():
        values: list[Any] = [figures.get(field.name) if isinstance(figures, dict) else None for field in fields(Regret)]
        if all(type(value) in (int, float) and math.isfinite(value) and value > 0 for value in values):
            count, *ratios = values
            found[rule] = Regret(int(count), *ratios)
    return found
