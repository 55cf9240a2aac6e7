"""Parts of a list of problems, for machines that share the work without a server."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.errors import UsageError
from tuner.problem import batches
from tuner.problem.family import Ladder
from tuner.problem.problem import Problem

_FLOPS_A_SECOND = 1e13
"""What a problem's operations add to the second or so that any takes: each is computed some dozens of times."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part `number`, from 1 to `count`, of a list.

    All parts of a list together are the list, whatever the order of its rows, and they cost about the same. Ladders of
    one family are in one part, with its single problems that they tune; so are those of several batches, which learn
    from each other.
    """

    number: int
    count: int

    @staticmethod
    def parse(text: str) -> Shard:
        """Read "I/N".

        Raises:
            UsageError: it is something else, or I is not from 1 to N.
        """
        found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise UsageError(f"{text!r} is no shard: expected I/N with I from 1 to N, for instance --shard 3/8")
        return Shard(int(found[1]), int(found[2]))

    def of(self, listed: Sequence[Problem | Ladder]) -> list[Problem | Ladder]:
        """Return this part of a list, in its order."""
        ladders = [each for each in listed if isinstance(each, Ladder)]
        climbed = {rung: _family(ladder.family) for ladder in ladders for rung in ladder.rungs}
        groups: dict[object, list[Problem | Ladder]] = {}
        for each in dict.fromkeys(listed):
            key = _family(each.family) if isinstance(each, Ladder) else climbed.get(each, each)
            groups.setdefault(key, []).append(each)
        costs = sorted(((-_seconds(group), min(map(_text, group)), group) for group in groups.values()), key=_by_cost)
        parts = [(0.0, number) for number in range(1, self.count + 1)]
        mine: set[Problem | Ladder] = set()
        for cost, _, group in costs:  # the longest first, each to the part that has the least
            seconds, number = heapq.heappop(parts)
            heapq.heappush(parts, (seconds - cost, number))
            if number == self.number:
                mine.update(group)
        return [each for each in dict.fromkeys(listed) if each in mine]

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


def _by_cost(costed: tuple[float, str, list[Problem | Ladder]]) -> tuple[float, str]:
    return costed[:2]


def _family(problem: Problem) -> object:
    return batches.split(problem)[0]


def _text(each: Problem | Ladder) -> str:
    first, problem = (each.first_m, each.rungs[-1]) if isinstance(each, Ladder) else (0, each)
    return f"{first} {sorted(problem.fields().items())}"


def _seconds(group: Iterable[Problem | Ladder]) -> float:
    """About how long a GPU takes."""
    steps = {step for each in group for step in (each.rungs if isinstance(each, Ladder) else (each,))}
    return sum(1 + problem.flops / _FLOPS_A_SECOND for problem in sorted(steps, key=_text))
