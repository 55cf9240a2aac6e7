"""Make a table of each problem's fastest trial of a recorded race: what `tuner verify --regret` can hold out again.

    python benchmarks/table_of_trials.py --run 3 --out FOLDER
    tuner verify FOLDER --regret --suite benchmarks/suites/unseen.csv --json > RESULT.json

How much faster a winner was than the default is asked of today's formula: of its config in the same race, where that
tried it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from recorded import H200, ROOT, trials

from tuner.hardware.device import Environment
from tuner.kernel import registry
from tuner.lookup.row import Provenance, Row
from tuner.lookup.table import Table

RACES = {"3": Environment("3.7.1", "2.11.0+cu130", "cuda 13.0", "580.159.04", "3.12.3")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", default=str(ROOT / "data" / "unseen-trials-h200.csv.gz"))
    parser.add_argument("--run", default="3", choices=sorted(RACES), help="which of the races that --trials holds")
    parser.add_argument("--out", required=True, help="a new folder")
    args = parser.parse_args()
    made = Provenance(RACES[args.run], 1, "0.1.0")
    rows = tuple(row(problem, times, made) for problem, times in trials(args.trials, args.run).items())
    folder = Path(args.out)
    folder.mkdir(parents=True)
    print(Table("matmul", H200, "2026-11-22T00:00:00Z", rows).write(folder))


def row(problem, times, made):
    best = min(times, key=times.get)
    default = registry.default_config(problem, H200)
    default = registry.find(problem.op, default.kernel).space(problem, H200).canonicalize(default)
    gain = times[default] / times[best] if default in times else None
    version = registry.find(problem.op, best.kernel).version
    return Row(problem, best, version, made, times[best], gain, None, 1)


if __name__ == "__main__":
    main()
