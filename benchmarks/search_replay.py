"""Replays strategies of `tuner run` on recorded landscapes: how close they come, and what that costs the GPU.

    python benchmarks/search_replay.py --held-out --out RESULT.json --plot RESULT.png

The search is the product's own code; only the measuring is replaced, by draws from what was recorded
(benchmarks/landscapes.py). A trial costs what entering a config took on that problem (launch, check, capture) and what
its replays take; the finals cost their rounds. Optuna's TPE and random draws see the same trials at the same price, the
default first, as they would be used: the best of n trials after one round of finals. Problems of suites/held-out.csv
were not replayed until the search was done; no portfolio holds a problem's own winner for that reason.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import statistics
from collections import defaultdict
from pathlib import Path

import record

from tuner import registry, suite
from tuner.config import Config
from tuner.device import Device
from tuner.nearness import distance
from tuner.problem import Problem
from tuner.records import Outcome, State
from tuner.sweep.race import RACE
from tuner.sweep.search import EXHAUSTIVE, RANDOM, Field

ROOT = Path(__file__).parent
BUDGETS = (16, 32, 64, 128, 256, 512)
_ROUNDS = 30
_SCATTER = 0.004
"""Of a paired median over 30 rounds, between processes (TRITON.md: 0.4 to 0.5%)."""
H200 = Device("nvidia-h200-sm90-132", "NVIDIA H200", "nvidia", "sm_90", 132, 150_000_000_000, 232_448, 62_914_560)


class Landscape:
    """One problem's recorded times.

    Attributes:
        problem, label: which.
        us: every config's time; of those measured again side by side, the median of rounds without what moved a round
            as a whole.
        best_us: the fastest of those.
        scatter: standard deviation of the log of one replay, beside the others of its round.
        enter_s, replay_s: what a config costs to enter, and one replay.
    """

    def __init__(self, entry, configs):
        self.problem, self.label = Problem.from_fields(entry["problem"]), entry["label"]
        self.enter_s, self.replay_s = entry["enter_ms"] / 1e3, entry["replay_ms"] / 1e3
        swept = dict(zip(entry["configs"], entry["us"], strict=True))
        logs = {int(number): [math.log(us) for us in times] for number, times in entry["rounds"].items()}
        count = min(len(times) for times in logs.values())
        moved = [statistics.median(times[i] for times in logs.values()) for i in range(count)]
        level = statistics.median(moved)
        flat = {number: [t - m + level for t, m in zip(times, moved, strict=False)] for number, times in logs.items()}
        again = {number: math.exp(statistics.median(times)) for number, times in flat.items()}
        ratio = statistics.median(swept[number] / us for number, us in again.items() if number in swept)
        self.scatter = statistics.median(statistics.stdev(times) for times in flat.values())
        self.best_us = min(again.values())
        truth = {number: max(us / ratio, self.best_us) for number, us in swept.items()} | again
        self.us = {configs[number]: us for number, us in truth.items()}

    def exhaustive_s(self):
        """What trying everything costs: three replays of what is within 1.5 of the fastest, one of the rest, finals."""
        near = sum(us <= 1.5 * self.best_us for us in self.us.values())
        replays = len(self.us) + 2 * near
        return len(self.us) * self.enter_s + replays * self.replay_s + self.finals_s(12)

    def finals_s(self, contestants):
        """Every contestant captured once, then the rounds."""
        return contestants * (self.enter_s + _ROUNDS * self.replay_s)


def landscapes(path):
    document = json.loads(gzip.decompress(Path(path).read_bytes()))
    configs = [Config(kernel, **parameters) for kernel, parameters in document["configs"]]
    return [Landscape(entry, configs) for entry in document["problems"]]


class Replay:
    """One problem searched once: draws times, keeps the bill."""

    def __init__(self, landscape, strategy, seed):
        self.land, self.strategy, self.random = landscape, strategy, random.Random(seed)
        self.outcomes, self.spent_s, self.best_us = {}, 0.0, math.inf

    def measure(self, wave):
        """As the worker does: each once, then again what stays within the strategy's factors of the fastest."""
        samples = {config: [self.draw(config)] for config in wave if config in self.land.us}
        for config in wave:
            if config not in samples:
                self.outcomes[config] = Outcome(State.INVALID, "not in the landscape")
        self.best_us = min([self.best_us, *(times[0] for times in samples.values())])
        for factor in self.strategy.drop:
            for config, times in samples.items():
                if min(times) <= factor * self.best_us:
                    times.append(self.draw(config))
        for config, times in samples.items():
            self.outcomes[config] = Outcome(State.COMPLETE, median_us=statistics.median(times), samples=len(times))
            self.spent_s += self.land.enter_s + len(times) * self.land.replay_s
        self.best_us = min([self.best_us, *(o.median_us for o in self.outcomes.values() if o.median_us)])

    def draw(self, config):
        """One replay's figure."""
        return self.land.us[config] * math.exp(self.random.gauss(0, self.land.scatter))

    def finals(self, default):
        """The winner of paired rounds among the leaders and the default: its true time over the best, all paid for."""
        complete = sorted((o.median_us, config) for config, o in self.outcomes.items() if o.median_us)
        near = [config for us, config in complete if us <= self.strategy.margin * complete[0][0]]
        near = list(dict.fromkeys([*near[: self.strategy.finalists], default]))
        near = [config for config in near if config in self.land.us]
        self.spent_s += self.land.finals_s(len(near) + 1)
        winner = min(near, key=lambda config: self.land.us[config] * math.exp(self.random.gauss(0, _SCATTER)))
        return self.land.us[winner] / self.land.best_us, winner


class Course:
    """What every strategy is given of one problem, in the order the problems came.

    Attributes:
        field: as `tuner run` makes it.
        default: the formula's config.
    """

    def __init__(self, land, others):
        self.land = land
        self.specs = {spec.name: spec for spec in registry.serving(land.problem, H200)}
        spaces = {name: spec.space(land.problem, H200) for name, spec in self.specs.items()}
        default = registry.default_config(land.problem, H200)
        self.default = spaces[default.kernel].canonicalize(default)
        self.configs = [config for space in spaces.values() for config in space.configs()]
        self.portfolio = [config for config, _ in covering(others)]

    def field(self, *, trials, seed, winners=()):
        """The field, with the winners of problems that were decided before."""
        ranked = sorted(
            (distance(self.land.problem, problem, H200.sm_count), config)
            for problem, config in winners
            if problem.with_shape(1, 1, 1) == self.land.problem.with_shape(1, 1, 1)
        )
        near = list(dict.fromkeys(config for _, config in ranked))
        return Field(
            self.land.problem,
            H200,
            self.specs,
            self.configs,
            self.default,
            trials=trials,
            seed=seed,
            nearby=lambda: near,
            portfolio=self.portfolio,
        )


def covering(lands, *, within=1.02, most=24):
    """Greedy set cover: configs that are within `within` of the best on the most problems not yet covered.

    Args:
        lands: recorded problems.
        within: of the best: what counts as covered.
        most: configs at most.

    Returns:
        Each config, and the numbers of the problems that it is the first to cover.
    """
    covers = defaultdict(set)
    for number, land in enumerate(lands):
        for config, us in land.us.items():
            if us <= within * land.best_us:
                covers[config].add(number)
    chosen, open_ = [], set(range(len(lands)))
    while covers and open_ and len(chosen) < most:
        config = min(covers, key=lambda config: (-len(covers[config] & open_), config))
        if not covers[config] & open_:
            break
        chosen.append((config, sorted(covers[config] & open_)))
        open_ -= covers[config]
    return chosen


def play(course, strategy, *, trials, seed, winners=()):
    """One search of one problem: regret, GPU seconds, configs measured, the winner."""
    replay = Replay(course.land, strategy, seed)
    search = strategy.start(course.field(trials=trials, seed=seed, winners=winners))
    while wave := search.propose(replay.outcomes):
        replay.measure(wave)
    ratio, winner = replay.finals(course.default)
    return {"ratio": ratio, "seconds": replay.spent_s, "trials": len(replay.outcomes), "winner": winner}


def play_tpe(course, *, budgets, seed):
    """Optuna's TPE over the kernel and, under it, the kernel's own parameters; one study, looked at after each budget.

    What is no config is taken to be the nearest one of that kernel, and a config that was measured costs nothing again:
    both are kinder than what its users get.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    replay = Replay(course.land, RANDOM, seed)
    replay.measure([course.default])
    known = [config for config in course.configs if config in course.land.us]
    places, values = places_of(known), defaultdict(lambda: defaultdict(set))
    for config in known:
        for name, value in config.pairs:
            values[config.kernel][name].add(value)
    nearest = {}
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    found = []
    for budget in budgets:
        for _ in range(3 * budget):
            if len(replay.outcomes) >= min(budget, len(known)):
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
            if config not in replay.outcomes:
                replay.measure([config])
            study.tell(trial, math.log(replay.outcomes[config].median_us))
        searched_s = replay.spent_s
        ratio, winner = replay.finals(course.default)
        row = {"ratio": ratio, "seconds": replay.spent_s, "trials": len(replay.outcomes), "winner": winner}
        found.append((budget, row))
        replay.spent_s = searched_s
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


def summary(rows):
    """Of searches: how near, how often, at what share of the exhaustive seconds."""
    ratios = [row["ratio"] for row in rows]
    return {
        "searches": len(rows),
        "geomean_regret": round(record.geomean(ratios) - 1, 5),
        "within_1_percent": round(sum(ratio <= 1 / 0.99 for ratio in ratios) / len(ratios), 4),
        "worst": round(max(ratios), 4),
        "seconds": round(statistics.mean(row["seconds"] for row in rows), 3),
        "share_of_exhaustive": round(sum(row["seconds"] for row in rows) / sum(row["exhaustive_s"] for row in rows), 4),
        "trials": round(statistics.mean(row["trials"] for row in rows), 1),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=str(ROOT / "data" / "landscapes-h200.json.gz"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--held-out", action="store_true", help="these problems too: not while the search is designed")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)))
    parser.add_argument("--tpe-seeds", type=int, default=1, help="searches of each problem by TPE, which takes minutes")
    parser.add_argument("--tpe-trials", type=int, default=128, help="of one, at most")
    parser.add_argument("--out")
    parser.add_argument("--plot")
    args = parser.parse_args()
    held = set(suite.load(str(ROOT / "suites" / "held-out.csv")))
    recorded = landscapes(args.data)
    design = [land for land in recorded if land.problem not in held]
    lands = recorded if args.held_out else design
    budgets = [int(budget) for budget in args.budgets.split(",")]
    curves = defaultdict(list)
    order = sorted(lands, key=lambda land: land.problem.shape)
    courses = {land.label: Course(land, [other for other in design if other is not land]) for land in order}
    for seed in range(args.seeds):
        winners = []
        for land in order:
            course = courses[land.label]
            about = {"problem": land.label, "held_out": land.problem in held, "exhaustive_s": land.exhaustive_s()}

            found = play(course, RACE, trials=None, seed=seed, winners=winners)
            winners.append((land.problem, found["winner"]))
            curves["race in a suite", 0].append(about | found)
            curves["race", 0].append(about | play(course, RACE, trials=None, seed=seed))
            for budget in budgets:
                curves["random", budget].append(about | play(course, RANDOM, trials=budget, seed=seed))
                if 16 <= budget <= 128:
                    curves["race", budget].append(about | play(course, RACE, trials=budget, seed=seed))
            small = [budget for budget in budgets if budget <= args.tpe_trials]
            for budget, row in play_tpe(course, budgets=small, seed=seed) if seed < args.tpe_seeds else ():
                curves["tpe", budget].append(about | row)
            if seed == 0:
                curves["exhaustive", 0].append(about | play(course, EXHAUSTIVE, trials=None, seed=seed))
    rows = []
    for (name, budget), searches in sorted(curves.items()):
        for part in ("design", "held out"):
            chosen = [row for row in searches if row["held_out"] == (part == "held out")]
            if chosen:
                rows.append({"strategy": name, "trials_allowed": budget or None, "problems": part, **summary(chosen)})
    for row in rows:
        print(" ".join(f"{value!s:>15}" for value in row.values()))
    for row in curves["race", 0]:
        if row["ratio"] > 1.01:
            print(f"race: {row['problem']} {row['ratio']:.3f} after {row['trials']} trials, {row['winner'].label}")
    if args.plot:
        draw(rows, args.plot)
    if args.out:
        document = {"rows": rows}
        record.write(args.out, document)


def draw(rows, path):
    """Regret over the share of the exhaustive GPU seconds, one line a strategy, design and held out apart."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    parts = sorted({row["problems"] for row in rows})
    figure, axes = plt.subplots(1, len(parts), figsize=(6 * len(parts), 4), squeeze=False, sharey=True)
    for axis, part in zip(axes[0], parts, strict=True):
        for name in ("random", "tpe", "race", "exhaustive"):
            line = sorted(
                (row["share_of_exhaustive"], 100 * row["geomean_regret"])
                for row in rows
                if row["strategy"] == name and row["problems"] == part
            )
            axis.plot(*zip(*line, strict=True), marker="o", label=name)
        axis.set(xscale="log", yscale="log", title=part, xlabel="GPU seconds, share of exhaustive")
        axis.grid(alpha=0.3, which="both")
    axes[0][0].set_ylabel("regret, % (geometric mean)")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
