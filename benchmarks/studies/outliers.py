"""How many trials of a run were disturbed: those that took longer than the same trials of other runs, from databases.

    python benchmarks/studies/outliers.py --out RESULT.json ONE.db OTHER.db ...

A trial counts where another database has one of the same config, problem and card; it is an outlier where its median is
more than 10% above the median of the others'. `by_position` has the share for a batch's first config, its second and so
on: trials of one problem with one reading of clock and power are of one batch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import Counter, defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any

from tuner.store.listing import TrialRow
from tuner.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

FAR = 1.1
POSITIONS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("databases", nargs="+", help="what the runs wrote")
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    trials = {Path(path).stem: measured(path) for path in args.databases}
    times: dict[Any, dict[str, float]] = defaultdict(dict)
    for name, them in trials.items():
        for each in them:
            times[key(each)][name] = took_us(each)
    found = {name: disturbed(name, them, times) for name, them in trials.items()}
    for name, row in found.items():
        print(name, row)
    record.write(args.out, {"further_than": FAR, "runs": found})


def measured(path: str) -> list[TrialRow]:
    with Store.open(path, read_only=True) as store:
        trials = [each for each in store.trials() if each.outcome.median_us is not None]
    return sorted(trials, key=lambda each: (str(each.problem), each.trial_id))


def took_us(trial: TrialRow) -> float:
    assert trial.outcome.median_us is not None
    return trial.outcome.median_us


def key(trial: TrialRow) -> Any:
    return trial.device, trial.problem, trial.kernel_version, trial.config


def disturbed(name: str, trials: list[TrialRow], times: dict[Any, dict[str, float]]) -> dict[str, Any]:
    outliers: Counter[int] = Counter()
    compared: Counter[int] = Counter()
    for _, batch in groupby(trials, lambda each: (each.problem, each.outcome.sm_clock_mhz, each.outcome.power_w)):
        for position, each in enumerate(batch):
            others = [us for other, us in times[key(each)].items() if other != name]
            if others:
                place = min(position, POSITIONS)
                compared[place] += 1
                outliers[place] += took_us(each) > FAR * statistics.median(others)
    return {
        "trials": compared.total(),
        "outliers": outliers.total(),
        "share": round(outliers.total() / max(1, compared.total()), 4),
        "by_position": [round(outliers[place] / max(1, compared[place]), 3) for place in range(POSITIONS + 1)],
    }


if __name__ == "__main__":
    main()
