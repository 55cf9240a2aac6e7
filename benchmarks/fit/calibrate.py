"""Fit the forests of kernels/cost/calibration.py, and say by cross-validation what formulas lose that rank by them.

    python benchmarks/fit/calibrate.py --out RESULT.json [--write]

The trials are of kernels whose last tile reached beyond the last row. Where today's kernels move it back, what TMA took
there speaks of nothing that is left: such trials are left out, but where other tiles hide it (`recorded.is_gone`).

Every kernel's log time over the cost model's estimate is fitted by boosted regression trees on features of a config
(kernels/cost/features.py). Trials near a problem's best weigh most. Held out are whole problems, a fifth at a time, in
several random parts. --write puts the forests of all problems into kernels/cost/calibration.npz. Needs CatBoost and no
GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import catboost
import numpy as np

from tuner.kernels.base.operands import exchanged
from tuner.kernels.cost import calibration, features, stream
from tuner.kernels.cost.fingerprint import fingerprint
from tuner.kernels.gemm.hopper import cluster_k, warp_specialized
from tuner.kernels.gemm.hopper import resources as specialized
from tuner.kernels.gemm.hopper.rules import FEW_ROWS
from tuner.kernels.gemm.precedence import CLUSTER_ROWS
from tuner.kernels.gemm.small_m import swap_ab
from tuner.kernels.space.refinements import NUM_CTAS

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import H200, ROOT, trials

DATA = ROOT / "data"
SCATTERED = ("1", "2", "3", *map(str, range(6, 14)))
SOURCES = (
    *(("scattered-trials-h200.csv.gz", run) for run in SCATTERED),
    *(("unseen-trials-h200.csv.gz", run) for run in ("4", "5")),
)
"""Trials of today's kernels, and the run in each file."""
UNDER = "Triton 3.7.1, driver 580.159.04"
TARGET = ROOT.parent / "kernels" / "cost" / "calibration.npz"
BOOSTING = {
    "iterations": 250,
    "depth": 6,
    "learning_rate": 0.15,
    "rsm": 0.5,
    "subsample": 0.7,
    "thread_count": 2,
    "verbose": False,
    "allow_writing_files": False,
}
ADDITIVE = BOOSTING | {"iterations": 1500, "depth": 1}
"""Trees of one question each: a correction for each feature by itself. It is compared, and not written."""
SEEDS = (11, 12, 13, 14)
"""A kernel's forest is the mean of four, for the picks of one change with its seed: of four seeds two made the default
of 8192x6144x4096 or of 2048x28672x4096 lose more than a tenth."""
BEYOND = 1e9
"""No trait's value is."""
NEAR, FAR = 0.6, 0.02
"""A trial so much slower than its problem's best weighs 1/e of the best; none less than FAR."""
FOLDS, PARTS = 5, 3
ROWS = ((1, 1), (2, 16), (17, 32), (33, 64), (65, 128), (129, 256), (257, 1024), (1025, 4096))
KERNELS = ("swap_ab", "warp_specialized", "cluster_k", "gemv")
MODULES = {
    "swap_ab": swap_ab,
    "cluster_k": cluster_k,
    "warp_specialized": warp_specialized,
}
"""Whose `terms` are the cost model's."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="the forests of all problems to calibration.npz")
    parser.add_argument("--out")
    parser.add_argument("--also", nargs=2, action="append", default=[], metavar=("FILE", "RUN"), help="more trials")
    parser.add_argument("--only-fit", action="store_true", help="hold nothing out, say nothing of it")
    args = parser.parse_args()
    found = recorded(args.also)
    parts = parts_of(found)
    if args.only_fit:
        write(parts)
        return
    summary = {"problems": len(found), "trials": {name: len(part.rows) for name, part in parts.items()}}
    picks = {"cost model": [chosen(found, parts, {name: part.estimates for name, part in parts.items()})]}
    folds = [drawn(len(found), seed) for seed in range(PARTS)]
    for name, boosting in (("calibrated, held out", BOOSTING), ("additive, held out", ADDITIVE)):
        picks[name] = [chosen(found, parts, held_out(parts, fold, boosting)) for fold in folds]
    summary |= {name: losses(several) for name, several in picks.items()}
    for name, figures in summary.items():
        print(f"{name:32} {figures}")
    if args.write:
        write(parts)
    if args.out:
        record.write(args.out, {"figures": "recorded trials; this script needs no GPU", "summary": summary})


def recorded(also=()):
    """Every problem's trials, of all sources and of others."""
    found = defaultdict(dict)
    for file, run in (*SOURCES, *also):
        for problem, times in trials(DATA / file, run).items():
            found[problem] |= times
    return dict(sorted(found.items()))


def chosen(found, parts, estimates):
    """By problem: how much slower the config of least estimate is than the fastest trial."""
    least = {}
    problems = list(found)
    for name, part in parts.items():
        for row, estimate in zip(part.rows, estimates[name], strict=True):
            if ranked(row[1], problems[row[0]]):
                least[row[0]] = min(least.get(row[0], (math.inf, 0.0)), (estimate, row[5]))
    return {problems[number]: slower for number, (_, slower) in least.items()}


def ranked(config, problem):
    """Whether a default formula looks at a config."""
    if config.kernel == "gemv" and problem.m > 1:
        return False
    if config.kernel == "cluster_k":
        return problem.m <= CLUSTER_ROWS
    if config.kernel != "warp_specialized":
        return True
    # Of clusters pairs, for few rows: which others gain is for a search to find out.
    few = config.integer(NUM_CTAS, 1) <= (2 if problem.m <= FEW_ROWS else 1)
    return few and warp_specialized.is_usual(config.integer("GROUP_SIZE_M", 1), config, problem)


def losses(several):
    """Geometric mean, worst, and how many lose more than 10%, over several divisions of the problems."""
    flat = [slower for one in several for slower in one.values()]
    by_rows = {}
    for least, most in ROWS:
        some = [slower for one in several for problem, slower in one.items() if least <= problem.m <= most]
        if some:
            by_rows[f"{least} to {most} rows"] = round(record.geomean(some), 4)
    return {
        "geomean": round(record.geomean(flat), 4),
        "worst": round(max(flat), 3),
        "beyond_10_percent": round(sum(one > 1.1 for one in flat) / len(flat), 3),
        **by_rows,
    }


def write(parts):
    """Everything that `calibration.forest_of` reads, and where it comes from."""
    head = {key: value for key, value in record.header().items() if key in ("date", "command")}
    arrays = {"about": json.dumps({"device": H200.slug, "trials_under": UNDER, "model": fingerprint(), **head})}
    for name, part in parts.items():
        found = forest(part)._asdict()
        arrays |= {f"{name}/{field}": array for field, array in found.items()}
    np.savez_compressed(TARGET, **arrays)


def seen(config, problem, device=H200):
    """A config's raw estimate and its features."""
    if config.kernel == "gemv":
        us = stream.streamed(config, problem, device)
        return us, features.of_streams(config, problem, device, us)
    inner, shown, swapped = config, problem, False
    if config.kernel in ("swap_ab", "cluster_k"):
        inner, shown, swapped = swap_ab.exchanged_tile(config), exchanged(problem), True
    elif config.kernel == "warp_specialized":
        (inner, shown), swapped = specialized.as_computed(config, problem), bool(config.get("SWAP_AB", False))
    terms = MODULES[config.kernel].terms(config, problem, device)
    return terms.us, features.of_tiles(terms, inner, shown, device, exchanged=swapped)


def name_of(config):
    return calibration.name_of(config, exchanged=bool(config.get("SWAP_AB", False)))


class Part:
    """One kernel's trials: which problem each is of, how long it took, against the best; its estimate and traits."""

    def __init__(self, rows):
        self.rows = rows
        self.names = list(rows[0][4])
        self.problems = np.array([row[0] for row in rows])
        self.values = np.array([[row[4][name] for name in self.names] for row in rows])
        self.estimates = np.log([row[3] for row in rows])
        self.errors = np.log([row[2] for row in rows]) - self.estimates
        slower = np.array([row[5] for row in rows]) - 1
        self.weights = np.exp(-np.minimum(slower, 3) / NEAR) + FAR


def parts_of(found, device=H200):
    listed = defaultdict(list)
    for number, (problem, every) in enumerate(found.items()):
        times = {config: us for config, us in every.items() if config.kernel in KERNELS}
        best = min(times.values(), default=math.nan)
        for config, us in times.items():
            listed[name_of(config)].append((number, config, us, *seen(config, problem, device), us / best))
    return {name: Part(rows) for name, rows in sorted(listed.items())}


def fitted(part, chosen, boosting=BOOSTING):
    """Forests of some of a part's trials, one for each seed."""
    forests = (catboost.CatBoostRegressor(**boosting, random_seed=seed) for seed in SEEDS)
    trials = (part.values[chosen], part.errors[chosen])
    return [forest.fit(*trials, sample_weight=part.weights[chosen]) for forest in forests]


def predicted(part, chosen, forests):
    corrections = np.mean([forest.predict(part.values[chosen]) for forest in forests], axis=0)
    return part.estimates[chosen] + np.clip(corrections, -calibration.MOST, calibration.MOST)


def drawn(count, seed):
    """Which of the parts each of several things is held out with."""
    return np.random.default_rng(seed).permutation(count) % FOLDS


def held_out(parts, fold, boosting=BOOSTING):
    """Every trial's log estimate, by forests that saw nothing of the problems that have its own's part."""
    found = {}
    for name, part in parts.items():
        found[name] = np.zeros(len(part.rows))
        for number in range(FOLDS):
            out = fold[part.problems] == number
            if out.any():
                found[name][out] = predicted(part, out, fitted(part, ~out, boosting))
    return found


def forest(part):
    """A kernel's forest of all its trials: the trees of all seeds, whose leaves count for as much together as one's."""
    trees, biases = [], []
    for fit in fitted(part, np.ones(len(part.rows), dtype=bool)):
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            fit.save_model(file.name, format="json")
            model = json.load(file)
        scale, (bias,) = model["scale_and_bias"]
        assert scale == 1
        trees += model["oblivious_trees"]
        biases.append(bias)
    asked, thresholds, leaves = zip(*map(whole, trees), strict=True)
    return calibration.Forest(
        np.array(part.names),
        np.array(asked, dtype=np.uint8),
        np.array(thresholds, dtype=np.float32),
        np.array(leaves, dtype=np.int16),
        np.float64(np.mean(biases)),
    )


def whole(tree):
    """A tree's levels and leaves, as many as all trees have: nothing is beyond what a level in addition asks."""
    splits = [(split["float_feature_index"], split["border"]) for split in tree["splits"]]
    asked, thresholds = zip(*splits, *[(0, BEYOND)] * (BOOSTING["depth"] - len(splits)), strict=True)
    leaves = [round(leaf / len(SEEDS) / calibration.LEAF_UNIT) for leaf in tree["leaf_values"]]
    return asked, thresholds, leaves + [0] * (2 ** BOOSTING["depth"] - len(leaves))


if __name__ == "__main__":
    main()
