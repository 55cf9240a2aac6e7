"""A shelf: what one source holds for one device, as the rules of a lookup ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.lookup.neighbours import Neighbourhood
from tuner.lookup.regret import Regret, Regrets
from tuner.lookup.row import Row
from tuner.problem import Problem

Rows = Mapping[Problem, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Shelf:
    """What one source holds for one device.

    Attributes:
        source: the source's name.
        rows: candidates by problem, the best first. Rows may be made when they are asked for: going through all of
            them costs the making of all.
        groups: rows by `Problem.group()`: neighbours in M.
        note: what `tuner.explain` says of it: how much it holds, or why nothing.
        regret: by op and rule, what borrowing from these rows has cost.
        near: the groups by where their problems lie.
    """

    source: str
    rows: Rows
    groups: Rows
    note: str
    regret: Mapping[str, Regrets] = field(default_factory=dict)
    near: Neighbourhood = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "near", Neighbourhood(self.groups))

    def figure(self, op: str, rule: str) -> Regret | None:
        """What borrowing by a rule has cost for an op's problems, where it was measured."""
        return self.regret.get(op, {}).get(rule)

    def lends(self, op: str, rule: str) -> bool:
        """Whether rows may be borrowed by a rule: not where the formula alone was measured to do better."""
        figure = self.figure(op, rule)
        return figure is None or not figure.is_worse


def by_problem(rows: Iterable[Row]) -> tuple[Rows, Rows]:
    """Rows by problem and by group, in their order."""
    exact: dict[Problem, list[Row]] = {}
    groups: dict[Problem, list[Row]] = {}
    for row in rows:
        exact.setdefault(row.problem, []).append(row)
        groups.setdefault(row.problem.group(), []).append(row)
    return exact, groups


def joined(parts: Sequence[Rows]) -> Rows:
    """Several as one, or none; of one problem the first's come first."""
    return parts[0] if len(parts) == 1 else _Joined(parts)


class _Joined(Mapping[Problem, Sequence[Row]]):
    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts

    def __getitem__(self, problem: Problem) -> Sequence[Row]:
        found = [row for part in self._parts for row in part.get(problem, ())]
        if not found:
            raise KeyError(problem)
        return found

    def __iter__(self) -> Iterator[Problem]:
        return iter(dict.fromkeys(problem for part in self._parts for problem in part))

    def __len__(self) -> int:
        return sum(1 for _ in self)
