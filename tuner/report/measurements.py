"""What a report is made of, read from a store: trials, winners, families and runs, of one device or suite or of all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass

from tuner.errors import StoreError, UsageError
from tuner.hardware.device import Device, Environment
from tuner.problem import Problem, suite
from tuner.problem.family import Ladder
from tuner.store.listing import RunRow, TrialFilter, TrialRow
from tuner.store.records import DecidedFamily, Winner
from tuner.store.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how times were measured: only times of one place may be compared."""

    device: Device
    environment: Environment
    protocol: int


@dataclass(frozen=True, slots=True)
class Measurements:
    """What was measured, each list in an order that the rows alone decide.

    Attributes:
        places: by device, the interpreter last; of a device the one with the newest trial first.
        trials: the oldest first.
        winners, families: of every place.
        runs: by uuid.
        devices: by slug.
    """

    places: tuple[Place, ...]
    trials: tuple[TrialRow, ...]
    winners: tuple[Winner, ...]
    families: tuple[DecidedFamily, ...]
    runs: dict[str, RunRow]
    devices: dict[str, Device]

    def place_of(self, trial: TrialRow) -> Place:
        """Where a trial was measured."""
        run = self.runs[trial.run]
        return Place(self.devices[run.device], run.environment, run.protocol)


def read(store: Store, *, device: str | None = None, suites: Sequence[str] = ()) -> Measurements:
    """Read all that is in a store, or only some of it.

    Args:
        store: what is read.
        device: the slug of the only device to read; None for all.
        suites: names or files of suites, whose problems alone are read; none for all problems.

    Raises:
        StoreError: it holds no trial.
        UsageError: it holds none of that device and those suites.
    """
    wanted = _wanted(suites)
    tried = store.trials(TrialFilter(device))
    # Read after the trials: a run that is under way may begin in between.
    runs = {run.uuid: run for run in store.runs()}
    devices = {row.device.slug: row.device for row in store.devices()}
    # The run of a trial may be damaged, and is left out then.
    found = [trial for trial in tried if trial.run in runs and trial.device in devices and wanted(trial.problem)]
    if not found:
        asked = [*([f"the device {device}"] if device else []), *(f"the suite {name}" for name in suites)]
        if asked and store.count_trials():
            named = f"no trial of {' and '.join(asked)}"
            raise UsageError(f"{store.location} holds {named}: `tuner show problems` lists what it holds")
        raise StoreError(store.lacks("trial that can be read" if tried else "trial"))
    found.sort(key=lambda trial: (trial.measured_at, runs[trial.run].started_at, trial.run, trial.trial_id))
    winners = tuple(one for one in store.winners(device_slug=device) if wanted(one.problem))
    groups = {one.problem.group() for one in winners if not one.problem.is_keyed}
    families = tuple(one for one in store.families(device_slug=device) if one.family.problem in groups)
    places = _places([(devices[runs[one.run].device], runs[one.run]) for one in found], winners)
    used = {trial.run for trial in found}
    return Measurements(places, tuple(found), winners, families, {name: runs[name] for name in sorted(used)}, devices)


def _places(newest_last: Iterable[tuple[Device, RunRow]], winners: Iterable[Winner]) -> tuple[Place, ...]:
    newest: dict[Place, int] = dict.fromkeys((Place(one.device, one.environment, one.protocol) for one in winners), -1)
    for number, (device, run) in enumerate(newest_last):
        newest[Place(device, run.environment, run.protocol)] = number

    def order(place: Place) -> tuple[object, ...]:
        return place.device.is_interpreter, place.device.slug, -newest[place], astuple(place.environment)

    return tuple(sorted(newest, key=order))


def _wanted(suites: Sequence[str]) -> Callable[[Problem], bool]:
    if not suites:
        return lambda _: True
    named: set[Problem] = set()
    spans: dict[Problem, list[tuple[int, int]]] = {}
    for name in suites:
        for each in suite.load_with_ladders(name):
            if isinstance(each, Ladder):
                spans.setdefault(each.family, []).append((each.first_m, each.last_m))
            else:
                named.add(each)

    def wanted(problem: Problem) -> bool:
        if problem in named or problem.is_keyed:
            return problem in named
        return any(first <= problem.m <= last for first, last in spans.get(problem.group(), ()))

    return wanted
