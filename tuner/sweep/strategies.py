"""Every strategy, by the name that `--strategy` takes."""

from __future__ import annotations

from tuner.sweep.race import RACE
from tuner.sweep.search import EXHAUSTIVE, RANDOM, Strategy

STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in (RACE, EXHAUSTIVE, RANDOM)}
