"""Fit the constants of `ping_pong_model` to what studies measured, and say how well it chooses, also held out.

    python benchmarks/fit/ping_pong.py --out RESULT.json

The studies (benchmarks/studies/ping_pong.py) ran on several cards. How much slower each was than those that the
calibration was fitted on, the other kernels' 16-bit configs tell, and ours are taken to be as much faster. Trials of
bfloat16 of the layouts nn and tn, and of short K, are of a database (benchmarks/data/scattered-layouts-h200.db.xz).
`over_fastest` is how much longer a choice takes than the fastest config measured, the geometric mean and the most, over
all problems: of our two kernels alone; of the default of other kernels, in the database what they estimate least of
what was tried; and of that and ours, by estimates. Held out are, in turn, the problems of a fifth of the weights.
Needs scipy.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from tuner import Config, Problem
from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gemm.any_tile import any_height_ping_pong_space
from tuner.kernels.gemm.hopper import ping_pong, ping_pong_model, resources
from tuner.kernels.gemm.hopper.ping_pong_model import CONSTANTS, Constants

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import ROOT, database

RESULTS = ROOT / "results"
LAYOUTS = ROOT / "data" / "scattered-layouts-h200.db.xz"
STUDIES = [RESULTS / "ping-pong-first-h200.json", RESULTS / "ping-pong-heights-h200.json"]
DEVICE = KNOWN["sm_90"]
OURS = (ping_pong.NAME, any_height_ping_pong_space.NAME)
FOLDS = 5
LONG_K = 1024
"""K from which the other kernels' estimates are right, by which cards are compared, but for tn."""
NEAR = 1.1
"""Configs within this factor of the fastest count in full, others a third: the fastest are to be told apart."""


class Played(NamedTuple):
    """A problem, microseconds of our configs and of others, of which the default is first, and the default's estimate.

    Of ours there is one for each tile, in the order that defaults have, as estimates do not tell orders apart.
    """

    problem: Problem
    ours: dict[Config, float]
    others: dict[Config, float]
    estimate_us: float

    def at_pace(self, slower: float) -> Played:
        """The same on a card so many times as fast."""
        ours, others = ({config: us / slower for config, us in each.items()} for each in (self.ours, self.others))
        return self._replace(ours=ours, others=others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--study", type=Path, nargs="+", default=STUDIES)
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    found, slower = list[Played](), list[float]()
    for read in (*([played(each) for each in json.loads(study.read_text())["found"]] for study in args.study), tried()):
        slower.append(pace(read))
        found += [one.at_pace(slower[-1]) for one in read]
    constants = fitted(found)
    weights = sorted({one.problem.shape[1:] for one in found})
    held = list[dict[str, Any]]()
    for fold in range(FOLDS):
        out = set(weights[fold::FOLDS])
        apart = fitted([one for one in found if one.problem.shape[1:] not in out])
        held += [losses(one, apart) for one in found if one.problem.shape[1:] in out]
    result = {
        "constants": {name: float(f"{value:.3g}") for name, value in zip(constants._fields, constants, strict=True)},
        "slower": [round(each, 4) for each in slower],
        "problems": len(found),
        "over_fastest": {
            "today": summary([losses(one, CONSTANTS) for one in found]),
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
    ours, others = ({one: times[one] for one in times if (one.kernel in OURS) is mine} for mine in (True, False))
    return Played(problem, by_tile(ours), others, estimate_us(problem, next(iter(others))))


def tried() -> list[Played]:
    """The database's problems of which both some of our configs and others were tried."""
    _, times = database(LAYOUTS)
    found = list[Played]()
    for problem, us in times.items():
        ours = {one: us[one] for one in us if one.kernel in OURS}
        estimates = {one: estimate_us(problem, one) for one in us if one.kernel not in (*OURS, "padded")}
        others = {one: us[one] for one in sorted(estimates, key=lambda one: estimates[one])}
        if ours and others:
            found.append(Played(problem, by_tile(ours), others, min(estimates.values())))
    return found


def by_tile(ours: dict[Config, float]) -> dict[Config, float]:
    """Of each tile's configs that whose order of tiles defaults have."""
    in_order = sorted(ours, key=lambda one: one.integer("GROUP_SIZE_M") * (1 if one.kernel == ping_pong.NAME else -1))
    last = {(one.kernel, resources.width(one), one["BLOCK_SIZE_M"]): one for one in in_order}
    return {one: ours[one] for one in last.values()}


def estimate_us(problem: Problem, config: Config) -> float:
    estimate: float = registry.find("matmul", config.kernel).estimate_us(config, problem, DEVICE)
    return estimate


def pace(found: Sequence[Played]) -> float:
    """How many times as long as estimated the other kernels' 16-bit configs took."""
    ratios = [
        us / estimate_us(one.problem, config)
        for one in found
        if one.problem.a_dtype == "bfloat16" and one.problem.layout != "tn" and one.problem.k >= LONG_K
        for config, us in one.others.items()
    ]
    return statistics.median(ratios)


def modelled_us(config: Config, problem: Problem, by: Constants) -> float:
    rows, width = config.integer("BLOCK_SIZE_M"), resources.width(config)
    if config.kernel == ping_pong.NAME:
        return ping_pong_model.modelled_us(rows, width, problem, DEVICE, by)
    return ping_pong_model.modelled_us(width, rows, exchanged(problem), DEVICE, by)


def fitted(found: Sequence[Played]) -> Constants:
    """The constants; what layouts other than nt take longer at all is a factor of theirs, which is not kept."""
    trials = [
        (one.problem, config, us, 1 if us < NEAR * min(one.ours.values()) else 1 / 3)
        for one in found
        for config, us in one.ours.items()
    ]

    def errors(values: Sequence[float]) -> Any:
        *constants, across = values
        by = Constants(*constants)
        estimates = [modelled_us(config, problem, by) for problem, config, _, _ in trials]
        factors = [1.0 if problem.layout == "nt" else across for problem, _, _, _ in trials]
        return [
            weight * math.log(estimate * factor / us)
            for estimate, factor, (_, _, us, weight) in zip(estimates, factors, trials, strict=True)
        ]

    start = np.array([*CONSTANTS, 1.0])
    bounds = (0.2 * start, 5 * start)
    found = least_squares(errors, start, x_scale=start, loss="soft_l1", f_scale=0.05, bounds=bounds).x
    return Constants(*found[:-1])


def ties(config: Config) -> tuple[int, ...]:
    """As defaults break them: deep rings of `ping_pong`, tall tiles of the other."""
    stages, rows = config.integer("num_stages"), config.integer("BLOCK_SIZE_M")
    return (-stages, 0) if config.kernel == ping_pong.NAME else (0, -rows)


def losses(one: Played, constants: Constants) -> dict[str, Any]:
    """What choices of a problem take over its fastest config."""
    estimates = {config: modelled_us(config, one.problem, constants) for config in one.ours}
    own = min(estimates, key=lambda config: (estimates[config], *ties(config)))
    default, fastest = next(iter(one.others.values())), min(*one.ours.values(), *one.others.values())
    chosen = one.ours[own] if estimates[own] < one.estimate_us else default
    return {
        "of ours": one.ours[own] / min(one.ours.values()),
        "the others' default": default / fastest,
        "by estimates": chosen / fastest,
        "kind": " ".join(
            (one.problem.dtype_label, one.problem.layout, *(("short K",) if one.problem.k < LONG_K else ()))
        ),
        "ours chosen": float(estimates[own] < one.estimate_us),
    }


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kinds = {kind: [one for one in found if one["kind"] == kind] for kind in sorted({one["kind"] for one in found})}
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
