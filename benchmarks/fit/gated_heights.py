"""Fit the constants of warpgroups that take tiles of `gated_any_height` in turn, and say how well these choose.

    python benchmarks/fit/gated_heights.py --out RESULT.json

The trials are those of a study (benchmarks/studies/gated_heights.py --heights 3), of a height's orders the faster.
`over_fastest` is how much longer a choice takes than the fastest height measured, the geometric mean and the most: by
the constants of products, by today's, by those fitted here, held out, which are fitted to the problems of four fifths
for those of the other fifth, and the best of as many as a search tries. Needs scipy.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernels.gated import any_height_space
from tuner.kernels.gated.any_height_model import IN_TURN
from tuner.kernels.gemm.hopper import ping_pong_model
from tuner.kernels.gemm.hopper.ping_pong_model import Constants

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

STUDY = Path(__file__).parents[1] / "results" / "gated-heights-first-h200.json"
DEVICE = KNOWN["sm_90"]
FIXED = {"stored_bytes": 0.0, "beyond_cycles": 0.0, "short_clock": 1.0}
"""What no trial depends on: all operands are stored along K, and of 16 bits. `stored_bytes` went to its bound."""
FOLDS = 5
NEAR = 1.1
"""Configs within this factor of the fastest count in full, others a third: the fastest are to be told apart."""


class Played(NamedTuple):
    """A problem as the device computes it, and microseconds of each height."""

    computed: Problem
    us: dict[int, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--study", type=Path, default=STUDY)
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    found = [one for each in json.loads(args.study.read_text())["found"] if (one := played(each)).us]
    constants, held = fitted(found), list[float]()
    for fold in range(FOLDS):
        others = fitted([one for number, one in enumerate(found) if number % FOLDS != fold])
        held += [loss(one, others, 1) for one in found[fold::FOLDS]]
    by = {"constants of products": ping_pong_model.CONSTANTS, "today": IN_TURN, "fitted": constants}
    result = {
        "constants": {name: round(value, 3) for name, value in constants._asdict().items()},
        "problems": len(found),
        "heights": sum(len(one.us) for one in found),
        "over_fastest": {
            **{name: told([loss(one, each, 1) for one in found]) for name, each in by.items()},
            "held out": told(held),
            "tried": told([loss(one, IN_TURN, any_height_space.BEST) for one in found]),
        },
    }
    print(json.dumps(result, indent=1))
    record.write(args.out, result)


def played(each: dict[str, Any]) -> Played:
    problem, found = Problem.from_fields(each["problem"]), dict[int, float]()
    for one in each["us"]:
        config = Config(one["kernel"], **{name: value for name, value in one.items() if name not in ("kernel", "us")})
        if config.kernel == any_height_space.NAME and any_height_space.teams(config) > 1:
            rows = config.integer("BLOCK_SIZE_M")
            found[rows] = min(one["us"], found.get(rows, math.inf))
    return Played(any_height_space.both(problem), found)


def modelled_us(rows: int, one: Played, by: Constants) -> float:
    return ping_pong_model.modelled_us(any_height_space.IN_TURN[0], rows, one.computed, DEVICE, by)


def fitted(found: Sequence[Played]) -> Constants:
    trials = [
        (one, rows, us, 1 if us < NEAR * min(one.us.values()) else 1 / 3)
        for one in found
        for rows, us in one.us.items()
    ]
    names = [name for name in Constants._fields if name not in FIXED]

    def errors(values: Sequence[float]) -> Any:
        by = Constants(**dict(zip(names, map(float, values), strict=True)), **FIXED)
        return [weight * math.log(modelled_us(rows, one, by) / us) for one, rows, us, weight in trials]

    start = np.array([getattr(ping_pong_model.CONSTANTS, name) for name in names])
    bounds = (0.05 * start, 5 * start)
    best = least_squares(errors, start, x_scale=start, loss="soft_l1", f_scale=0.03, bounds=bounds).x
    return Constants(**dict(zip(names, map(float, best), strict=True)), **FIXED)


def loss(one: Played, by: Constants, count: int) -> float:
    """The time of the fastest of the `count` heights with the least estimates over that of all."""
    chosen = sorted(one.us, key=lambda rows: (modelled_us(rows, one, by), -rows))[:count]
    return min(one.us[rows] for rows in chosen) / min(one.us.values())


def told(losses: Sequence[float]) -> list[float]:
    return [round(record.geomean(losses), 4), round(max(losses), 3)]


if __name__ == "__main__":
    main()
