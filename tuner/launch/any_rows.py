"""Calls that differ from an earlier one in the rows of their first operand alone: its plan, made for their rows.

A range of Ms has one config. Where the launches of its Ms differ in M alone, launch_range.py has found out, by looking
at every M, at which places of their arguments M stands: when binaries were shipped, or when a family that nobody tuned
was made ready. So a new M of such a range takes neither the op's checks nor its kernel's host code: a guard that leaves
the rows open, a lookup, and a number that is replaced. The first call of a tuned family prepares its other ranges
(`plan.PreparedLaunches`), each of which is made ready for the first of its Ms that is called.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tuner.bounded import make_room
from tuner.launch.bound import Addresses, BoundPlan, allocator, bind
from tuner.launch.failure import UNREADABLE, failures
from tuner.launch.guards import make_guard
from tuner.launch.plan import MOST_KEYS, LaunchPlan, LaunchRange, Recording
from tuner.launch.step import RecordedLaunch, Step
from tuner.lookup import lookup

MOST_OF_A_KIND = 256
"""Ranges of one kind of call: a ladder has fewer, up to the Ms that launches are prepared for."""


@dataclass(slots=True)
class AnyRowsPlan:
    """A call that ran, for calls with other numbers of rows.

    Attributes:
        launch_range: The Ms that it holds for.
        serves: Whether the op may use these launches for one of them.
        m: One of them.
        launches: Returns what is launched for it.
        like: An empty tensor like the result.
        columns: The result's last size.
        guards: The tests of a call's tensors, whose number of rows they leave open, by the other sizes of the first.
        is_tried: Whether these launches have run: those that were prepared have not.
        is_bad: Whether they could not be made, or failed when they were tried.
    """

    launch_range: LaunchRange
    serves: Callable[[int], bool]
    m: int
    launches: Callable[[], Sequence[RecordedLaunch]]
    like: Tensor
    columns: int
    guards: dict[tuple[int, ...], Callable[..., bool]]
    is_tried: bool
    is_bad: bool = False
    _steps: Sequence[Callable[[int], Step]] | None = field(default=None, init=False, repr=False, compare=False)

    @staticmethod
    def of(
        given: Sequence[Tensor],
        result: Tensor,
        seen: Recording,
        launches: Sequence[RecordedLaunch],
        serves: Callable[[int], bool],
    ) -> list[AnyRowsPlan]:
        """Make it of a call that ran, and of what was prepared for other Ms of its family.

        There is none where other rows are launched otherwise.

        Args:
            given: The call's tensors; all but the rows of the first stay the same.
            result: What it wrote, with the first one's leading sizes.
            seen: What it launched.
            launches: The same, as `recorded_launches` gives it.
            serves: See `AnyRowsPlan`.
        """
        rows = _as_matrix(given[0])
        if rows is None or seen.temporaries or seen.count is not None or len({*map(id, given)}) < len(given):
            return []  # memory for another M, another M's count, and a guard refuses the same tensor twice
        m, own = rows.shape[0], seen.launch_range
        if own is None and seen.ahead is None:
            return []
        like, columns = result.new_empty(0), result.shape[-1]
        guards = {rows.shape[1:]: make_guard((rows, *given[1:]), None, any_rows=True)}
        made = []
        if own is not None and _can_take_another(launches, own, m):
            made.append(AnyRowsPlan(own, serves, m, lambda: launches, like, columns, guards, is_tried=True))
        # The operands must lie as those without memory do.
        if seen.ahead is not None and seen.ahead.own == launches and all(launch.is_direct() for launch in launches):
            made += [
                AnyRowsPlan(each, serves, each.first_m, prepared, like, columns, guards, is_tried=False)
                for each, prepared in seen.ahead.ranges
                if own is None or each.first_m != own.first_m
            ]
        return made

    def plan(self, given: Sequence[Tensor], m: int) -> BoundPlan | None:
        """The plan of a call with another number of rows, M; None where this does not serve it."""
        if self.is_bad or not self.launch_range.first_m <= m <= self.launch_range.last_m:
            return None
        a = given[0]
        guard = self._guard(given)
        if guard is None or not (guard(*given) and self.launch_range.serves(m) and self.serves(m)):
            return None
        try:
            plan = LaunchPlan(a.device.index or 0, [steps(m) for steps in self._made_steps()], ())
        except failures(*UNREADABLE):
            self.is_bad = True
            return None
        allocate, first = allocator(self.like, (*a.shape[:-1], self.columns)), a.shape[0]
        bound = bind(plan, allocate, lambda a, *rest: a.shape[0] == first and guard(a, *rest), lambda _addresses: True)
        if self.is_tried:
            return bound
        run_two, run_new = self._trying(bound.run_two), self._trying(bound.run_new)
        return bound._replace(run_two=run_two, run_new=run_new, is_tried=False)

    def _made_steps(self) -> Sequence[Callable[[int], Step]]:
        """Of each launch what makes the step for an M.

        They are made for the first M that asks: a family's first call prepares dozens of ranges.
        """
        if self._steps is None:
            launches = self.launches()
            if not _can_take_another(launches, self.launch_range, self.m):
                raise ValueError(f"M does not stand where the range from {self.launch_range.first_m} on has it")
            by_launch = zip(launches, self.launch_range.places, strict=True)
            self._steps = [launch.steps(places) for launch, places in by_launch]
        return self._steps

    def _trying(self, run: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
        """The same, but None where a launch fails: the long way then finds another config."""

        def tried(*given: Any) -> Tensor | None:
            try:
                result = run(*given)
            except failures():
                self.is_bad = True
                return None
            self.is_tried = True
            return result

        return tried

    def serves_like(self, other: AnyRowsPlan, given: Sequence[Tensor]) -> bool:
        """Whether it serves the same Ms of such calls as another."""
        if self.is_bad or (self.launch_range.first_m, self.launch_range.last_m) != (
            other.launch_range.first_m,
            other.launch_range.last_m,
        ):
            return False
        guard = self._guard(given)
        return guard is not None and guard(*given)

    def _guard(self, given: Sequence[Tensor]) -> Callable[..., bool] | None:
        """The test of calls whose first tensor has these sizes, but for the first of them."""
        a, *rest = given
        found = self.guards.get(a.shape[1:])
        if found is not None:
            return found
        rows = _as_matrix(a)
        if rows is None or not self.guards[a.shape[-1:]](rows, *rest):
            return None
        if len(self.guards) >= MOST_OF_A_KIND:
            return make_guard(given, None, any_rows=True)
        return self.guards.setdefault(a.shape[1:], make_guard(given, None, any_rows=True))


def _can_take_another(launches: Sequence[RecordedLaunch], launch_range: LaunchRange, m: int) -> bool:
    """Whether the launches of an M can be made for another: it stands at the range's places, and only there."""
    if len(launches) != len(launch_range.places):
        return False
    by_launch = [*zip(launches, launch_range.places, strict=True)]
    numbers = {launch.number(place) for launch, places in by_launch for place in places}
    stands_there = numbers == ({m} if launch_range.first_m < launch_range.last_m else set())
    return stands_there and all(launch.is_direct(places) for launch, places in by_launch)


class AnyRowsCache:
    """What calls of one op left for calls with other rows."""

    def __init__(self) -> None:
        self._by_kind: dict[Hashable, tuple[AnyRowsPlan, ...]] = {}
        lookup.on_change(self._by_kind.clear)

    def plan(self, given: Sequence[Tensor], addresses: Addresses, options: tuple[Hashable, ...]) -> BoundPlan | None:
        """The plan of a call that no plan serves yet; None where it must take the long way."""
        a = given[0]
        if not self._by_kind or a.dim() < 2:
            return None
        found = self._by_kind.get(_kind(given, addresses, options))
        if found is None:
            return None
        m = a.numel() // a.shape[-1]
        return next((plan for each in found if (plan := each.plan(given, m)) is not None), None)

    def add(
        self,
        made: AnyRowsPlan,
        given: Sequence[Tensor],
        addresses: Addresses,
        options: tuple[Hashable, ...],
        sources: object,
    ) -> None:
        """Store what a call left, unless the sources have changed since its config was looked up."""
        kind = _kind(given, addresses, options)
        make_room(self._by_kind, MOST_KEYS)
        known = tuple(each for each in self._by_kind.get(kind, ()) if not each.is_bad)
        if any(each.serves_like(made, given) for each in known):
            return
        self._by_kind[kind] = (made, *known[: MOST_OF_A_KIND - 1])
        # `use` changes the resolver, then clears: whichever thread comes second removes what must not stay.
        if lookup.resolver() is not sources:
            self._by_kind.pop(kind, None)


def _as_matrix(a: Tensor) -> Tensor | None:
    """A tensor's rows, which lie one after the other; None where they do not."""
    if not a.is_contiguous() or 0 in a.shape or a.stride(0) != a.numel() // a.shape[0]:
        return None  # torch ignores the stride of a single row, but a guard that leaves their number open keeps it
    return a if a.dim() == 2 else a.view(-1, a.shape[-1])


def _kind(given: Sequence[Tensor], addresses: Addresses, options: tuple[Hashable, ...]) -> Hashable:
    rest = [tensor.numel() << 4 | at & 15 for tensor, at in zip(given[1:], addresses[1:], strict=True)]
    # Of which tensors share an address a plan knows, too.
    is_apart = len({*addresses}) == len(addresses)
    shared = True if is_apart else tuple(map(addresses.index, addresses))
    return (given[0].shape[-1], addresses[0] & 15, *rest, shared, options)
