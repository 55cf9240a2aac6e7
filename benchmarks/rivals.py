"""What the race is held against: random draws and Optuna's TPE, at the price of our own searches (replay.py).

Both are replayed as the race's trials are. Each plays the race's short finals and, beside that, those of
`--strategy random`, which are dearer and surer.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict

from replay import Bench, judged, play

from tuner.sweep.race import RACE
from tuner.sweep.strategies import RANDOM

NAMES = ("random", "tpe")
FINALS = {
    "": dataclasses.replace(RANDOM, drop=RACE.drop, finalists=RACE.finalists, margin=RACE.margin),
    ", thorough": dataclasses.replace(RANDOM, drop=RACE.drop),
}
"""Strategies by what follows a rival's name."""
RANDOM_BUDGETS = (16, 64, 128, 256, 512, 1024, 2048)
TPE_BUDGETS = (16, 64, 128, 256, 384)
TPE_SEEDS = 1
"""Searches of each problem by TPE: half a minute each, for every proposal looks at all that came before."""
ASKS = 3
"""Proposals for each new config at most: TPE comes back to what it likes."""


def searches(course, *, seed):
    """Of one problem, by random draws and TPE: (name, budget) and what came of it."""
    for budget in RANDOM_BUDGETS:
        for finals, strategy in FINALS.items():
            yield (f"random{finals}", budget), play(course, strategy, trials=budget, seed=seed)
    if seed < TPE_SEEDS:
        yield from tpe(course, seed=seed)


def tpe(course, *, seed):
    """TPE over the kernel and, under it, the kernel's own parameters; one study, looked at after each budget.

    The default comes first, as it would be used, and finals of our own come last. What is no config is taken to be the
    nearest one of that kernel, and a config that was measured costs nothing again: both are kinder than what its users
    get.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    first = next(iter(FINALS.values()))
    bench, job = Bench(course.land, first, seed), course.job(first, seed=seed)

    def measure(config):
        for measured, outcome in bench.measure([config]):
            job.finish(measured, outcome)

    measure(job.default)
    known = [config for config in course.field.configs if config in course.land.us]
    places, values = places_of(known), defaultdict(lambda: defaultdict(set))
    for config in known:
        for name, value in config.pairs:
            values[config.kernel][name].add(value)
    nearest = {}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    for budget in TPE_BUDGETS:
        for _ in range(ASKS * budget):
            if len(job.outcomes) >= min(budget, len(known)):
                break
            trial = study.ask()
            kernel = trial.suggest_categorical("kernel", sorted(values))
            asked = {
                name: trial.suggest_categorical(f"{kernel}.{name}", sorted(choices, key=str))
                for name, choices in sorted(values[kernel].items())
            }
            key = (kernel, *asked.values())
            if key not in nearest:
                nearest[key] = min(places[kernel], key=lambda config: apart(places[kernel][config], asked))
            config = nearest[key]
            if config not in job.outcomes:
                measure(config)
            study.tell(trial, math.log(job.outcomes[config].median_us))
        searched_s = bench.spent_s
        for name, job.strategy in FINALS.items():
            yield (f"tpe{name}", budget), judged(job, bench)
            bench.spent_s = searched_s


def places_of(configs):
    """Of each kernel its configs, with their parameters as a dict."""
    places = defaultdict(dict)
    for config in configs:
        places[config.kernel][config] = dict(config.pairs)
    return places


def apart(one, other):
    """Steps of two between numbers, one for other values."""
    return sum(
        abs(math.log2(max(1, one.get(name, 1))) - math.log2(max(1, value)))
        if isinstance(value, int) and not isinstance(value, bool)
        else float(one.get(name) != value)
        for name, value in other.items()
    )


def rows_of(result):
    """A result's rows of rivals."""
    return [row for row in result["rows"] if rival_of(row) in NAMES]


def rival_of(row):
    """The name of a row's strategy, whatever its finals."""
    return row["strategy"].partition(",")[0]


def behind(rows):
    """Of each rival: how many times the race's GPU seconds it takes to the race's regret.

    `behind_at` is the most that it spent and was still behind, before it first was level; `level_at` is None where it
    never was. Of each budget the better of its two finals counts.
    """
    found = []
    for race in rows:
        if (race["strategy"], race["trials_allowed"]) != ("race", None):
            continue
        for rival in NAMES:
            points = sorted(
                (row["seconds"] / race["seconds"], row["geomean_regret"])
                for row in rows
                if rival_of(row) == rival and row["problems"] == race["problems"]
            )
            level = next((times for times, regret in points if regret <= race["geomean_regret"]), math.inf)
            before = [point for point in points if point[0] < level]
            found.append(
                {
                    "rival": rival,
                    "problems": race["problems"],
                    "race_regret": race["geomean_regret"],
                    "behind_at": round(before[-1][0], 2) if before else None,
                    "regret_there": before[-1][1] if before else None,
                    "level_at": round(level, 2) if level < math.inf else None,
                }
            )
    return found
