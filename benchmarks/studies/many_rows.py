"""What serves Ms of more than 256 rows between those that were tuned: a config of the two beside them, or any winner's.

    python benchmarks/studies/many_rows.py --db tuned.db --out RESULT.json

Of every family in the database, with the points that its ladder found, Ms of more than 256 rows that were not measured
are drawn, as likely in one octave as in another. In paired rounds play: what served an M when one of the two points
beside it had to (`beside`), what serves it now (`any`), the configs of other points that the cost model ranks first,
and the default of every kernel (`default`: that of an untuned problem). Each figure is a time over the fastest's.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path
from typing import Any

from tuner import Config, Problem
from tuner.errors import KernelError
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.problem.family import Ladder, Range
from tuner.store.listing import TrialFilter
from tuner.store.records import State
from tuner.store.store import Store
from tuner.sweep import run
from tuner.sweep.ladder_points import Points
from tuner.sweep.many_rows import MANY_ROWS
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import plays
import record

LIKELIEST = 8
"""How many more of the ladder's configs play at an M."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--db", required=True, help="a database of ladders that were tuned on this GPU model")
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--each", type=int, default=6, help="Ms drawn of each family")
    parser.add_argument("--seed", type=int, default=1, help="of the Ms")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    found = list[dict[str, Any]]()
    with PairedRunner(args.gpu) as runner:
        todo = dict[Problem, dict[Config, list[str]]]()
        counts = dict[str, dict[str, int]]()
        for points in ladders(args.db, runner.device):
            beside, any_point = points.beside(), points.ranges()
            counts[str(points.ladder)] = {"points": len(points.winners), "beside": len(beside), "any": len(any_point)}
            for problem in drawn(points, args.seed, args.each):
                todo[problem] = configs_of(problem, points, beside, any_point, runner.device)
        runner.compile((problem, config) for problem, configs in todo.items() for config in configs)
        for problem, configs in todo.items():
            found.append(played(runner, problem, configs))
            print(found[-1]["problem"], found[-1]["over_fastest"], flush=True)
            record.write(args.out, {"summary": summary(found), "ranges": counts, "found": found})
    print(summary(found))


def ladders(location: str, device: Device) -> list[Points]:
    """The points of each family of many rows that was tuned on a device: every M with a winner, and what was timed."""
    estimate, times = run.estimates(device), dict[Problem, dict[Config, float]]()
    with Store.open(location, read_only=True) as store:
        winners, decided = store.winners(device_slug=device.slug), store.families(device_slug=device.slug)
        for trial in store.trials(TrialFilter(device=device.slug, state=State.COMPLETE), limit=None):
            if trial.outcome.median_us:
                times.setdefault(trial.problem, {}).setdefault(trial.config, trial.outcome.median_us)
    found = list[Points]()
    newest = {(each.family.problem, each.family.batches): each.family for each in reversed(decided)}
    for family in (each for each in newest.values() if each.last_m > MANY_ROWS):
        of_family = (one for one in winners if one.problem.group() == family.problem and one.problem in times)
        own = sorted((one for one in of_family if one.problem.m <= family.last_m), key=lambda one: one.problem.m)
        points = Points(Ladder(family.first_m, tuple(one.problem for one in own)), estimate)
        for one in own:
            points.add(one.problem.m, one, times[one.problem])
        found.append(points)
    return found


def drawn(points: Points, seed: int, count: int) -> list[Problem]:
    """Problems of many rows that are no points."""
    chance, last_m, found = random.Random(f"{seed} {points.ladder}"), points.ladder.last_m, set[int]()
    first_m, unit = max(MANY_ROWS + 1, points.ladder.first_m), points.ladder.unit
    for _ in range(100 * count):
        m = round(first_m * (last_m / first_m) ** chance.random()) // unit * unit
        if len(found) < count and m >= first_m:
            found |= {m} - points.winners.keys()
    return [points.ladder.at(m) for m in sorted(found)]


def configs_of(
    problem: Problem, points: Points, beside: list[Range], any_point: list[Range], device: Device
) -> dict[Config, list[str]]:
    """The configs that play at an M, each with its names."""
    found = dict[Config, list[str]]()
    for name, ranges in (("beside", beside), ("any", any_point)):
        row_m = next(each.row_m for each in ranges if each.first_m <= problem.m <= each.last_m)
        found.setdefault(points.winners[row_m].config, []).append(name)
    found.setdefault(registry.default_config(problem, device), []).append("default")
    won = {winner.config for m, winner in points.winners.items() if m > MANY_ROWS // 2}
    estimates = {config: points.estimate(config, problem) or 0.0 for config in won}
    for config in sorted(won, key=lambda one: estimates[one])[:LIKELIEST]:
        found.setdefault(config, [])
    for spec in registry.serving(problem, device):
        try:
            found.setdefault(spec.default_config(problem, device), [])
        except KernelError:
            continue
    return found


def played(runner: PairedRunner, problem: Problem, configs: dict[Config, list[str]]) -> dict[str, Any]:
    """What each of the named took over the fastest of all."""
    result = plays.play(runner, problem, list(configs))
    medians, torch = result.medians, result.torch
    assert torch is not None
    fastest = min(medians, key=medians.__getitem__)
    named = {name: medians[config] for config, names in configs.items() for name in names if config in medians}
    return {
        "problem": str(problem),
        "over_fastest": {name: round(us / medians[fastest], 4) for name, us in named.items()},
        "torch_over": {name: round(statistics.median(torch) / us, 4) for name, us in named.items()},
        "fastest": str(fastest),
        "configs": {name: str(config) for config, names in configs.items() for name in names},
        "rejected": [str(config) for config in configs if config not in medians],
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and the worst."""
    names = ("beside", "any", "default")
    figures, torch = (
        {name: [each[ratio][name] for each in found if name in each[ratio]] for name in names}
        for ratio in ("over_fastest", "torch_over")
    )
    return {
        "problems": len(found),
        "over_fastest": {name: [round(record.geomean(them), 4), max(them)] for name, them in figures.items()},
        "torch_over": {name: [round(record.geomean(them), 4), min(them)] for name, them in torch.items()},
    }


if __name__ == "__main__":
    main()
