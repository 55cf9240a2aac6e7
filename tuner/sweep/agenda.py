"""What a sweep does next: the problems it was given, and what each ladder still needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tuner.problem import Problem
from tuner.problem.family import Family, Ladder
from tuner.store.records import DecidedFamily, Winner
from tuner.sweep.ladder import LadderProgress, Result, TuningStep
from tuner.sweep.many_rows import Estimate


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
            finishes_first: whether a ladder's later steps come before ladders that were not begun. Where the time ends
                early, whole families are tuned. It keeps fewer compilers busy than anchors do, enough for one GPU.
        """
        self._estimate, self._finishes_first = estimate, finishes_first
        self._steps: list[TuningStep] = []
        self._listed: set[Problem] = set()  # as problems of their own, and not ended
        self._open: set[Problem] = set()  # of steps that were listed or taken and have not ended
        self._complete: set[Problem] = set()
        self._awaiting: dict[Problem, list[LadderProgress]] = {}
        self._progress: list[LadderProgress] = []
        self._by_family: dict[Problem, list[LadderProgress]] = {}
        self._known: dict[Problem, list[DecidedFamily]] = {}
        for item in distinct([*problems, *ladders]):
            self.add(item)

    def __bool__(self) -> bool:
        return bool(self._steps)

    @property
    def is_open(self) -> bool:
        """Whether more problems may be added, so that a sweep must not end yet."""
        return False

    def add(self, item: Problem | Ladder) -> None:
        """List one more problem or ladder; see `distinct`."""
        if isinstance(item, Problem):
            self._listed.add(item)
            self._list([TuningStep(item)])
            return
        progress = LadderProgress(item, self._estimate, self._known.get(item.family, ()))
        self._progress.append(progress)
        self._by_family.setdefault(item.family, []).append(progress)
        self._add(progress, progress.begin(), is_begin=True)

    def know(self, families: Iterable[DecidedFamily]) -> None:
        """Take note of what earlier runs recorded on the same device and under the same environment."""
        for found in families:
            self._known.setdefault(found.family.problem, []).append(found)
        for progress in self._progress:
            progress.known = self._known.get(progress.ladder.family, ())

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

    def ladder_keys(self, problem: Problem) -> set[Problem]:
        """What a run claims before a step of a ladder: the last rungs of all open ladders of the problem's families.

        Ladders of one family may have steps in common. Two runs with one such ladder each would wait for each other,
        so a run claims all of them, or none.
        """
        families = {progress.ladder.family for progress in self._awaiting.get(problem, ())}
        beside = (progress for family in families for progress in self._by_family[family])
        return {progress.ladder.rungs[-1] for progress in beside if progress.is_open}

    @property
    def open_ladder_keys(self) -> set[Problem]:
        """The last rungs of the ladders that are not complete."""
        return {progress.ladder.rungs[-1] for awaiting in self._awaiting.values() for progress in awaiting}

    def drop(self) -> list[Problem]:
        """Give up what was not begun, and return its problems."""
        given_up, self._steps = self.problems, []
        self._open.difference_update(given_up)
        self._awaiting.clear()
        return given_up

    def awaits(self, problem: Problem) -> bool:
        """Whether a ladder goes on from how this problem ends."""
        return problem in self._awaiting

    def ended(self, problem: Problem, result: Result, winners: Iterable[Winner]) -> list[Family]:
        """Take note of how a problem ended; returns the families that are complete by it.

        Args:
            problem: what ended.
            result, winners: see `LadderProgress.ended`.
        """
        complete = []
        self._listed.discard(problem)
        self._open.discard(problem)
        for progress in self._awaiting.pop(problem, ()):
            self._add(progress, progress.ended(problem.m, result, winners, self._open))
            for family in progress.families:
                if (last := family.at(family.last_m)) not in self._complete:  # a run records one for each largest M
                    self._complete.add(last)
                    complete.append(family)
        return complete

    def written(self) -> None:
        """Called once the winners and families of all ended problems are stored."""

    def _add(self, progress: LadderProgress, steps: Sequence[TuningStep], *, is_begin: bool = False) -> None:
        self._list(steps, first=self._finishes_first and not is_begin)
        for step in steps:
            self._awaiting.setdefault(step.problem, []).append(progress)

    def _list(self, steps: Iterable[TuningStep], *, first: bool = False) -> None:
        """List steps, before all others or after them, except those whose problem is listed or at work already."""
        new = [step for step in steps if step.problem not in self._open]
        self._open.update(step.problem for step in new)
        self._steps = [*new, *self._steps] if first else [*self._steps, *new]
