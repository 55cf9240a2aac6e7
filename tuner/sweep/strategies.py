"""Every strategy, by the name that `--strategy` takes."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tuner.kernel.config import Config
from tuner.sweep.race import RACE
from tuner.sweep.search import FixedList, Search, Strategy, spent
from tuner.sweep.search_task import SearchTask


def _exhaustive(task: SearchTask) -> Search:
    # With a limit on trials, the first configs in canonical order are tried.
    return _listed(task, task.configs)


def _random(task: SearchTask) -> Search:
    count = min(task.budget, len(task.configs))
    return _listed(task, random.Random(task.seed).sample(list(task.configs), count))


def _listed(task: SearchTask, configs: Sequence[Config]) -> Search:
    chosen = list(dict.fromkeys([task.default, *configs]))[: task.budget]
    complete = len(chosen) >= len(task.configs)
    return FixedList(chosen, "every config was tried" if complete else spent(len(chosen)))


EXHAUSTIVE = Strategy("exhaustive", _exhaustive)
RANDOM = Strategy("random", _random)
STRATEGIES: dict[str, Strategy] = {strategy.name: strategy for strategy in (RACE, EXHAUSTIVE, RANDOM)}
