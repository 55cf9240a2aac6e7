"""Families as lookups know them: which of a device's rows serves an M between the tuned ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
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
    return {key: TunedFamily(overlaid(each)) for key, each in _grouped(families).items()}


def _grouped(families: Iterable[Family]) -> Mapping[Key, list[Family]]:
    found: dict[Key, list[Family]] = {}
    for family in families:
        found.setdefault(family.problem.family, []).append(family)
    return found


def overlaid(families: Sequence[Family]) -> list[Family]:
    """Cut families of one key to what none before them holds.

    What is left of a range without the M of its row goes to the range beside it, above rather than below, whose
    evidence there is an estimate.

    Args:
        families: the preferred first.

    Returns:
        Families that share no M, ascending. One whose middle is held is two.
    """
    taken: list[tuple[Range, int]] = []
    for number, family in enumerate(families):
        for each in family.ranges:
            left = [(Range(*span, each.row_m, each.evidence), number) for span in _left(each, taken)]
            taken = _owned(sorted([*taken, *left]))
    found: list[Family] = []
    for number, group in groupby(taken, key=lambda entry: entry[1]):
        for run in _runs([each for each, _ in group]):
            found.append(Family(families[number].problem, tuple(run), families[number].check))
    return found


def _left(wanted: Range, taken: Iterable[tuple[Range, int]]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last M of each part of a range that no other, ascending, holds."""
    first_m = wanted.first_m
    for held, _ in taken:
        if first_m < held.first_m:
            yield first_m, min(wanted.last_m, held.first_m - 1)
        first_m = max(first_m, held.last_m + 1)
        if first_m > wanted.last_m:
            return
    yield first_m, wanted.last_m


def _owned(ranges: Sequence[tuple[Range, int]]) -> list[tuple[Range, int]]:
    """Give ranges that lack the M of their row to those that they adjoin, each with the number of its family."""
    found: list[tuple[Range, int]] = []
    lost: Range | None = None
    for (held, number), above in zip_longest(ranges, (above for above, _ in ranges[1:])):
        each = held if lost is None else held._replace(first_m=lost.first_m, evidence=ESTIMATED)
        lost = None
        if each.first_m <= each.row_m <= each.last_m:
            found.append((each, number))
        elif above is not None and above.first_m == each.last_m + 1:
            lost = each
        else:
            below, its = found[-1]
            found[-1] = below._replace(last_m=each.last_m, evidence=ESTIMATED), its
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
    """Return by the problem of its row each range that families of one device serve, the preferred first."""
    overlays = (family for each in _grouped(families).values() for family in overlaid(each))
    return {family.at(each.row_m): each for family in overlays for each in family.ranges}


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
    ranges = tuple(Range(first, last, row_m, evidence) for first, last, row_m, evidence in raw["ranges"])
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

    A range without a row goes to the next above that has one, or else below; it was not measured there.
    """
    found: list[Family] = []
    for family in families:
        ranges: list[Range] = []
        first_m = family.first_m
        for each in family.ranges:
            if family.at(each.row_m) in rows:
                ranges.append(each if first_m == each.first_m else each._replace(first_m=first_m, evidence=ESTIMATED))
                first_m = each.last_m + 1
        if ranges and first_m <= family.last_m:
            ranges[-1] = ranges[-1]._replace(last_m=family.last_m, evidence=ESTIMATED)
        if ranges:
            found.append(replace(family, ranges=tuple(ranges)))
    for each_key in _grouped(found).values():
        yield from overlaid(each_key)
