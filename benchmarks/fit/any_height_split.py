"""Fit the constants of `any_height_split_model` to recorded trials, and say how well it ranks them, also held out.

    python benchmarks/fit/any_height_split.py --out RESULT.json

The trials are of bfloat16 products whose tiles are few, in the layouts nt, nn and tn: of each the 40 configs that an
earlier version of the model thought likeliest; and of 64 others, of 65 to 256 rows, the likeliest ten
(benchmarks/studies/split_few_rows.py). Those that the space refuses by now are left out. `over_fastest` is how much
longer the config with the least estimate takes than the fastest one, the geometric mean and the most: over all problems
with today's constants and with those fitted here, and with constants fitted to the problems of four fifths, on the
other fifth. `tried` is the same of the fastest of as many as a search tries. Needs scipy.
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
from any_height import Trial, fastest, summary
from scipy.optimize import least_squares

from tuner import Config, Problem
from tuner.kernels.gemm.any_tile import any_height_split_model as model
from tuner.kernels.gemm.any_tile.any_height_split_space import BEST, NAME
from tuner.kernels.gemm.hopper.cluster_sizes import room
from tuner.kernels.space.refinements import NUM_CTAS

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import ROOT, database

TRIALS = ROOT / "data" / "scattered-split-h200.db.xz"
OF_FEW_ROWS = ROOT / "results" / "split-few-rows-h200.json"
FOLDS = 5
NEAR, OTHERS = 1.3, 0.3
"""A trial within so much of its problem's fastest weighs 1, others less."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    trials = recorded()
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


def recorded() -> list[Trial]:
    _, times = database(TRIALS)
    of_few_rows = json.loads(OF_FEW_ROWS.read_text())["found"]
    trials = [
        *(Trial(problem, config, us) for problem, each in times.items() for config, us in each.items()),
        *(
            Trial(Problem.from_fields(each["fields"]), Config(NAME, **parameters), us)
            for each in of_few_rows
            for parameters, us in each["split"]
        ),
    ]
    return [trial for trial in trials if trial.config.kernel == NAME and run_at_once(trial)]


def run_at_once(trial: Trial) -> bool:
    """Whether all clusters surely run at once, as the space asks."""
    ctas = trial.config.integer(NUM_CTAS, 1)
    return model.Tile.of(trial.config).clusters(trial.problem) <= room(ctas, any_height.DEVICE) // ctas


def fitted(trials: Sequence[Trial], today: model.Constants = model.CONSTANTS) -> model.Constants:
    """The constants that fit best; those that are 0 today stay so."""
    least = fastest(trials)
    weights = np.array([1 if trial.us < NEAR * least[trial.problem] else OTHERS for trial in trials])
    us = np.array([trial.us for trial in trials])
    names = [name for name, value in today._asdict().items() if value]

    def errors(values: Sequence[float]) -> Any:
        constants = today._replace(**dict(zip(names, values, strict=True)))
        return weights * np.log([modelled_us(one, constants) for one in trials] / us)

    start = np.array([getattr(today, name) for name in names])
    found = least_squares(errors, start, x_scale=start, loss="soft_l1", f_scale=0.05, bounds=(0.1 * start, 10 * start))
    return today._replace(**dict(zip(names, map(float, found.x), strict=True)))


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
