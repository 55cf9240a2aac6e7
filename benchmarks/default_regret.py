"""How much slower the default config is than the best one, and what the search space's rules leave out, by a sweep.

    python benchmarks/default_regret.py --db FIRST.db --db SECOND.db --out RESULT.json
    python benchmarks/default_regret.py --trials benchmarks/data/scattered-trials-h200.csv.gz --run 3 --out RESULT.json

Nothing is measured: every figure is a recorded trial, of sweeps in databases or of races that data/ keeps. A rule is
shown by the trials of a sweep that ran without it: how many it would have left out, their compiles, and how near the
best of them came to the fastest.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import record
from recorded import H200, trials

from tuner.kernel import registry
from tuner.store.records import State
from tuner.store.store import Store


def read(path):
    """Device, environment and {problem: {config: outcome}} of a database of one device, oldest trials first."""
    with Store.open(path, read_only=True) as store:
        device, run = store.devices()[0].device, store.runs()[0]
        trials = {}
        for row in reversed(store.trials()):
            trials.setdefault(row.problem, {})[row.config] = row.outcome
    return device, run, trials


def timed(outcomes):
    return {config: o.median_us for config, o in outcomes.items() if o.state is State.COMPLETE}


def regret(problem, device, times):
    """The formula's config against the fastest trial; `regret` is None where that config was not measured."""
    best = min(times, key=times.get)
    default = registry.default_config(problem, device)
    default = registry.find(problem.op, default.kernel).space(problem, device).canonicalize(default)
    took = times.get(default)
    return {
        "problem": str(problem),
        "default": default.label,
        "default_us": took and round(took, 3),
        "best": best.label,
        "best_us": round(times[best], 3),
        "regret": took and round(took / times[best], 4),
    }


def left_out(device, trials):
    """For each rule of today's space that rejects a recorded config: how many, what they cost, how near they came."""
    rules, seen = {}, set()
    for problem, outcomes in trials.items():
        specs = {spec.name: spec for spec in registry.serving(problem, device)}
        spaces = {name: spec.space(problem, device) for name, spec in specs.items()}
        times = timed(outcomes)
        fastest = min(times.values())
        for config, outcome in outcomes.items():
            spec, space = specs[config.kernel], spaces[config.kernel]
            said = "same program" if space.canonicalize(config) != config else space.rejection(config)
            if said is None:
                continue
            rule = rules.setdefault(
                said.split(":")[0], {"trials": 0, "binaries": 0, "compile_s": 0.0, "spilling": 0, "nearest": None}
            )
            rule["trials"] += 1
            if config in times:
                rule["nearest"] = round(min(times[config] / fastest, rule["nearest"] or float("inf")), 4)
            binary = spec.compile_class(problem, config)
            if binary not in seen:
                seen.add(binary)
                rule["binaries"] += 1
                rule["spilling"] += bool(outcome.resources.spill_bytes)
                rule["compile_s"] = round(rule["compile_s"] + (outcome.resources.compile_ms or 0) / 1e3, 2)
    return rules


def judge(path):
    device, run, found = read(path)
    rows = [regret(problem, device, timed(outcomes)) for problem, outcomes in found.items()]
    about = {"database": Path(path).name, "device": device.slug, "environment": run.environment}
    return about | summary(rows) | {"left_out_by": left_out(device, found), "rows": rows}


def judge_trials(path, run):
    rows = [regret(problem, H200, times) for problem, times in trials(path, run).items()]
    return {"trials": Path(path).name, "run": run, "device": H200.slug, **summary(rows), "rows": rows}


def summary(rows):
    known = [row["regret"] for row in rows if row["regret"]]
    # A grid over the constants of `pointer`'s formula on the even rows alone picks those it has; the odd rows are the
    # check. What the formula takes into account, and its order of ties, were settled with all rows in view.
    halves = [[row["regret"] for row in rows[start::2] if row["regret"]] for start in (0, 1)]
    for row in rows:
        print(f"{row['regret'] or 0:7.3f}  {row['problem']:44} {row['default']:44} best: {row['best']}")
    found = {
        "problems": len(rows),
        "default_not_measured": len(rows) - len(known),
        "geomean_regret": round(record.geomean(known), 4),
        "worst_regret": max(known),
        "geomean_regret_even_rows": round(record.geomean(halves[0]), 4),
        "geomean_regret_odd_rows": round(record.geomean(halves[1]), 4),
    }
    for name, value in found.items():
        print(f"{name:26} {value}")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", action="append", default=[])
    parser.add_argument("--trials")
    parser.add_argument("--run", action="append", default=[], help="which of the runs that --trials holds")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    sweeps = [judge(path) for path in args.db]
    sweeps += [judge_trials(args.trials, run) for run in args.run if args.trials]
    if not sweeps:
        parser.error("name a sweep: --db FILE.db, or --trials FILE.csv.gz and --run NUMBER")
    record.write(args.out, {"figures": "recorded trials; this script needs no GPU", "sweeps": sweeps})


if __name__ == "__main__":
    main()
