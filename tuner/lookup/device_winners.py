"""What one source holds for one device, as the match rules ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.lookup.neighbours import Neighbourhood
from tuner.lookup.regret import Regret, Regrets
from tuner.lookup.row import Row
from tuner.problem import Problem

Rows = Mapping[Problem, Sequence[Row]]


@dataclass(frozen=True, slots=True)
class DeviceWinners:
    """What one source holds for one device.

    Attributes:
        source: the source's name.
        rows: the candidates for each problem, the best first. A row may be made when it is asked for, so going through
            all of them takes a while.
        groups: the rows of each `Problem.group()`, whose problems differ in M alone.
        note: how much there is, or why there is nothing; `tuner.explain` shows it.
        regret: what borrowing from these rows has cost, by op and match rule.
        near: the groups, arranged for finding those near a problem.
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
        """What borrowing by a match rule has cost for an op's problems; None where nobody measured it."""
        return self.regret.get(op, {}).get(rule)

    def may_lend(self, op: str, rule: str) -> bool:
        """Whether a match rule may borrow rows: not where the formula alone was measured to do better."""
        figure = self.figure(op, rule)
        return figure is None or not figure.is_worse


def by_problem(rows: Iterable[Row]) -> tuple[Rows, Rows]:
    """Group rows by problem and by `Problem.group()`; rows of one problem keep their order."""
    exact: dict[Problem, list[Row]] = {}
    groups: dict[Problem, list[Row]] = {}
    for row in rows:
        exact.setdefault(row.problem, []).append(row)
        groups.setdefault(row.problem.group(), []).append(row)
    return exact, groups


def merged(parts: Sequence[Rows]) -> Rows:
    """Several mappings, or none, as one, in which the rows of the first come first."""
    return parts[0] if len(parts) == 1 else _Merged(parts)


class _Merged(Mapping[Problem, Sequence[Row]]):
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
