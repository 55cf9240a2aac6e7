"""Fit what launches of `gemv` take, and hold the estimates against trials on record.

    python benchmarks/fit/gemv.py --out RESULT.json

The trials are those of `gemv` that benchmarks/fit/calibrate.py fits its forests to: of 16-bit operands on an H100 and
an H200, and of float32 on an H200, B stored [N, K]; without options that only a search tries. The constants of
kernels/cost/stream.py are found by least squares of relative errors, in which trials near a problem's fastest weigh
most, and both cards and float32 as much as one another. `held out` is the time of the trial that they rank first over
that of the fastest, where the constants are those of three quarters of all problems and the problem is of the fourth.
Needs CatBoost, which calibrate.py imports, and no GPU.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tuner.kernel.config import Config
from tuner.kernels.cost import stream
from tuner.kernels.gemm.small_m import gemv
from tuner.kernels.space import refinements
from tuner.problem import Problem

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import calibrate
import record

LEAST = 8
"""Trials of a problem."""
NEAR, FAR = 0.6, 0.05
"""A trial so much slower than its problem's fastest weighs 1/e of it; none less than FAR."""
PARTS, SEED = 4, 5
ROWS = ((1, 1), (2, 2), (3, 4))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    cases = recorded()
    every = range(len(cases))
    parts = list(every)
    random.Random(SEED).shuffle(parts)
    held_out = {}
    for part in range(PARTS):
        out = parts[part::PARTS]
        constants = fitted([cases[number] for number in every if number not in set(out)])
        held_out |= {number: loss(cases[number], constants) for number in out}
    constants = fitted(cases)
    body = {"constants": dict(zip(stream.COUNTED, map(float, constants), strict=True)), "held out": {}}
    for kind in sorted({case.kind for case in cases}):
        body["held out"][kind] = {}
        for least, most in ROWS:
            some = [held_out[n] for n in every if cases[n].kind == kind and least <= cases[n].problem.m <= most]
            if some:
                figures = {"problems": len(some), "geomean": record.geomean(some), "worst": max(some)}
                body["held out"][kind][f"{least} to {most} rows"] = figures
    print(body)
    record.write(args.out, body)


class Trials(NamedTuple):
    """A problem's trials.

    Attributes:
        problem, kind: the problem, and what it is counted with.
        counts: float64 [trials, counts], of `stream.counts`.
        us: float64 [trials], their times.
    """

    problem: Problem
    kind: str
    counts: np.ndarray
    us: np.ndarray


def recorded() -> list[Trials]:
    """Every problem of up to four rows with enough trials."""
    found = []
    for (problem, device, _), times in calibrate.recorded().items():
        plain = {config: us for config, us in times.items() if config.kernel == gemv.NAME and has_no_option(config)}
        if problem.m <= gemv.MOST_ROWS and len(plain) >= LEAST:
            counts = np.array([stream.counts(config, problem, device) for config in plain])
            kind = "float32" if problem.a_dtype == "float32" else device.name.split()[1]
            found.append(Trials(problem, kind, counts, np.array(list(plain.values()))))
    return found


def has_no_option(config: Config) -> bool:
    return refinements.PREFETCH_KIB not in config and refinements.PDL_TRIGGER not in config


def fitted(cases: list[Trials]) -> np.ndarray:
    """The constants, none negative."""
    sizes = defaultdict(int)
    for case in cases:
        sizes[case.kind] += len(case.us)
    weights = [
        (np.exp(-np.minimum(case.us / case.us.min() - 1, 3) / NEAR) + FAR) / math.sqrt(sizes[case.kind])
        for case in cases
    ]
    scaled = [weight[:, None] * case.counts / case.us[:, None] for case, weight in zip(cases, weights, strict=True)]
    constants, *_ = np.linalg.lstsq(np.concatenate(scaled), np.concatenate(weights), rcond=None)
    assert min(constants) > 0, constants
    return constants


def loss(case: Trials, constants: np.ndarray) -> float:
    """How much slower the trial of least estimate is than the fastest."""
    return float(case.us[(case.counts @ constants).argmin()] / case.us.min())


if __name__ == "__main__":
    main()
