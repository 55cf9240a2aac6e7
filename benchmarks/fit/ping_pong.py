"""Fit the constants of `ping_pong.estimate_us` to what a study measured, and say how well it chooses, also held out.

    python benchmarks/fit/ping_pong.py --out RESULT.json

The study (benchmarks/studies/ping_pong.py) ran on one card. How much slower that was than those that the calibration
was fitted on, the other kernels' 16-bit configs tell, and ours are taken to be as much faster. `over_fastest` is how
much longer a choice takes than the fastest config measured, the geometric mean and the most, over all problems: of
`ping_pong` alone; of the default of other kernels; and of that and ours, by estimates. Held out are, in turn, the
problems of a fifth of the weights. Needs scipy.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.gemm.hopper import ping_pong, resources

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

STUDY = Path(__file__).parents[1] / "results" / "ping-pong-first-h200.json"
DEVICE = KNOWN["sm_90"]
FOLDS = 5
NEAR = 1.1
"""Configs within this factor of the fastest count in full, others a third: the fastest are to be told apart."""


class Played(NamedTuple):
    """A problem, microseconds of our configs and of others, of which the default is first, and the default's estimate.

    Of ours there is one for each tile, that of the widest groups, which estimates do not tell from others.
    """

    problem: Problem
    ours: dict[Config, float]
    others: dict[Config, float]
    estimate_us: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--study", type=Path, default=STUDY, help="a result of benchmarks/studies/ping_pong.py")
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    read = [played(each) for each in json.loads(args.study.read_text())["found"]]
    slower = pace(read)
    found = [one._replace(**{side: scaled(getattr(one, side), slower) for side in ("ours", "others")}) for one in read]
    constants = fitted(found)
    weights = sorted({one.problem.shape[1:] for one in found})
    held = list[dict[str, float]]()
    for fold in range(FOLDS):
        out = set(weights[fold::FOLDS])
        apart = fitted([one for one in found if one.problem.shape[1:] not in out])
        held += [losses(one, apart) for one in found if one.problem.shape[1:] in out]
    result = {
        "constants": {name: float(f"{value:.3g}") for name, value in zip(constants._fields, constants, strict=True)},
        "slower": round(slower, 4),
        "problems": len(found),
        "over_fastest": {
            "today": summary([losses(one, ping_pong.CONSTANTS) for one in found]),
            "fitted": summary([losses(one, constants) for one in found]),
            "held out": summary(held),
        },
    }
    print(json.dumps(result, indent=1))
    record.write(args.out, result)


def played(found: dict[str, Any]) -> Played:
    problem = Problem(*found["shape"], dtype=found["dtype"], layout="nt", scaling=found["scaling"])
    times = {
        Config(one["kernel"], **{name: value for name, value in one.items() if name not in ("kernel", "us")}): one["us"]
        for one in found["us"]
    }
    ours, others = (
        {one: times[one] for one in times if (one.kernel == ping_pong.NAME) is mine} for mine in (True, False)
    )
    by_tile = {resources.width(one): one for one in sorted(ours, key=itemgetter("GROUP_SIZE_M"))}
    ours = {one: ours[one] for one in by_tile.values()}
    return Played(problem, ours, others, estimate_us(problem, next(iter(others))))


def estimate_us(problem: Problem, config: Config) -> float:
    estimate: float = registry.find("matmul", config.kernel).estimate_us(config, problem, DEVICE)
    return estimate


def pace(found: Sequence[Played]) -> float:
    """How many times as long as estimated the other kernels' 16-bit configs took."""
    ratios = [
        us / estimate_us(one.problem, config)
        for one in found
        if one.problem.a_dtype == "bfloat16"
        for config, us in one.others.items()
    ]
    return statistics.median(ratios)


def scaled(times: dict[Config, float], slower: float) -> dict[Config, float]:
    return {config: us / slower for config, us in times.items()}


def fitted(found: Sequence[Played]) -> ping_pong.Constants:
    trials = [
        (one.problem, config, us, 1 if us < NEAR * min(one.ours.values()) else 1 / 3)
        for one in found
        for config, us in one.ours.items()
    ]

    def errors(values: Sequence[float]) -> Any:
        by = ping_pong.Constants(*values)
        return [
            weight * math.log(ping_pong.modelled_us(config, problem, DEVICE, by) / us)
            for problem, config, us, weight in trials
        ]

    start = np.array(ping_pong.CONSTANTS)
    bounds = (0.2 * start, 5 * start)
    return ping_pong.Constants(
        *least_squares(errors, start, x_scale=start, loss="soft_l1", f_scale=0.05, bounds=bounds).x
    )


def losses(one: Played, constants: ping_pong.Constants) -> dict[str, float]:
    """What choices of a problem take over its fastest config."""
    estimates = {config: ping_pong.modelled_us(config, one.problem, DEVICE, constants) for config in one.ours}
    own = min(estimates, key=lambda config: estimates[config])
    default, fastest = next(iter(one.others.values())), min(*one.ours.values(), *one.others.values())
    chosen = one.ours[own] if estimates[own] < one.estimate_us else default
    return {
        "of ours": one.ours[own] / min(one.ours.values()),
        "the others' default": default / fastest,
        "by estimates": chosen / fastest,
        "ours chosen": float(estimates[own] < one.estimate_us),
        "short": float(one.problem.a_dtype != "bfloat16"),
    }


def summary(found: Sequence[dict[str, float]]) -> dict[str, Any]:
    kinds = {"bfloat16": [one for one in found if not one["short"]], "fp8": [one for one in found if one["short"]]}
    return {
        kind: {
            "chosen": f"{sum(int(one['ours chosen']) for one in ones)} of {len(ones)}",
            **{
                name: [round(record.geomean([one[name] for one in ones]), 4), round(max(one[name] for one in ones), 3)]
                for name in ("of ours", "the others' default", "by estimates")
            },
        }
        for kind, ones in kinds.items()
    }


if __name__ == "__main__":
    main()
