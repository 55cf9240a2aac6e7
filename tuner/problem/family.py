"""Families: problems that differ in M alone; and ladders, the Ms that are tuned so that a range can be served.

Of a batched op a family may serve a range of batches too: then it is the families of some batches, each of which serves
those below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from tuner.errors import ProblemError
from tuner.problem import batches as batched
from tuner.problem.batches import Batches
from tuner.problem.dtype import ITEMSIZE
from tuner.problem.gemm_fields import check_size
from tuner.problem.gemm_fields import parse_shape as parse_one_shape
from tuner.problem.problem import Problem

_SMALLEST_TILE = 16
MOST_RUNGS = 64
"""The most Ms of one ladder, or of one list of Ms."""
_RANGE = r"(\d{1,20})\s*-\s*(\d{1,20})"  # Python reads no number of more than 4300 digits
_RANGE_OF_SHAPES = re.compile(rf"(?P<ms>{_RANGE})[x,*](?P<rest>.*)", re.IGNORECASE)
MEASURED = "measured"
ESTIMATED = "estimated"
EVIDENCE = (MEASURED, ESTIMATED)
"""Whether what the config loses towards the next tuned M was measured to be little, or is the cost model's word."""


class Range(NamedTuple):
    """Ms that one config serves.

    Attributes:
        first_m, last_m: the smallest and the largest M, both included.
        row_m: the M whose winner serves all of it, in the range or not.
        evidence: one of EVIDENCE.
    """

    first_m: int
    last_m: int
    row_m: int
    evidence: str


def unit_of(problem: Problem) -> int:
    """What each M of a problem's family is a multiple of: 16 bytes where A's rows have the length M and are aligned."""
    return 16 // ITEMSIZE[problem.a_dtype] if problem.layout[0] == "t" and problem.aligned else 1


def ms_within(problem: Problem, first_m: int, last_m: int) -> range:
    """The Ms of a problem's family from one M to another, both included."""
    unit = unit_of(problem)
    return range(-(-first_m // unit) * unit, last_m + 1, unit)


def runs(ranges: Iterable[Range]) -> list[list[Range]]:
    """Split ascending ranges where there is a gap between them."""
    found: list[list[Range]] = []
    for each in ranges:
        if found and found[-1][-1].last_m + 1 == each.first_m:
            found[-1].append(each)
        else:
            found.append([each])
    return found


class Check(NamedTuple):
    """What a family's configs lost at Ms that were drawn at random, against a short race at each.

    Attributes:
        played: how many Ms were played.
        geomean, worst: the served config's time over the fastest's, 1 for no loss.
    """

    played: int
    geomean: float
    worst: float


@dataclass(frozen=True, slots=True)
class Family:
    """What tuning found out about a family over a range of Ms.

    Attributes:
        problem: the family's problem with M = 1 (`Problem.group()`).
        ranges: ascending, without gaps and overlaps.
        check: what serving by them lost; None where nothing was played.
        batches: the first and the last batch of the calls that the ranges serve; None for the problem's own alone, and
            where it has none.
    """

    problem: Problem
    ranges: tuple[Range, ...]
    check: Check | None = None
    batches: Batches | None = None

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ProblemError: there is none, one is empty, or two overlap or leave a gap; or the batches cannot be.
        """
        if self.batches is not None:
            batched.check(self.problem, self.batches)
        if not self.ranges:
            raise ProblemError("a family needs at least one range of M")
        for each in self.ranges:
            for m in each[:3]:
                check_size("M", m)
            if each.first_m > each.last_m:
                raise ProblemError(f"the range {each.first_m}-{each.last_m} is empty: its first M is beyond its last")
            if each.evidence not in EVIDENCE:
                raise ProblemError(f"unknown evidence {each.evidence!r}: expected {' or '.join(EVIDENCE)}")
        for below, above in zip(self.ranges, self.ranges[1:], strict=False):
            if above.first_m != below.last_m + 1:
                kind = "overlap" if above.first_m <= below.last_m else "leave a gap"
                shown = f"{below.first_m}-{below.last_m} and {above.first_m}-{above.last_m}"
                raise ProblemError(f"the ranges {shown} {kind}: expected each to begin where the one before ends")

    @property
    def first_m(self) -> int:
        """The smallest M that is served."""
        return self.ranges[0].first_m

    @property
    def last_m(self) -> int:
        """The largest M that is served."""
        return self.ranges[-1].last_m

    def at(self, m: int) -> Problem:
        """The family's problem with this M."""
        return self.problem.with_m(m)

    def corners(self, first_m: int, last_m: int) -> list[Problem]:
        """The problems with the first and the last of the family's Ms among these, at each end of the batches."""
        ms = ms_within(self.problem, first_m, last_m)
        ends = dict.fromkeys(map(self.at, (ms[0], ms[-1]) if ms else ()))
        return [batched.with_batch(end, batch) for end in ends for batch in dict.fromkeys(self.batches or (None,))]

    def __str__(self) -> str:
        return _spanning(self.first_m, self.at(self.last_m), self.batches)


class Ladder(NamedTuple):
    """The Ms of one family that are tuned first, so that every M from the first to the last can be served.

    Attributes:
        first_m: the smallest M to serve.
        rungs: problems that differ in M alone, ascending; the last one's M is the largest M to serve.
        batches: see `Family`.
        taught: whether all rungs can learn from another ladder's, which is tuned before.
    """

    first_m: int
    rungs: tuple[Problem, ...]
    batches: Batches | None = None
    taught: bool = False

    @property
    def last_m(self) -> int:
        """The largest M to serve."""
        return self.rungs[-1].m

    @property
    def unit(self) -> int:
        """What every M of the family is a multiple of, see `unit_of`."""
        return unit_of(self.rungs[0])

    @property
    def family(self) -> Problem:
        """The family's problem with M = 1."""
        return self.rungs[0].group()

    def at(self, m: int, batch: int | None = None) -> Problem:
        """The family's problem with this M, and with another batch than its own where that is given."""
        return batched.with_batch(self.rungs[0].with_m(m), batch)

    def as_invariant(self) -> Ladder:
        """The ladder of the same Ms whose rows' bits must not depend on M; ProblemError where it has no such form."""
        return self._replace(rungs=tuple(rung.as_invariant() for rung in self.rungs))

    def joined(self, other: Ladder) -> Ladder:
        """The ladder that serves what this one and another that ends with the same problem do."""
        rungs = tuple(sorted({*self.rungs, *other.rungs}, key=attrgetter("m")))
        batches = min(filter(None, (self.batches, other.batches)), default=None)
        return Ladder(min(self.first_m, other.first_m), rungs, batches, taught=self.taught and other.taught)

    def __str__(self) -> str:
        return _spanning(self.first_m, self.rungs[-1], self.batches)


def sizes(text: str, name: str = "M") -> list[int] | range:
    """Read one size ("64"), several ("1,8,64") or a range of sizes ("1-512").

    Args:
        text: what was written.
        name: what the size is called in an error.

    Returns:
        A list of sizes; a `range` for a range, its `stop` one beyond the last.

    Raises:
        ProblemError: the text is none of these, a size is out of bounds, or there are more than MOST_RUNGS.
    """
    text = text.strip()
    if found := re.fullmatch(_RANGE, text):
        first, last = (int(part) for part in found.groups())
        check_size(name, first)
        check_size(name, last)
        if first > last:
            raise ProblemError(f"{name} {text} is a range that ends before it begins: write {last}-{first}")
        return range(first, last + 1)
    try:
        listed = [int(part) for part in text.split(",")]
    except ValueError:
        expected = f"an integer, a range such as 1-512, or a list such as 1,8,64; got {text!r:.60}"
        raise ProblemError(f"{name} must be {expected}") from None
    if len(listed) > MOST_RUNGS:
        raise ProblemError(f"{name} lists {len(listed)} sizes, more than {MOST_RUNGS}: write a range such as 1-512")
    return listed


def parse_shape(text: str, make: Callable[[int, int, int], Problem]) -> list[Problem | Ladder]:
    """Read "MxNxK", where M may be a range ("1-512x6144x4096").

    Args:
        text: what was written.
        make: returns the problem of a shape.

    Raises:
        ProblemError: the text is no shape, or a problem cannot be.
    """
    if found := _RANGE_OF_SHAPES.fullmatch(text.strip()):
        ms = sizes(found["ms"])
        assert isinstance(ms, range)
        _, n, k = parse_one_shape(f"{ms[0]}x{found['rest']}")
        return list(ladders(ms, lambda m: make(m, n, k)))
    return [make(*parse_one_shape(text))]


def rungs(first: int, last: int, *, taught: bool = False) -> list[int]:
    """Return the Ms of a ladder: powers of two, from 16 on the next M after each, from 192 on halves, and both ends.

    Of a ladder that learns from others they are powers of two and both ends.

    A tile that just fits ends with a power of two, and another begins one row later: configs change there. Below 16
    rows fill less than one tile. From 192 on some tiles fit a half exactly, and no other M nearby as well. Between two
    rungs `tuner run` probes where it must.
    """
    powers = {1 << power for power in range(31)}
    after = set() if taught else {power + 1 for power in powers if power >= _SMALLEST_TILE}
    halves = set() if taught else {3 << power for power in range(6, 30)}
    return sorted({first, last, *(size for size in powers | after | halves if first <= size <= last)})


def checked_rungs(ms: range, *, taught: bool = False) -> list[int]:
    """Return the Ms of a ladder over a range; see `rungs`.

    Raises:
        ProblemError: they are more than MOST_RUNGS, or one is out of bounds.
    """
    listed = rungs(ms[0], check_size("M", ms[-1]), taught=taught)
    if len(listed) > MOST_RUNGS:
        raise ProblemError(
            f"M {ms[0]}-{ms[-1]} is a ladder of {len(listed)} Ms to tune, more than {MOST_RUNGS}: write a smaller range"
        )
    return listed


def ladders(ms: range, make: Callable[[int], Problem], *, taught: bool = False) -> list[Ladder]:
    """Return the ladders that serve a range of Ms.

    There is one for each family: where A is stored transposed its rows' length is M, so aligned and unaligned Ms are
    families of their own.

    Args:
        ms: the Ms to serve.
        make: returns the problem with an M.
        taught: see `Ladder`.

    Raises:
        ProblemError: a problem cannot be.
    """
    problems = [make(m) for m in checked_rungs(ms, taught=taught)]
    if len({problem.group() for problem in problems}) > 1:  # an M one below a rung that 16 bytes divide has a tail
        tails = [make(problem.m - 1) for problem in problems if problem.m > ms[0]]
        ends = (ms_within(problem, ms[0], ms[-1])[-1] for problem in problems)
        problems += [*tails, *map(make, dict.fromkeys(ends))]
    by_family: dict[Problem, dict[int, Problem]] = {}
    for problem in problems:
        by_family.setdefault(problem.group(), {})[problem.m] = problem
    return [Ladder(ms[0], tuple(found[m] for m in sorted(found)), taught=taught) for found in by_family.values()]


def grid(
    ms: range | list[int], batches: range | list[int] | list[None], make: Callable[[int, int | None], Problem]
) -> list[Problem | Ladder]:
    """Return the problems and ladders that some Ms and batches name.

    A range of batches is a ladder over M at each of its rungs. Ladders from which the others learn come first.

    Args:
        ms, batches: see `sizes`; [None] for an op without a batch.
        make: returns the problem with an M and a batch.

    Raises:
        ProblemError: a problem cannot be.
    """

    def of(batch: int | None) -> Callable[[int], Problem]:
        return lambda m: make(m, batch)

    if isinstance(batches, range):
        found: list[Ladder] = []
        for first, batch in batched.rungs(batches[0], batches[-1]):
            taught = not batched.is_anchor(batch) and batch not in (batches[0], batches[-1])
            for span in [ms] if isinstance(ms, range) else [range(m, m + 1) for m in ms]:
                climbed = ladders(span, of(batch), taught=taught)
                found += [ladder._replace(batches=(first, batch)) for ladder in climbed]
        return sorted(found, key=attrgetter("taught"))
    if isinstance(ms, range):
        return [ladder for batch in batches for ladder in ladders(ms, of(batch))]
    return [make(m, batch) for batch in batches for m in ms]


def _spanning(first_m: int, last: Problem, batches: Batches | None) -> str:
    said = str(last).replace(f" {last.m}x", f" {first_m}-{last.m}x", 1)
    return batched.shown(said, last, batches)


def ms_of_each_kind(problem: Problem, first_m: int, last_m: int) -> list[int]:
    """Ms of a family's range on which binaries may depend: its ends, powers of two and neighbours, multiples of 16.

    `gemv` has M's power of two in its binary, and TMA reads row scales that 16 bytes divide.
    """
    ms = ms_within(problem, first_m, last_m)
    powers = (1 << exponent for exponent in range(first_m.bit_length() - 1, last_m.bit_length()))
    near = {m + step for m in (*ms[:1], *ms[-1:], *powers) for step in range(-2, 4)}
    whole = {-(-first_m // unit) * unit for unit in (4, 8, 16)}
    return sorted(m for m in near | whole if m in ms)
