"""Fit the forests of kernels/cost/calibration.py, and say by cross-validation what rankings by them lose.

    python benchmarks/fit/calibrate.py --out RESULT.json [--write [--kernel NAME]]

The trials are of two cards: scattered ones of random shapes, some of them of what the forests before put near the best,
and those that ladders raced through for the tables that come with triton-tuner, of the shapes of models. Those of an
H200 of 22 November are of kernels whose last tile reached beyond the last row. Where today's kernels move it back, what
TMA took there speaks of nothing that is left: such trials are left out, but where other tiles hide it
(`recorded.is_gone`).

Every kernel's log time over the cost model's estimate is fitted by boosted regression trees on features of a config
(kernels/cost/features.py). Trials near a problem's best weigh most. Held out are whole weights (N and K) of both cards,
a fifth at a time. `of the card alone` are forests of the trials of a problem's own card, `additive` those of trees of
one question each. `without tma and split_k` leaves those out, which serve more than 256 rows of A that make few tiles.
--write puts the forests of all trials into kernels/cost/calibration.npz; with --kernel one forest alone, so that what
was measured of the choices by the others stays true. Needs CatBoost and no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import catboost
import numpy as np

from tuner.hardware.device import Device
from tuner.kernels.base.operands import exchanged
from tuner.kernels.cost import calibration, features, stream
from tuner.kernels.cost.fingerprint import fingerprint
from tuner.kernels.gemm import calibrated
from tuner.kernels.gemm.any_tile import any_width
from tuner.kernels.gemm.block_scaled import hopper as block_scaled_warp_specialized
from tuner.kernels.gemm.block_scaled import spec as block_scaled
from tuner.kernels.gemm.hopper import cluster_k, warp_specialized
from tuner.kernels.gemm.hopper import resources as specialized
from tuner.kernels.gemm.hopper.rules import FEW_ROWS
from tuner.kernels.gemm.precedence import CLUSTER_ROWS, narrow, one_wave
from tuner.kernels.gemm.small_m import swap_ab
from tuner.kernels.space import tile_resources
from tuner.kernels.space.refinements import NUM_CTAS
from tuner.problem import Problem

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import H200, ROOT, database, trials

DATA = ROOT / "data"
SCATTERED = ("1", "2", "3", *map(str, range(6, 14)))
FILES = (
    *(("scattered-trials-h200.csv.gz", run) for run in SCATTERED),
    *(("unseen-trials-h200.csv.gz", run) for run in ("4", "5")),
)
"""Trials of an H200, and the run in each file."""
DATABASES = {
    "scattered": ("scattered-h100.db.xz", "scattered-blocks-h200.db.xz"),
    "near the best": ("near-h100.db.xz", "near-many-rows-h100.db.xz", "near-h200.db.xz"),
    "of models": ("shipped-h100.db.xz", "shipped-h200.db.xz"),
    "scattered, float32": ("plain-few-rows-h200.db.xz",),
}
"""Databases of both cards, by what their problems are."""
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
FOLDS = 5
ROWS = ((1, 1), (2, 16), (17, 32), (33, 64), (65, 128), (129, 256), (257, 1024), (1025, 4096))
OF_FEW_TILES = ("tma", "split_k")
KERNELS = ("swap_ab", "warp_specialized", "any_width", "cluster_k", "gemv", *OF_FEW_TILES)
KERNELS_OF_BLOCKS = ("block_scaled", "block_scaled_warp_specialized", "warp_specialized")
MODULES = {
    "swap_ab": swap_ab,
    "cluster_k": cluster_k,
    "warp_specialized": warp_specialized,
    "any_width": any_width,
    "tma": calibrated,
    "split_k": calibrated,
    "block_scaled": block_scaled,
    "block_scaled_warp_specialized": block_scaled_warp_specialized,
}
"""Whose `terms` are the cost model's."""


class Case(NamedTuple):
    """A problem on a card, and whether its trials are scattered or of a model's shapes."""

    problem: Problem
    device: Device
    source: str

    @property
    def group(self):
        scaled = ", scales of blocks" if self.problem.scaling == "block" else ""
        return f"{self.device.name.split()[1]}, {self.source}{scaled}"

    @property
    def weight(self):
        return self.problem.n, self.problem.k


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="the forests of all trials to calibration.npz")
    parser.add_argument("--kernel", metavar="NAME", help="write this forest alone, beside the others that the file has")
    parser.add_argument("--out")
    parser.add_argument("--only-fit", action="store_true", help="hold nothing out, say nothing of it")
    args = parser.parse_args()
    found = recorded()
    parts, devices = parts_of(found), sorted({case.device.slug for case in found})
    if args.only_fit:
        write(parts, devices, args.kernel)
        return
    cases = list(found)
    folds = folds_of(cases)
    cards = np.array([case.device.slug for case in cases])
    rankings = {
        "cost model": {name: part.estimates for name, part in parts.items()},
        "forests, held out": held_out(parts, folds),
        "of the card alone, held out": held_out(parts, folds, among=cards),
        "additive, held out": held_out(parts, folds, boosting=ADDITIVE),
    }
    groups = sorted({case.group for case in cases})
    summary = {
        "problems": {group: sum(case.group == group for case in cases) for group in groups},
        "weights": len({case.weight for case in cases}),
        "trials": {name: len(part.rows) for name, part in parts.items()},
    }
    unsplit = {name: part for name, part in parts.items() if not name.startswith(OF_FEW_TILES)}
    picked = {ranking: chosen(found, parts, estimates) for ranking, estimates in rankings.items()}
    picked["without tma and split_k"] = chosen(found, unsplit, rankings["forests, held out"])
    for ranking, picks in picked.items():
        for group in groups:
            figures = losses({case: slower for case, slower in picks.items() if case.group == group})
            summary.setdefault(group, {})[ranking] = figures
            print(f"{group:40} {ranking:28} {figures}", flush=True)
    if args.write:
        write(parts, devices, args.kernel)
    if args.out:
        record.write(args.out, {"figures": "recorded trials; this script needs no GPU", "summary": summary})


def recorded():
    """Every case's trials of kernels that have a forest, of all sources."""
    found = defaultdict(dict)
    for file, run in FILES:
        for problem, times in trials(DATA / file, run).items():
            found[Case(problem, H200, "scattered")] |= times
    for source, files in DATABASES.items():
        for file in files:
            device, every = database(DATA / file)
            for problem, times in every.items():
                if calibration.is_alike(problem, device) or calibration.is_plain(problem, device):
                    found[Case(problem, device, source)] |= times
    kept = {
        case: {config: us for config, us in times.items() if config.kernel in kernels_of(case.problem)}
        for case, times in found.items()
    }
    return {case: times for case, times in kept.items() if len(times) > 1}


def kernels_of(problem):
    if problem.scaling == "block":
        return KERNELS_OF_BLOCKS
    return KERNELS if tile_resources.uses_tensor_cores(problem) else ("gemv",)


def folds_of(cases):
    """With which part each case is held out: all of a weight's with the same."""
    weights = sorted({case.weight for case in cases})
    drawn = np.random.default_rng(0).permutation(len(weights)) % FOLDS
    part_of = dict(zip(weights, drawn, strict=True))
    return np.array([part_of[case.weight] for case in cases])


def chosen(found, parts, estimates):
    """By case: how much slower the config of least estimate is than the fastest trial."""
    least = {}
    cases = list(found)
    for name, part in parts.items():
        for row, estimate in zip(part.rows, estimates[name], strict=True):
            if ranked(row[1], cases[row[0]].problem):
                least[row[0]] = min(least.get(row[0], (math.inf, 0.0)), (estimate, row[5]))
    return {cases[number]: slower for number, (_, slower) in least.items()}


def ranked(config, problem):
    """Whether a default formula looks at a config."""
    if problem.scaling == "block":
        return config.kernel != "warp_specialized"
    if config.kernel == "gemv" and problem.m > 1:
        return not tile_resources.uses_tensor_cores(problem)
    if config.kernel == "cluster_k":
        return problem.m <= CLUSTER_ROWS
    if config.kernel in OF_FEW_TILES:
        return (one_wave if config.kernel == "tma" else narrow)(problem, H200)
    if config.kernel != "warp_specialized":
        return True
    # Of clusters pairs, for few rows: which others gain is for a search to find out.
    few = config.integer(NUM_CTAS, 1) <= (2 if problem.m <= FEW_ROWS else 1)
    return few and warp_specialized.is_usual(config.integer("GROUP_SIZE_M", 1), config, problem, H200)


def losses(slower):
    """Geometric mean, worst, and how many lose more than 10%."""
    by_rows = {}
    for least, most in ROWS:
        some = [one for case, one in slower.items() if least <= case.problem.m <= most]
        if some:
            by_rows[f"{least} to {most} rows"] = round(record.geomean(some), 4)
    flat = list(slower.values())
    return {
        "geomean": round(record.geomean(flat), 4),
        "worst": round(max(flat), 3),
        "beyond_10_percent": round(sum(one > 1.1 for one in flat) / len(flat), 3),
        **by_rows,
    }


def write(parts, devices, kernel=None):
    """Everything that `calibration.forest_of` reads, and where it comes from; or one forest beside what is there."""
    head = {key: value for key, value in record.header().items() if key in ("date", "command")}
    arrays, about = {}, {"devices": devices, "trials_under": UNDER, "model": fingerprint(), **head}
    if kernel is not None:
        with np.load(TARGET) as file:
            arrays = dict(file)
        about = json.loads(str(arrays["about"])) | {kernel: head}
        assert about["model"] == fingerprint(), "another cost model: all forests are to be fitted"
    for name in [kernel] if kernel is not None else parts:
        arrays |= {f"{name}/{field}": array for field, array in forest(parts[name])._asdict().items()}
    np.savez_compressed(TARGET, about=json.dumps(about), **{k: v for k, v in arrays.items() if k != "about"})


def seen(config, problem, device):
    """A config's raw estimate and its features."""
    if config.kernel == "gemv":
        us = stream.streamed(config, problem, device)
        return us, features.of_streams(config, problem, device, us)
    swapped = turned(config)
    inner = config
    if config.kernel == "warp_specialized":
        inner, _ = specialized.as_computed(config, problem)
    elif swapped:
        inner = swap_ab.exchanged_tile(config)
    terms = MODULES[config.kernel].terms(config, problem, device)
    shown = exchanged(problem) if swapped else problem
    return terms.us, features.of_tiles(terms, inner, shown, device, exchanged=swapped)


def turned(config):
    """Whether a kernel exchanges its operands."""
    return config.kernel in ("swap_ab", "cluster_k") or bool(config.get("SWAP_AB", False))


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


def parts_of(found):
    listed = defaultdict(list)
    for number, ((problem, device, _), times) in enumerate(found.items()):
        best = min(times.values())
        for config, us in times.items():
            name = calibration.name_of(config, exchanged=turned(config), scaled=problem.scaling == "block")
            listed[name].append((number, config, us, *seen(config, problem, device), us / best))
    return {name: Part(rows) for name, rows in sorted(listed.items())}


def fitted(part, chosen, boosting=BOOSTING):
    """Forests of some of a part's trials, one for each seed."""
    forests = (catboost.CatBoostRegressor(**boosting, random_seed=seed) for seed in SEEDS)
    trials = (part.values[chosen], part.errors[chosen])
    return [forest.fit(*trials, sample_weight=part.weights[chosen]) for forest in forests]


def predicted(part, chosen, forests):
    corrections = np.mean([forest.predict(part.values[chosen]) for forest in forests], axis=0)
    return part.estimates[chosen] + np.clip(corrections, -calibration.MOST, calibration.MOST)


def held_out(parts, folds, *, boosting=BOOSTING, among=None):
    """Every trial's log estimate, by forests that saw nothing of the cases of its own's fold, nor of others `among`."""
    found = {}
    for name, part in parts.items():
        found[name] = part.estimates.copy()
        groups = np.zeros(len(part.rows)) if among is None else among[part.problems]
        for group in np.unique(groups):
            for number in range(FOLDS):
                out = (folds[part.problems] == number) & (groups == group)
                known = (folds[part.problems] != number) & (groups == group)
                if out.any() and known.any():
                    found[name][out] = predicted(part, out, fitted(part, known, boosting))
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
