"""Fit the models of kernels for scales of blocks to recorded trials, and say how well they rank, also held out.

    python benchmarks/fit/block_scaled.py --out RESULT.json

The trials are those of benchmarks/data/near-blocks-h200.db.xz: of `any_height_split` all whose clusters run at once, of
`block_scaled_warp_specialized` those that its model knows. `over_fastest` is how much longer the config with the least
estimate takes than the fastest one of the kernel, the geometric mean and the most: with today's constants, with those
fitted here, and with constants fitted to the problems of four fifths, on the other fifth.
`both` is the same of the two kernels' configs together, over the fastest of any kernel; `before` is of the second
kernel's configs by the cost model alone, as defaults were before. `narrow` is `both` of problems with up to 256
columns, to which nothing is fitted (benchmarks/data/narrow-blocks-h200.db.xz), over the fastest trial of any kernel.
`rank` is the fastest trial's among those of all kernels in the order of today's estimates: the median and nine in ten.
Needs scipy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import any_height
import any_height_split
import numpy as np
from any_height import Trial, fastest, summary
from any_height_split import FOLDS, NEAR, OTHERS
from scipy.optimize import least_squares

from tuner import Config, Problem
from tuner.kernel import registry
from tuner.kernels.gemm.any_tile import any_height_split_model as split_model
from tuner.kernels.gemm.any_tile import any_height_split_space as split_space
from tuner.kernels.gemm.block_scaled import hopper, hopper_model

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import ROOT, database

TRIALS, NARROW = (ROOT / "data" / f"{name}-blocks-h200.db.xz" for name in ("near", "narrow"))
Estimate = Callable[[Trial, Any], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    _, times = database(TRIALS)
    _, narrow = database(NARROW)
    split, many = trials_of(times)
    beyond = {one.problem for one in many}
    result = {
        split_space.NAME: told(split, fitted_split, any_height_split.modelled_us, split_model.SCALED),
        hopper.NAME: told(many, fitted_many, modelled_us, hopper_model.CONSTANTS),
        "both": {
            "today": summary(chosen([one for one in split if one.problem in beyond] + many, times, estimate_us)),
            "before": summary(chosen(many, times, lambda one: terms_of(one).us)),
        },
        "narrow": narrowed(narrow),
        "rank": [float(each) for each in np.percentile(ranks(times), (50, 90))],
    }
    print(json.dumps(result, indent=1))
    record.write(args.out, {"figures": "recorded trials; this script needs no GPU", **result})


def trials_of(times: Mapping[Problem, Mapping[Config, float]]) -> tuple[list[Trial], list[Trial]]:
    """The trials of `any_height_split`, and those of the other kernel that its model knows."""
    trials = [Trial(problem, config, us) for problem, each in times.items() for config, us in each.items()]
    split = [one for one in trials if one.config.kernel == split_space.NAME and any_height_split.run_at_once(one)]
    many = [one for one in trials if one.config.kernel == hopper.NAME and hopper_model.knows(one.problem)]
    return split, many


def narrowed(times: Mapping[Problem, Mapping[Config, float]]) -> dict[str, Any]:
    """How the estimates rank the configs of problems with more rows than the calibration knows and few columns."""
    split, many = trials_of(times)
    known = [one for one in split + many if hopper_model.knows(one.problem)]
    return {
        "today": summary(chosen(known, times, estimate_us)),
        hopper.NAME: summary(losses(many, modelled_us, hopper_model.CONSTANTS)),
    }


def told(trials: Sequence[Trial], fit: Callable[[Sequence[Trial]], Any], estimate: Estimate, today: Any) -> Any:
    """What a kernel's constants are, and how they rank its configs."""
    problems = sorted({trial.problem for trial in trials}, key=str)
    constants, held = fit(trials), list[float]()
    for fold in range(FOLDS):
        out = {*problems[fold::FOLDS]}
        others = fit([trial for trial in trials if trial.problem not in out])
        held += losses([trial for trial in trials if trial.problem in out], estimate, others)
    return {
        "constants": {name: round(float(value), 4) for name, value in constants._asdict().items()},
        "configs": len(trials),
        "problems": len(problems),
        "over_fastest": {
            "today": summary(losses(trials, estimate, today)),
            "fitted": summary(losses(trials, estimate, constants)),
            "held out": summary(held),
        },
    }


def losses(trials: Sequence[Trial], estimate: Estimate, constants: Any) -> list[float]:
    least = fastest(trials)
    times: dict[Problem, dict[Config, float]] = {problem: {} for problem in least}
    for one in trials:
        times[one.problem][one.config] = one.us
    return chosen(trials, times, lambda one: estimate(one, constants))


def chosen(
    trials: Sequence[Trial], times: Mapping[Problem, Mapping[Config, float]], estimate: Callable[[Trial], float]
) -> list[float]:
    """By problem the time of the config with the least estimate over that of the fastest of all `times`."""
    by_problem = defaultdict[Problem, list[Trial]](list)
    for one in trials:
        by_problem[one.problem].append(one)
    found = list[float]()
    for problem, ones in by_problem.items():
        picked = min(ones, key=lambda one: (estimate(one), tie(one.config)))
        found.append(picked.us / min(times[problem].values()))
    return found


def ranks(times: Mapping[Problem, Mapping[Config, float]]) -> list[int]:
    """By problem with more rows than the calibration knows: its fastest trial's rank among all by their estimates."""
    found = list[int]()
    for problem, each in times.items():
        if hopper_model.knows(problem):
            estimates = {
                config: registry.find("matmul", config.kernel).estimate_us(config, problem, any_height.DEVICE)
                for config in each
            }
            order = sorted(each, key=lambda config: estimates[config])
            found.append(1 + order.index(min(each, key=lambda config: each[config])))
    return found


def tie(config: Config) -> tuple[int, ...]:
    """As the kernels order equal estimates; no two kernels' are equal."""
    return hopper.ties(config) if config.kernel == hopper.NAME else ()


def fitted_split(trials: Sequence[Trial]) -> split_model.Constants:
    return any_height_split.fitted(trials, split_model.SCALED)


def terms_of(one: Trial) -> Any:
    return hopper.terms(one.config, one.problem, any_height.DEVICE)


def modelled_us(one: Trial, constants: hopper_model.Constants) -> float:
    return hopper_model.modelled_us(one.config, terms_of(one), one.problem, any_height.DEVICE, constants)


def estimate_us(one: Trial) -> float:
    """As defaults are chosen."""
    module = hopper if one.config.kernel == hopper.NAME else split_space
    return module.estimate_us(one.config, one.problem, any_height.DEVICE)


def fitted_many(trials: Sequence[Trial]) -> hopper_model.Constants:
    least, terms = fastest(trials), [terms_of(one) for one in trials]
    weights = np.array([1 if one.us < NEAR * least[one.problem] else OTHERS for one in trials])
    us = np.array([one.us for one in trials])

    def errors(values: Sequence[float]) -> Any:
        constants = hopper_model.Constants(*values)
        modelled = [
            hopper_model.modelled_us(one.config, each, one.problem, any_height.DEVICE, constants)
            for one, each in zip(trials, terms, strict=True)
        ]
        return weights * np.log(modelled / us)

    start = np.array(hopper_model.CONSTANTS)
    found = least_squares(errors, start, x_scale=start, loss="soft_l1", f_scale=0.05, bounds=(0.1 * start, 10 * start))
    return hopper_model.Constants(*found.x)


if __name__ == "__main__":
    main()
