"""Configs of one problem in paired rounds, for the studies."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tuner import Config, Problem
from tuner.sweep.paired import PairedRunner


class Played(NamedTuple):
    """What a play found.

    Attributes:
        times: microseconds of each round, of the configs that were right.
        torch: those of torch's library; None where it has no such product.
        rejected: reasons by digest, for configs that failed or were wrong.
    """

    times: dict[Config, list[float]]
    torch: list[float] | None
    rejected: dict[str, str]

    @property
    def medians(self) -> dict[Config, float]:
        return {config: statistics.median(us) for config, us in self.times.items()}


def play(runner: PairedRunner, problem: Problem, configs: Sequence[Config]) -> Played:
    """Play configs beside torch's library; ends the script where that is not possible."""
    result = runner.play(problem, configs)
    if isinstance(result, str):
        sys.exit(f"{problem}: {result}")
    times = {config: result.times[config.digest] for config in configs if result.times.get(config.digest)}
    return Played(times, result.times.get("vendor"), result.rejected)
