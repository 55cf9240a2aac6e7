"""Strategies: in which order, and how many, of a problem's configs are tried."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tuner.config import Config

Strategy = Callable[[Sequence[Config], int | None, int], list[Config]]
"""From every config of a problem, a budget of trials (None: no limit) and a seed, to the configs to try, in order."""


def exhaustive(configs: Sequence[Config], trials: int | None, seed: int) -> list[Config]:  # noqa: ARG001
    """Every config, in canonical order; a budget takes the first ones."""
    return list(configs[:trials])


def sample(configs: Sequence[Config], trials: int | None, seed: int) -> list[Config]:
    """Configs drawn without replacement, the same ones for the same seed."""
    count = len(configs) if trials is None else min(trials, len(configs))
    return random.Random(seed).sample(list(configs), count)


STRATEGIES: dict[str, Strategy] = {"exhaustive": exhaustive, "random": sample}
"""By the name `--strategy` takes."""
