"""Fit the constants of `any_height.estimate_us` to what studies measured, and say how well it ranks, also held out.

    python benchmarks/fit/any_height.py --out RESULT.json

The constants are fitted to bfloat16. `fp8_pace` is how much longer fp8 takes than they say, and `fp8` how they rank it.
Studies ran on several cards of one model, of which one was a few percent slower; what both measured says by how much.
`meeting_us` is not fitted but chosen, by what `layouts` loses, races of nn and nt with few tiles or a short K
(benchmarks/data/scattered-layouts-h200.db.xz), without losing more elsewhere.
`over_fastest` is how much longer the config with the least estimate takes than the fastest one: the geometric mean and
the most, over all problems, and with the constants fitted to the other weights alone. Needs scipy.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from tuner import Config, Problem
from tuner.hardware.device import KNOWN, Device
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gemm.any_tile import any_height_model as model
from tuner.kernels.gemm.any_tile.any_height_space import BUSY, for_many_rows, space, supports
from tuner.kernels.gemm.any_tile.any_height_tile import NAME, as_computed
from tuner.kernels.gemm.hopper.resources import tiles

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import ROOT, database

RESULTS = ROOT / "results"
LAYOUTS = ROOT / "data" / "scattered-layouts-h200.db.xz"
WITHOUT_CLUSTERS = ("any-height-wide-h200.json",)
"""Studies of before decision 151, when clusters took longer: of these, other trials count."""
TODAY = ("cluster-tiles", "cluster-tiles-again", "cluster-tiles-third", "any-height-again")
FP8 = {"cluster-tiles-fp8": "none", "cluster-tiles-fp8-again": "none"}
FP8 |= {"cluster-tiles-fp8-rows": "row", "cluster-tiles-fp8-rows-again": "row"}
"""Studies of fp8, with the scales of their operands."""
STUDIES = [RESULTS / name for name in (*(f"{name}-h200.json" for name in TODAY), *WITHOUT_CLUSTERS)]
DEVICE = KNOWN["sm_90"]
NEAR = 1.1
"""Configs within this factor of the fastest count in full, others a seventh: the fastest are to be told apart."""


class Trial(NamedTuple):
    problem: Problem
    config: Config
    us: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--study", type=Path, nargs="+", default=STUDIES)
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    trials: list[Trial] = []
    for study in args.study:
        found = trials_in(study, dtype="bf16")
        if study.name in WITHOUT_CLUSTERS:
            found = [trial for trial in found if "num_ctas" not in trial.config]
        trials += at_the_pace_of(trials, found)
    fp8 = [
        trial
        for name, scaling in FP8.items()
        for trial in trials_in(RESULTS / f"{name}-h200.json", dtype="e4m3", scaling=scaling)
    ]
    pace = np.mean([math.log(one.us / modelled_us(one, model.CONSTANTS)) for one in fp8])
    constants = fitted(trials)
    held = []
    for shape in sorted({trial.problem.shape[1:] for trial in trials}):
        others = fitted([trial for trial in trials if trial.problem.shape[1:] != shape])
        held += losses([trial for trial in trials if trial.problem.shape[1:] == shape], others)
    result = {
        "constants": dict(zip(model.Constants._fields, (round(float(each), 3) for each in constants), strict=True)),
        "configs": len(trials),
        "problems": len(held),
        "over_fastest": {
            "today": summary(losses(trials, model.CONSTANTS)),
            "fitted": summary(losses(trials, constants)),
            "held out": summary(held),
            "fp8": summary(losses(fp8, model.CONSTANTS)),
            **of_layouts(),
        },
        "fp8_configs": len(fp8),
        "fp8_pace": round(float(np.exp(pace)), 4),
    }
    print(json.dumps(result, indent=1))
    record.write(args.out, result)


def trials_in(study: Path, **operands: str) -> list[Trial]:
    return [trial for each in json.loads(study.read_text())["found"] for trial in trials_of(each, DEVICE, **operands)]


def trials_of(found: dict[str, Any], device: Device, **operands: str) -> list[Trial]:
    """What a study measured of tiles that the model is for: those that are tried, or keep the device as busy."""
    problem = Problem(*found["shape"], layout="nt", **operands)
    if supports(problem, device) is not None:
        return []
    tried, trials = space(problem, device), list[Trial]()
    kept = set(tried.configs())
    for each in found.get("us") or found["over_torch"]:
        parameters = {name: value for name, value in each.items() if name not in ("kernel", "ratio", "us")}
        config = Config(each["kernel"], **parameters)
        if config.kernel != NAME or for_many_rows(config):
            continue
        busy = tiles(config, problem) >= BUSY * device.sm_count
        if config in kept or (busy and tried.rejection(config, fatal_only=True) is None):
            trials.append(Trial(problem, config, each.get("us") or each["ratio"] * found["torch_us"]))
    return trials


def at_the_pace_of(known: Sequence[Trial], found: Sequence[Trial]) -> list[Trial]:
    """Trials of another card of the same model, as long as those would be that both have; of those, only known ones."""
    before = {(trial.problem, trial.config): trial.us for trial in known}
    both = [trial.us / us for trial in found if (us := before.get((trial.problem, trial.config)))]
    pace = math.exp(float(np.mean(np.log(both)))) if both else 1.0
    new = [trial for trial in found if (trial.problem, trial.config) not in before]
    return [trial._replace(us=trial.us / pace) for trial in new]


def fitted(trials: Sequence[Trial]) -> model.Constants:
    least = fastest(trials)
    weights = np.array([1 if trial.us < NEAR * least[trial.problem] else 0.15 for trial in trials])

    def errors(values: Sequence[float]) -> Any:
        constants = model.Constants(*values, model.CONSTANTS.meeting_us)
        estimates = [modelled_us(one, constants) for one in trials]
        return weights * np.log(np.array(estimates) / [trial.us for trial in trials])

    start = np.array(model.CONSTANTS[:-1])
    found = least_squares(errors, start, x_scale=start, loss="soft_l1", f_scale=0.05, bounds=(0.01 * start, 50 * start))
    return model.Constants(*found.x, model.CONSTANTS.meeting_us)


def of_layouts() -> dict[str, dict[str, float]]:
    _, found = database(LAYOUTS)
    trials = [
        Trial(problem, config, us)
        for problem, times in found.items()
        for config, us in times.items()
        if config.kernel == NAME and not for_many_rows(config)
    ]
    unmet = model.CONSTANTS._replace(meeting_us=0.0)
    return {
        "layouts": summary(losses(trials, model.CONSTANTS)),
        "layouts, without meeting_us": summary(losses(trials, unmet)),
    }


def modelled_us(one: Trial, constants: model.Constants) -> float:
    return model.modelled_us(as_computed(one.config), exchanged(one.problem), DEVICE, constants)


def losses(trials: Sequence[Trial], constants: model.Constants) -> list[float]:
    """By problem, the time of the config with the least estimate over the fastest one's."""
    by_problem, least = defaultdict(list), fastest(trials)
    for trial in trials:
        by_problem[trial.problem].append(trial)
    chosen = [min(ones, key=lambda one: modelled_us(one, constants)) for ones in by_problem.values()]
    return [one.us / least[one.problem] for one in chosen]


def fastest(trials: Sequence[Trial]) -> dict[Problem, float]:
    least: dict[Problem, float] = {}
    for trial in trials:
        least[trial.problem] = min(trial.us, least.get(trial.problem, math.inf))
    return least


def summary(ratios: Sequence[float]) -> dict[str, float]:
    return {"geomean": round(float(np.exp(np.mean(np.log(ratios)))), 4), "most": round(max(ratios), 3)}


if __name__ == "__main__":
    main()
