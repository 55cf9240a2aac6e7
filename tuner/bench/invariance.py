"""Plays the batch-invariant families of a table or database: a row's bits must be the same at every M."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tuner.hardware.device import Device, of_one_arch
from tuner.kernel.config import Config
from tuner.lookup import match_rules
from tuner.lookup.sources import Source
from tuner.problem import Problem
from tuner.problem.batches import split
from tuner.sweep.paired import PairedRunner

PLAYED_MS = (1, 8, 32, 256, 2048)
"""The Ms that are played of a family, as far as it serves them, and its last."""


@dataclass(frozen=True, slots=True)
class PlayedFamily:
    """What was played of a family.

    Attributes:
        problem: the family's problem with the last M that is served.
        configs: by M, the config that a lookup gives.
        changed: by M, how many of its rows have other bits than as rows of `problem`; empty where nothing was played.
        failure: why not; "" where it was.
    """

    problem: Problem
    configs: Mapping[int, Config]
    changed: Mapping[int, int]
    failure: str = ""

    @property
    def is_right(self) -> bool:
        """Whether every M was played and no bit differed."""
        return not self.failure and not any(self.changed.values())


def families(source: Source, device: Device) -> list[tuple[Problem, Mapping[int, Config]]]:
    """Return the invariant families of a source.

    Returns:
        Of each, by its name, the problem with the last M that a row or a range serves, and by M the config that a
        lookup in this source alone gives: of `PLAYED_MS` those that are served, and of the last.

    Raises:
        KernelError: no kernel serves one of these problems on the device.
    """
    winners = source.winners(device.slug)
    relatives = [source.winners(slug) for slug in of_one_arch(device, source.slugs())]
    served: dict[Problem, set[int]] = {}
    for problem in winners.rows:
        if problem.invariant:
            tuned = winners.families.get(split(problem)[0])
            ranges = [each for _, _, found in tuned.ranges() for each in found] if tuned else []
            ms = {problem.m, *(each.first_m for each in ranges), *(each.last_m for each in ranges)}
            served.setdefault(problem.group(), set()).update(ms)
    found: list[tuple[Problem, Mapping[int, Config]]] = []
    for family, ms in sorted(served.items(), key=str):
        played = sorted({m for m in PLAYED_MS if min(ms) <= m < max(ms)} | {max(ms)})
        decided = {m: match_rules.decide(family.with_m(m), device, [winners], relatives) for m in played}
        found.append((family.with_m(max(ms)), {m: decision.match.config for m, decision in decided.items()}))
    return found


def play(todo: Sequence[tuple[Problem, Mapping[int, Config]]], runner: PairedRunner) -> Iterator[PlayedFamily]:
    """Compute families at each M by its config, on the same rows, and compare them bit for bit.

    Their binaries are compiled first, on all cores.

    Args:
        todo: what `families` returns.
        runner: where.
    """
    runner.compile((problem.with_m(m), config) for problem, configs in todo for m, config in configs.items())
    for problem, configs in todo:
        changed = runner.compare(problem, tuple(configs.items()))
        if isinstance(changed, str):
            yield PlayedFamily(problem, configs, {}, changed)
        else:
            yield PlayedFamily(problem, configs, changed)
