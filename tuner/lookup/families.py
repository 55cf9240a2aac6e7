"""Families as lookups know them: which of a device's rows serves an M, or a batch, between the tuned ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

from tuner.lookup.row import PROBLEM, positive, problem_of
from tuner.problem import Problem
from tuner.problem.batches import Batches, Key, batch_of, split
from tuner.problem.family import ESTIMATED, Check, Family, Range, runs

_PROBLEM = tuple(name for name in PROBLEM if name != "m")


class TunedFamily:
    """The ranges of one family that one source holds, ascending and disjoint; there may be gaps between them."""

    __slots__ = ("_families", "_last_ms", "ranges")

    def __init__(self, families: Sequence[Family]) -> None:
        """Take families of one key and the same batches that share no M, ascending."""
        self.ranges: tuple[Range, ...] = tuple(each for family in families for each in family.ranges)
        self._families = tuple(family for family in families for _ in family.ranges)
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

    def family(self, place: int) -> Family:
        """The family of a range."""
        return self._families[place]

    def row(self, place: int) -> Problem:
        """The problem whose winner serves a range."""
        return self._families[place].at(self.ranges[place].row_m)

    def outward(self, place: int) -> Iterator[int]:
        """The places of ranges whose configs may serve a range: itself, those above and those below, nearest first."""
        yield from range(place, len(self.ranges))
        yield from reversed(range(place))


class TunedBatches:
    """The families of one key that one source holds, by ascending batches; an op without a batch has only batch 0."""

    __slots__ = ("_last_batches", "_spans")

    def __init__(self, families: Sequence[Family]) -> None:
        """Take families of one key, the preferred first where two hold one M of one batch."""
        spans = _by_batches(families)
        self._last_batches = [last for _, last in spans]
        self._spans = [(first, TunedFamily(overlaid(each))) for (first, _), each in spans.items()]

    def by_row(self) -> Iterator[tuple[Problem, Range]]:
        """Yield each range with the problem whose winner serves it."""
        for _, tuned in self._spans:
            yield from ((tuned.row(place), each) for place, each in enumerate(tuned.ranges))

    def last_of_each(self) -> set[int]:
        """The last batches of all that is served alike, and of the gaps between."""
        return {*self._last_batches, *(first - 1 for first, _ in self._spans)}

    def ranges(self) -> list[tuple[int, int, tuple[Range, ...]]]:
        """The first and the last batch of what is served alike, with the ranges of M."""
        spans = zip(self._spans, self._last_batches, strict=True)
        return [(first, last, tuned.ranges) for (first, tuned), last in spans]

    def at(self, batch: int) -> TunedFamily | None:
        """What serves a batch; None where nothing does."""
        place = bisect_left(self._last_batches, batch)
        return self._spans[place][1] if place < len(self._spans) and self._spans[place][0] <= batch else None

    def first_untuned(self, batch: int) -> int:
        """The first of the batches around one that nothing serves."""
        place = bisect_left(self._last_batches, batch)
        return self._last_batches[place - 1] + 1 if place else 1


class ByKey(Mapping[Key, TunedBatches]):
    """A source's families for lookups; those of a key are arranged when it is asked for, as a process asks for few."""

    __slots__ = ("_families", "_made")

    def __init__(self, families: Iterable[Family]) -> None:
        """Take families, the preferred first where two hold one M of one batch."""
        self._families = _grouped(families)
        self._made: dict[Key, TunedBatches] = {}

    def __getitem__(self, key: Key) -> TunedBatches:
        if (known := self._made.get(key)) is None:
            known = self._made[key] = TunedBatches(self._families[key])
        return known

    def __contains__(self, key: object) -> bool:
        return key in self._families

    def __iter__(self) -> Iterator[Key]:
        return iter(self._families)

    def __len__(self) -> int:
        return len(self._families)


def _grouped(families: Iterable[Family]) -> Mapping[Key, list[Family]]:
    found: dict[Key, list[Family]] = {}
    for family in families:
        found.setdefault(split(family.problem)[0], []).append(family)
    return found


def batches_of(family: Family) -> Batches:
    """The first and the last batch that a family serves; (0, 0) where its op has none."""
    own = batch_of(family.problem) or 0
    return family.batches or (own, own)


def overlap(one: Family, other: Family) -> bool:
    """Whether two families of one key share an M of one batch."""
    (first, last), (its_first, its_last) = batches_of(one), batches_of(other)
    share_batch = first <= its_last and its_first <= last
    return share_batch and one.first_m <= other.last_m and other.first_m <= one.last_m


def _by_batches(families: Sequence[Family]) -> Mapping[Batches, list[Family]]:
    """Cut the batches of one key's families where one begins or ends; returns by the first and last batch who serves.

    Ascending; what no family serves is left out.
    """
    served = [batches_of(family) for family in families]
    firsts = sorted({first for first, _ in served} | {last + 1 for _, last in served})
    found: dict[Batches, list[Family]] = {}
    for first, beyond in pairwise(firsts):
        if mine := [family for family, its in zip(families, served, strict=True) if its[0] <= first <= its[1]]:
            found[first, beyond - 1] = mine
    return found


def overlaid(families: Sequence[Family]) -> list[Family]:
    """Cut families of one key that serve one batch to what none before them holds.

    Args:
        families: the preferred first.

    Returns:
        Families that share no M, ascending. One whose middle is held is two.
    """
    taken: list[tuple[Range, int]] = []
    for number, family in enumerate(families):
        left = [(part, number) for each in family.ranges for part in _left(each, taken)]
        taken = sorted([*taken, *left])
    found: list[Family] = []
    for number, group in groupby(taken, key=lambda entry: entry[1]):
        for run in runs(each for each, _ in group):
            found.append(replace(families[number], ranges=tuple(run)))
    return found


def _left(wanted: Range, taken: Iterable[tuple[Range, int]]) -> Iterator[Range]:
    """Yield each part of a range that no other, ascending, holds."""
    first_m = wanted.first_m
    for held, _ in taken:
        if first_m < held.first_m:
            yield wanted._replace(first_m=first_m, last_m=min(wanted.last_m, held.first_m - 1))
        first_m = max(first_m, held.last_m + 1)
        if first_m > wanted.last_m:
            return
    yield wanted._replace(first_m=first_m)


def served(families: Iterable[Family]) -> dict[Problem, list[tuple[Family, Range]]]:
    """Return by the problem of their row the ranges that families of one device serve, the preferred first."""
    found: dict[Problem, list[tuple[Family, Range]]] = {}
    for family in disjoint(families):
        for each in family.ranges:
            found.setdefault(family.at(each.row_m), []).append((family, each))
    return found


def fields(family: Family) -> dict[str, Any]:
    """Every part of a family by name, as a table's file holds it, in its order; the file names the op once."""
    problem, check = family.problem.fields(), family.check
    figures = check and {"played": check.played, "geomean": round(check.geomean, 4), "worst": round(check.worst, 4)}
    batches = {} if family.batches is None else {"batches": list(family.batches)}
    ranges = {"ranges": list(map(list, family.ranges)), "check": figures}
    return {name: problem[name] for name in _PROBLEM} | batches | ranges


def from_fields(raw: Mapping[str, Any], op: str) -> Family:
    """The family that `fields` described.

    Raises:
        one of `tuner.lookup.row.BAD_VALUE`: a part is missing or cannot be, or ranges overlap or leave a gap.
    """
    parts = {name: raw[name] for name in raw if name not in ("ranges", "check", "batches")}
    problem = problem_of({**parts, "op": op, "m": 1})
    ranges = tuple(Range(first, last, row_m, evidence) for first, last, row_m, evidence in raw["ranges"])
    check = raw["check"]
    found = check and check_of(check["played"], check["geomean"], check["worst"])
    return Family(problem, ranges, found, batches_from(raw["batches"]) if "batches" in raw else None)


def batches_from(values: Any) -> Batches:
    """Make a range of batches of what may be anything; `Family` checks the numbers.

    Raises:
        ValueError: it is no list of two.
    """
    if not isinstance(values, list) or len(values) != 2:
        raise ValueError(f"batches must be two integers, got {values!r:.60}")
    return values[0], values[1]


def check_of(played: Any, geomean: Any, worst: Any) -> Check:
    """Make a check of figures that may be anything.

    Raises:
        ValueError: they are no count and two positive numbers.
    """
    if isinstance(played, bool) or not isinstance(played, int) or played < 1:
        raise ValueError(f"played must be an integer of 1 or more, got {played!r:.60}")
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
    yield from disjoint(found)


def disjoint(families: Iterable[Family]) -> Iterator[Family]:
    """Yield families of any key cut to what none before them holds, of one key by ascending batches."""
    for each_key in _grouped(families).values():
        for span, each in _by_batches(each_key).items():
            for family in overlaid(each):
                yield family if batches_of(family) == span else replace(family, batches=span)
