"""Fit the constants of `any_height_split_model` to recorded trials, and say how well it ranks them, also held out.

    python benchmarks/fit/any_height_split.py --out RESULT.json

The trials are of bfloat16 products whose tiles are few, in the layouts nt, nn and tn: of each the 40 configs that an
earlier version of the model thought likeliest. `over_fastest` is how much longer the config with the least estimate
takes than the fastest one, the geometric mean and the most: over all problems with today's constants and with those
fitted here, and with constants fitted to the problems of four fifths, on the other fifth. `tried` is the same of the
fastest of as many as a search tries. Needs scipy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import any_height
import numpy as np
from any_height import NEAR, Trial, fastest, summary
from scipy.optimize import least_squares

from tuner.kernels.gemm.hopper import any_height_split_model as model
from tuner.kernels.gemm.hopper.any_height_split_space import BEST, NAME

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import ROOT, database

TRIALS = ROOT / "data" / "scattered-split-h200.db.xz"
FOLDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    _, recorded = database(TRIALS)
    trials = [
        Trial(problem, config, us)
        for problem, times in recorded.items()
        for config, us in times.items()
        if config.kernel == NAME
    ]
    problems = sorted({trial.problem for trial in trials}, key=str)
    constants, held = fitted(trials), list[float]()
    for fold in range(FOLDS):
        out = {*problems[fold::FOLDS]}
        others = fitted([trial for trial in trials if trial.problem not in out])
        held += losses([trial for trial in trials if trial.problem in out], others, 1)
    result = {
        "constants": dict(zip(model.Constants._fields, (round(float(each), 3) for each in constants), strict=True)),
        "configs": len(trials),
        "problems": len(problems),
        "over_fastest": {
            "today": summary(losses(trials, model.CONSTANTS, 1)),
            "fitted": summary(losses(trials, constants, 1)),
            "held out": summary(held),
            "tried": summary(losses(trials, model.CONSTANTS, BEST)),
        },
    }
    print(json.dumps(result, indent=1))
    record.write(args.out, result)


def fitted(trials: Sequence[Trial]) -> model.Constants:
    least = fastest(trials)
    weights = np.array([1 if trial.us < NEAR * least[trial.problem] else 0.3 for trial in trials])
    us = np.array([trial.us for trial in trials])

    def errors(values: Sequence[float]) -> Any:
        return weights * np.log([modelled_us(one, model.Constants(*values)) for one in trials] / us)

    start = np.array(model.CONSTANTS)
    found = least_squares(errors, start, x_scale=start, loss="soft_l1", f_scale=0.05, bounds=(0.1 * start, 10 * start))
    return model.Constants(*found.x)


def modelled_us(one: Trial, constants: model.Constants) -> float:
    return model.modelled_us(model.Tile.of(one.config), one.problem, any_height.DEVICE, constants)


def losses(trials: Sequence[Trial], constants: model.Constants, count: int) -> list[float]:
    """By problem, the time of the fastest of the `count` configs with the least estimates over that of all."""
    by_problem, least = defaultdict(list), fastest(trials)
    for trial in trials:
        by_problem[trial.problem].append(trial)
    found = list[float]()
    for problem, ones in by_problem.items():
        chosen = sorted(ones, key=lambda one: modelled_us(one, constants))[:count]
        found.append(min(one.us for one in chosen) / least[problem])
    return found


if __name__ == "__main__":
    main()
