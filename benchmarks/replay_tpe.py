"""Optuna's TPE on a recorded landscape, at the price of our own searches (replay.py)."""

from __future__ import annotations

import math
from collections import defaultdict

from replay import Bench, judged

from tuner.sweep.search import RANDOM


def play(course, *, budgets, seed):
    """TPE over the kernel and, under it, the kernel's own parameters; one study, looked at after each budget.

    The default comes first, as it would be used, and finals of our own come last. What is no config is taken to be the
    nearest one of that kernel, and a config that was measured costs nothing again: both are kinder than what its users
    get.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    bench, job = Bench(course.land, RANDOM, seed), course.job(RANDOM, seed=seed)

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
    found = []
    for budget in budgets:
        for _ in range(3 * budget):
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
        found.append((budget, judged(job, bench)))
        bench.spent_s = searched_s
    return found


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
