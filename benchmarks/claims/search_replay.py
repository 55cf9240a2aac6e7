"""Replays strategies of `tuner run` on recorded landscapes: how close they come, and what that costs the GPU.

    python benchmarks/claims/search_replay.py --held-out --out RESULT.json --plot RESULT.png

The search and its finals are the product's own code; only the measuring is replaced (replay.py). Random draws see the
same trials at the same price, with the race's finals. Problems of suites/held-out.csv were not replayed while the
search was designed; no portfolio holds a problem's own winner for that reason.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from tuner.problem import suite
from tuner.sweep.race import RACE
from tuner.sweep.strategies import EXHAUSTIVE, RANDOM

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import DATA, ROOT, landscapes
from replay import Course, Won, play

FEW = 16
"""Trials of a race that may not have more."""
DRAWN = (128, 2048)
"""Trials of random draws."""
DRAWS = dataclasses.replace(RANDOM, drop=RACE.drop, finalists=RACE.finalists, margin=RACE.margin)
_SAME = 1.01
"""Winners whose times are closer than this agree."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=str(DATA))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--held-out", action="store_true", help="these problems too: not while the search is designed")
    parser.add_argument("--out")
    parser.add_argument("--plot")
    args = parser.parse_args()
    held = set(suite.load(str(ROOT / "suites" / "held-out.csv")))
    recorded = landscapes(args.data)
    design = [land for land in recorded if land.problem not in held]
    lands = sorted(recorded if args.held_out else design, key=lambda land: land.problem.shape)
    curves, outside = defaultdict(list), {}  # problems whose fastest recorded config no search can find any more
    winners = [[] for _ in range(args.seeds)]
    for land in lands:
        course = Course(land, [other for other in design if other is not land])
        exhaustive = play(course, EXHAUSTIVE)
        about = {"problem": land.label, "held_out": land.problem in held, "exhaustive_s": exhaustive["seconds"]}
        if course.best_us > land.best_us:
            outside[land.label] = round(course.best_us / land.best_us, 4)
        curves["exhaustive", 0].append(about | exhaustive)
        for seed in range(args.seeds):
            for key, found in searches(course, seed=seed, winners=winners[seed]):
                curves[key].append(about | {"seed": seed} | found)
    rows, agreed = table(curves), agreement(curves["race", 0])
    print(*rows, agreed, outside, sep="\n")
    if args.plot:
        draw(rows, args.plot)
    if args.out:
        record.write(args.out, {"rows": rows, "agreement": agreed, "best_of_space_over_best": outside})


def searches(course, *, seed, winners):
    """Searches of one problem; the winner of the race in a suite is added to `winners`."""
    found = play(course, RACE, seed=seed, winners=winners)
    winners.append(Won(course.land.problem, found["winner"]))
    yield ("race in a suite", 0), found
    yield ("race", 0), play(course, RACE, seed=seed)
    yield ("race", FEW), play(course, RACE, trials=FEW, seed=seed)
    for budget in DRAWN:
        yield ("random", budget), play(course, DRAWS, trials=budget, seed=seed)


def table(curves):
    """One row a strategy, its trials and part of the problems."""
    rows = []
    for (name, budget), found in sorted(curves.items()):
        for part in ("design", "held out"):
            chosen = [row for row in found if row["held_out"] == (part == "held out")]
            if chosen:
                rows.append({"strategy": name, "trials_allowed": budget or None, "problems": part, **summary(chosen)})
    return rows


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


def agreement(races):
    """Two runs of a problem: how often their winners' times differ by less than 1%, by part."""
    found = defaultdict(list)
    for one, two in itertools.combinations(races, 2):
        if one["problem"] == two["problem"]:
            ratio = max(one["ratio"], two["ratio"]) / min(one["ratio"], two["ratio"])
            found["held out" if one["held_out"] else "design"].append(ratio < _SAME)
    return {part: round(statistics.mean(same), 4) for part, same in found.items()}


def draw(rows, path):
    """Regret over the share of the exhaustive GPU seconds, one line a strategy, design and held out apart."""
    from tuner.report.vega import png

    axis = {"format": "~g"}
    x = {"field": "share", "type": "quantitative", "scale": {"type": "log"}, "axis": axis}
    y = {"field": "regret", "type": "quantitative", "scale": {"type": "log"}, "axis": axis}
    values = [
        {"part": row["problems"], "strategy": row["strategy"], "share": row["share_of_exhaustive"]}
        | {"regret": 100 * row["geomean_regret"]}
        for row in rows
        if row["strategy"] in ("random", "race", "exhaustive") and row["geomean_regret"] > 0
    ]
    encoding = {
        "x": x | {"title": "GPU seconds, share of exhaustive"},
        "y": y | {"title": "regret, % (geometric mean)"},
        "color": {"field": "strategy", "type": "nominal"},
    }
    line = {"mark": {"type": "line", "point": True}, "encoding": encoding, "width": 420, "height": 280}
    facet = {"column": {"field": "part", "type": "nominal"}}
    Path(path).write_bytes(png({"data": {"values": values}, "facet": facet, "spec": line}))


if __name__ == "__main__":
    main()
