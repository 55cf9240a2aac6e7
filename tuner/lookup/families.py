"""Families as lookups know them: which of a device's rows serves an M between the tuned ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from tuner.lookup.row import PROBLEM, positive, problem_of
from tuner.problem import Problem
from tuner.problem.family import ESTIMATED, Check, Family, Range

Key = tuple[object, ...]
"""`Problem.family`."""
_PROBLEM = tuple(name for name in PROBLEM if name != "m")


class TunedFamily:
    """The ranges of one family that one source holds, ascending and disjoint; there may be gaps between them."""

    __slots__ = ("_checks", "_last_ms", "ranges")

    def __init__(self, families: Sequence[Family]) -> None:
        """Take families of one key that share no M, ascending."""
        self.ranges: tuple[Range, ...] = tuple(each for family in families for each in family.ranges)
        self._checks = tuple(family.check for family in families for _ in family.ranges)
        self._last_ms = [each.last_m for each in self.ranges]

    def place(self, m: int) -> int | None:
        """The place in `ranges` of the one that holds an M; None where none does."""
        place = bisect_left(self._last_ms, m)
        return place if place < len(self.ranges) and self.ranges[place].first_m <= m else None

    def gap(self, m: int) -> tuple[int, int | None]:
        """The first and the last M of the gap between ranges that holds an M; None for a gap without end."""
        place = bisect_left(self._last_ms, m)
        above = self.ranges[place].first_m - 1 if place < len(self.ranges) else None
        return (self._last_ms[place - 1] + 1 if place else 1), above

    def check(self, place: int) -> Check | None:
        """What the family of a range was measured to lose."""
        return self._checks[place]

    def outward(self, place: int) -> Iterator[Range]:
        """The ranges whose configs may serve a range: itself, those above it and those below it, the nearest first."""
        yield from self.ranges[place:]
        yield from reversed(self.ranges[:place])


def by_key(families: Iterable[Family]) -> Mapping[Key, TunedFamily]:
    """Arrange a source's families for lookups, the preferred first where two hold one M."""
    found: dict[Key, list[Family]] = {}
    for family in families:
        found.setdefault(family.problem.family, []).append(family)
    return {key: TunedFamily(overlaid(each)) for key, each in found.items()}


def overlaid(families: Sequence[Family]) -> list[Family]:
    """Cut families of one key to what none before them holds.

    Where the upper part of a range is held already, its lower part has lost the M that it is named by: it goes to the
    range above, whose evidence there is an estimate.

    Args:
        families: the preferred first.

    Returns:
        Families that share no M, ascending. One whose middle is held is two.
    """
    taken: list[tuple[Range, int]] = []
    for number, family in enumerate(families):
        for each in family.ranges:
            taken = _with(taken, each, number)
    found: list[Family] = []
    for number, group in groupby(taken, key=lambda entry: entry[1]):
        for run in _runs([each for each, _ in group]):
            found.append(Family(families[number].problem, tuple(run), families[number].check))
    return found


def _with(taken: list[tuple[Range, int]], added: Range, number: int) -> list[tuple[Range, int]]:
    """Add what is left of a range to ranges, ascending and disjoint, each with the number of its family."""
    found: list[tuple[Range, int]] = []
    first = added.first_m
    for each, its in taken:
        if first < each.first_m <= added.last_m:
            found.append((Range(first, each.last_m, ESTIMATED), its))
            first = each.last_m + 1
            continue
        if added.last_m < each.first_m and first <= added.last_m:
            found.append((Range(first, added.last_m, added.evidence), number))
            first = added.last_m + 1
        found.append((each, its))
        if each.first_m <= first <= each.last_m:
            first = each.last_m + 1
    if first <= added.last_m:
        found.append((Range(first, added.last_m, added.evidence), number))
    return found


def _runs(ranges: Sequence[Range]) -> list[list[Range]]:
    """Split ranges where there is a gap between them."""
    runs: list[list[Range]] = []
    for each in ranges:
        if runs and runs[-1][-1].last_m + 1 == each.first_m:
            runs[-1].append(each)
        else:
            runs.append([each])
    return runs


def served(families: Iterable[Family]) -> dict[Problem, Range]:
    """Return by the problem that names it each range that families of one device serve, the preferred first."""
    found: dict[Key, list[Family]] = {}
    for family in families:
        found.setdefault(family.problem.family, []).append(family)
    overlays = (family for each in found.values() for family in overlaid(each))
    return {family.at(each.last_m): each for family in overlays for each in family.ranges}


def fields(family: Family) -> dict[str, Any]:
    """Every part of a family by name, as a table's file holds it, in its order; the file names the op once."""
    problem, check = family.problem.fields(), family.check
    figures = check and {"played": check.played, "geomean": round(check.geomean, 4), "worst": round(check.worst, 4)}
    return {name: problem[name] for name in _PROBLEM} | {"ranges": list(map(list, family.ranges)), "check": figures}


def from_fields(raw: Mapping[str, Any], op: str) -> Family:
    """The family that `fields` described.

    Raises:
        one of `tuner.lookup.row.BAD_VALUE`: a part is missing or cannot be, or ranges overlap or leave a gap.
    """
    parts = {name: raw[name] for name in raw if name not in ("ranges", "check")}
    problem = problem_of({**parts, "op": op, "m": 1})
    ranges = tuple(Range(first, last, evidence) for first, last, evidence in raw["ranges"])
    check = raw["check"]
    return Family(problem, ranges, check and check_of(check["played"], check["geomean"], check["worst"]))


def check_of(played: Any, geomean: Any, worst: Any) -> Check:
    """Make a check of figures that may be anything.

    Raises:
        ValueError: they are no count and two positive numbers.
    """
    if isinstance(played, bool) or not isinstance(played, int) or played < 1:
        raise ValueError(f"played must be a whole number of 1 or more, got {played!r}")
    ratios = positive(geomean, "geomean"), positive(worst, "worst")
    assert None not in ratios
    return Check(played, *ratios)  # type: ignore[arg-type]  # neither is optional


def shippable(families: Iterable[Family], rows: Container[Problem]) -> Iterator[Family]:
    """Yield what is left of families of any key whose rows are these, the preferred first where two hold one M.

    A range without a row goes to the next above that has one; it was not measured there.
    """
    found: dict[Key, list[Family]] = {}
    for family in families:
        ranges: list[Range] = []
        first_m = family.first_m
        for each in family.ranges:
            if family.at(each.last_m) in rows:
                ranges.append(Range(first_m, each.last_m, each.evidence if first_m == each.first_m else ESTIMATED))
                first_m = each.last_m + 1
        if ranges:
            found.setdefault(family.problem.family, []).append(replace(family, ranges=tuple(ranges)))
    for each_key in found.values():
        yield from overlaid(each_key)
