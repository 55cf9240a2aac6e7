"""What a sweep does next: the problems it was given, and what each ladder still needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuner.problem import Problem
from tuner.problem.family import Family, Ladder
from tuner.store.records import DecidedFamily, Winner
from tuner.sweep.ladder import Climb, Estimate, Result, TuningStep


def distinct(listed: Iterable[Problem | Ladder]) -> list[Problem | Ladder]:
    """Return each problem that is no rung of a ladder once, then one ladder for each largest M."""
    problems: dict[Problem, None] = {}
    joined: dict[Problem, Ladder] = {}  # a run records one family for each largest M
    rungs: set[Problem] = set()
    for each in listed:
        if isinstance(each, Problem):
            problems[each] = None
        else:
            last = each.rungs[-1]
            joined[last] = each.joined(joined[last]) if last in joined else each
            rungs.update(each.rungs)
    return [*(problem for problem in problems if problem not in rungs), *joined.values()]


class Agenda:
    """The problems of a sweep in the order they are begun, with what each ladder still needs."""

    def __init__(
        self,
        problems: Iterable[Problem],
        ladders: Sequence[Ladder] = (),
        estimate: Estimate = lambda _config, _problem: None,
        *,
        finishes_first: bool = False,
    ) -> None:
        """List what to do.

        Args:
            problems: problems of their own, begun first.
            ladders: ranges of Ms; their anchors come before all other steps.
            estimate: see Estimate.
            finishes_first: whether a ladder's later steps come before ladders that were not begun. It keeps the
                compilers less busy, but where the time ends early, whole families are tuned.
        """
        self._estimate, self._finishes_first = estimate, finishes_first
        self._steps: list[TuningStep] = []
        self._of: dict[Problem, list[Climb]] = {}
        self._climbs: list[Climb] = []
        self._of_family: dict[Problem, list[Climb]] = {}
        self._known: dict[Problem, list[DecidedFamily]] = {}
        for item in distinct([*problems, *ladders]):
            self.add(item)

    def __bool__(self) -> bool:
        return bool(self._steps)

    @property
    def is_open(self) -> bool:
        """Whether more may be added: a sweep waits for it."""
        return False

    def add(self, item: Problem | Ladder) -> None:
        """List one more problem or ladder; see `distinct`."""
        if isinstance(item, Problem):
            self._steps.append(TuningStep(item))
            return
        climb = Climb(item, self._estimate, self._known.get(item.family, ()))
        self._climbs.append(climb)
        self._of_family.setdefault(item.family, []).append(climb)
        self._add(climb, climb.begin(), is_begin=True)

    def know(self, families: Iterable[DecidedFamily]) -> None:
        """Take note of what earlier runs recorded on the same device and under the same environment."""
        for found in families:
            self._known.setdefault(found.family.problem, []).append(found)
        for climb in self._climbs:
            climb.known = self._known.get(climb.ladder.family, ())

    @property
    def problems(self) -> list[Problem]:
        """The problems not begun, as far as they are known."""
        return [step.problem for step in self._steps]

    def take(self) -> TuningStep:
        """Return the next step."""
        return self._steps.pop(0)

    def put_back(self, step: TuningStep) -> None:
        """Have a step taken again, before all others."""
        self._steps.insert(0, step)

    def tops(self, problem: Problem) -> set[Problem]:
        """The last rungs of the ladders that go on from how a problem ends, and of those they may share steps with.

        These are the ladders of their families. Two runs of which each has one of two such ladders would wait for each
        other, so that a run has all of them, or none.
        """
        families = {climb.ladder.family for climb in self._of.get(problem, ())}
        beside = (climb for family in families for climb in self._of_family[family])
        return {climb.ladder.rungs[-1] for climb in beside if climb.is_open}

    @property
    def open_tops(self) -> set[Problem]:
        """The last rungs of the ladders that are not complete."""
        return {climb.ladder.rungs[-1] for climbs in self._of.values() for climb in climbs}

    def drop(self) -> list[Problem]:
        """Give up what was not begun, and return its problems."""
        given_up, self._steps = self.problems, []
        self._of.clear()
        return given_up

    def awaits(self, problem: Problem) -> bool:
        """Whether a ladder goes on from how this problem ends."""
        return problem in self._of

    def ended(self, problem: Problem, result: Result, winners: Iterable[Winner]) -> list[Family]:
        """Take note of how a problem ended; returns the families that are complete by it.

        Args:
            problem: what ended.
            result, winners: see `Climb.ended`.
        """
        complete = []
        for climb in self._of.pop(problem, ()):
            self._add(climb, climb.ended(problem.m, result, winners))
            if climb.family is not None:
                complete.append(climb.family)
        return complete

    def written(self) -> None:
        """Hear that what came of all that has ended was written."""

    def _add(self, climb: Climb, steps: Sequence[TuningStep], *, is_begin: bool = False) -> None:
        new = [step for step in steps if step.problem not in self._of]
        self._steps = [*new, *self._steps] if self._finishes_first and not is_begin else [*self._steps, *new]
        for step in steps:
            self._of.setdefault(step.problem, []).append(climb)
