"""Fit the weights of kernels/calibration.py, and say by cross-validation what formulas lose that rank by them.

    python benchmarks/calibrate.py --out RESULT.json [--write]

Every kernel's log time over the cost model's estimate is fitted by ridge regression on traits (kernels/traits.py) and
products of two, chosen one after the other by what each still explains. Trials near a problem's best weigh most. Held
out are whole problems, a fifth at a time, in several random parts. --write puts the weights of all problems into
kernels/calibration.json. Needs numpy and no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections import defaultdict

import numpy as np
import record
from recorded import H200, ROOT, trials

from tuner.kernels import calibration, cluster_k, cost, stream_cost, swap_ab, traits, warp_specialized
from tuner.kernels import warp_specialized_measures as specialized
from tuner.kernels.operands import exchanged

DATA = ROOT / "data"
SOURCES = (
    ("scattered-trials-h200.csv.gz", "1"),
    ("scattered-trials-h200.csv.gz", "2"),
    ("scattered-trials-h200.csv.gz", "3"),
    ("unseen-trials-h200.csv.gz", "4"),
    ("unseen-trials-h200.csv.gz", "5"),
)
"""Trials of today's kernels, and the run in each file."""
UNDER = "Triton 3.7.1, driver 580.159.04"
TARGET = ROOT.parent / "kernels" / "calibration.json"
TERMS = 64
RIDGE = 8e-3
"""Of the sum of all trials' weights."""
NEAR, FAR = 0.6, 0.02
"""A trial so much slower than its problem's best weighs 1/e of the best; none less than FAR."""
FOLDS, PARTS = 5, 3
CLOSE = 1.3
"""Of the best: trials within are near it."""
ROWS = ((1, 1), (2, 16), (17, 32), (33, 64), (65, 128), (129, 256), (257, 1024), (1025, 4096))
_OUTLIER = 4.0
"""Standard deviations beyond which a trait counts no further."""
_SPANNED = 1e-3
"""Of a column's own squares: less of it left beside the chosen ones is nothing new."""


KERNELS = ("swap_ab", "warp_specialized", "cluster_k", "gemv", "composite_n")
LOOPS = {
    "swap_ab": {},
    "composite_n": {"by_tma": True},
    "warp_specialized": {"by_tma": True, "persistent": True, "specialized": True},
}
"""What `cost.tiled` is told of a kernel."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="the weights of all problems to kernels/calibration.json")
    parser.add_argument("--out")
    parser.add_argument("--also", nargs=2, action="append", default=[], metavar=("FILE", "RUN"), help="more trials")
    parser.add_argument("--only-fit", action="store_true", help="hold nothing out, say nothing of it")
    args = parser.parse_args()
    found = recorded(args.also)
    parts = parts_of(found)
    if args.only_fit:
        TARGET.write_text(dumped({name: table_entry(part) for name, part in parts.items()}))
        return
    summary = {"problems": len(found), "trials": {name: len(part.rows) for name, part in parts.items()}}
    out = held_out(parts, len(found), 0)
    summary["error of log time, held out"] = {name: error(part, out[name]) for name, part in parts.items()}
    picks = {"cost model": [chosen(found, parts, {name: part.estimates for name, part in parts.items()})]}
    picks["calibrated, held out"] = [chosen(found, parts, held_out(parts, len(found), seed)) for seed in range(PARTS)]
    summary["fastest that a formula ranks"] = losses([chosen(found, parts, measured(parts))])
    summary |= {name: losses(several) for name, several in picks.items()}
    for name, figures in summary.items():
        print(f"{name:32} {figures}")
    document = {name: table_entry(part) for name, part in parts.items()}
    if args.write:
        TARGET.write_text(dumped(document))
    if args.out:
        record.write(args.out, {"figures": "recorded trials; this script needs no GPU", "summary": summary})


def recorded(also=()):
    """Every problem's trials, of all sources and of others."""
    found = defaultdict(dict)
    for file, run in (*SOURCES, *also):
        for problem, times in trials(DATA / file, run).items():
            found[problem] |= times
    return dict(sorted(found.items()))


def ranked(config, problem):
    """Whether a default formula looks at a config."""
    if config.kernel == "composite_n" or (config.kernel == "gemv" and problem.m > 1):
        return False
    if config.kernel == "cluster_k":
        return problem.m <= cluster_k.MOST_ROWS
    if config.kernel == "warp_specialized":
        return warp_specialized.is_usual(config, problem)
    return "PREFETCH_KIB" not in config


def chosen(found, parts, estimates):
    """By problem: how much slower the config of least estimate is than the fastest trial."""
    least = {}
    problems = list(found)
    for name, part in parts.items():
        for row, estimate in zip(part.rows, estimates[name], strict=True):
            if ranked(row[1], problems[row[0]]):
                least[row[0]] = min(least.get(row[0], (math.inf, 0.0)), (estimate, row[5]))
    return {problems[number]: slower for number, (_, slower) in least.items()}


def measured(parts):
    return {name: np.log([row[2] for row in part.rows]) for name, part in parts.items()}


def error(part, estimates):
    """Standard deviation of what estimates miss of log time, of trials near a problem's best."""
    missed = np.log([row[2] for row in part.rows]) - estimates
    return rounded(np.std(missed[np.array([row[5] for row in part.rows]) < CLOSE]))


def losses(several):
    """Geometric mean, worst, and how many lose more than 10%, over several divisions of the problems."""
    flat = [slower for one in several for slower in one.values()]
    by_rows = {}
    for least, most in ROWS:
        some = [slower for one in several for problem, slower in one.items() if least <= problem.m <= most]
        by_rows[f"{least} to {most} rows"] = round(record.geomean(some), 4)
    return {
        "geomean": round(record.geomean(flat), 4),
        "worst": round(max(flat), 3),
        "beyond_10_percent": round(sum(one > 1.1 for one in flat) / len(flat), 3),
        **by_rows,
    }


def dumped(document):
    """JSON, a term a line."""
    head = {key: value for key, value in record.header().items() if key in ("date", "command")}
    about = {"format": "triton-tuner calibration", "device": H200.slug, "trials_under": UNDER, **head}
    text = json.dumps({**about, "kernels": document}, indent=1)
    return re.sub(r"\[\s+([^\[\]{}]+?)\s+\]", lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text) + "\n"


def seen(config, problem):
    """A config's raw estimate and its traits."""
    if config.kernel == "gemv":
        us = stream_cost.streamed(config, problem, H200)
        return us, traits.of_streams(config, problem, H200, us)
    inner, shown, swapped = config, problem, False
    if config.kernel in ("swap_ab", "cluster_k"):
        inner, shown, swapped = swap_ab.seen(config), exchanged(problem), True
    elif config.kernel == "warp_specialized":
        (inner, shown), swapped = specialized.seen(config, problem), bool(config.get("SWAP_AB", False))
    if config.kernel == "cluster_k":
        us = cluster_k.model_us(config, problem, H200)
    else:
        us = cost.tiled(inner, shown, H200, **LOOPS[config.kernel])
    return us, traits.of_tiles(inner, shown, H200, us, exchanged=swapped)


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


def parts_of(found):
    listed = defaultdict(list)
    for number, (problem, every) in enumerate(found.items()):
        times = {config: us for config, us in every.items() if config.kernel in KERNELS}
        best = min(times.values())
        for config, us in times.items():
            listed[name_of(config)].append((number, config, us, *seen(config, problem), us / best))
    return {name: Part(rows) for name, rows in sorted(listed.items())}


class Basis:
    """Traits scaled, and their products; of some trials."""

    def __init__(self, names, values):
        self.mean, self.deviation = values.mean(0), values.std(0)
        self.kept = [i for i in range(len(names)) if self.deviation[i] > 1e-9]
        self.names = names
        low, high = self.mean - _OUTLIER * self.deviation, self.mean + _OUTLIER * self.deviation
        self.least, self.most = np.maximum(values.min(0), low), np.minimum(values.max(0), high)
        two = [len(np.unique(values[:, i])) <= 2 for i in range(len(names))]
        self.pairs = [(i, None) for i in self.kept] + [
            (i, j) for a, i in enumerate(self.kept) for j in self.kept[a:] if not (i == j and two[i])
        ]

    def columns(self, values, pairs):
        deviation = np.where(self.deviation > 1e-9, self.deviation, 1)
        scaled = (np.clip(values, self.least, self.most) - self.mean) / deviation
        return np.stack([scaled[:, i] if j is None else scaled[:, i] * scaled[:, j] for i, j in pairs], axis=1)


def fitted(part, chosen):
    """Weights from some of a part's trials."""
    basis = Basis(part.names, part.values[chosen])
    root = np.sqrt(part.weights[chosen])
    columns = basis.columns(part.values[chosen], basis.pairs)
    # Terms have other sizes than traits: each is penalized alike.
    size = np.sqrt((columns**2 * (root**2)[:, None]).sum(0) / (root**2).sum()) + 1e-9
    columns = np.hstack([np.ones((len(columns), 1)), columns / size]) * root[:, None]
    gram = columns.T @ columns
    target = columns.T @ (part.errors[chosen] * root)
    ridge = RIDGE * (root**2).sum()
    penalty = np.full(len(gram), ridge)
    penalty[0] = 0.0
    order = forward(gram + np.diag(penalty), target)
    inner = np.ix_(order, order)
    weights = np.linalg.solve(gram[inner] + np.diag(penalty[order]), target[order])
    pairs = [basis.pairs[number - 1] for number in order[1:]]
    return basis, pairs, weights[0], weights[1:] / size[[number - 1 for number in order[1:]]]


def forward(gram, target):
    """Numbers of the columns chosen, the constant first: each the one that explains most of what is left."""
    left, aim, own = gram.copy(), target.copy(), np.diag(gram).copy()
    order = []
    for _ in range(min(TERMS + 1, len(gram))):
        rest = np.diag(left)
        gain = np.where(rest > _SPANNED * own, aim**2 / np.maximum(rest, 1e-12), 0.0)
        gain[order] = 0.0
        number = int(np.argmax(gain)) if order else 0
        if gain[number] <= 0 and order:
            break
        pivot = left[:, number] / left[number, number]
        aim = aim - pivot * aim[number]
        left = left - np.outer(pivot, left[number])
        order.append(number)
    return order


def predicted(part, chosen, fit):
    basis, pairs, bias, weights = fit
    corrections = basis.columns(part.values[chosen], pairs) @ weights + bias
    return part.estimates[chosen] + np.clip(corrections, -calibration.MOST, calibration.MOST)


def held_out(parts, problems, seed):
    """Every trial's log estimate, by weights that saw nothing of its problem."""
    fold = np.random.default_rng(seed).permutation(problems) % FOLDS
    found = {}
    for name, part in parts.items():
        found[name] = np.zeros(len(part.rows))
        for number in range(FOLDS):
            out = fold[part.problems] == number
            if out.any():
                found[name][out] = predicted(part, out, fitted(part, ~out))
    return found


def table_entry(part):
    basis, pairs, bias, weights = fitted(part, np.ones(len(part.rows), dtype=bool))
    scales = basis.mean, basis.deviation, basis.least, basis.most
    used = sorted({i for pair in pairs for i in pair if i is not None})
    return {
        "trials": len(part.rows),
        "bias": rounded(bias),
        "traits": {basis.names[i]: [rounded(column[i]) for column in scales] for i in used},
        "terms": [
            [basis.names[i], "" if j is None else basis.names[j], rounded(weight)]
            for (i, j), weight in zip(pairs, weights, strict=True)
        ],
    }


def rounded(value):
    return float(f"{value:.4g}")


if __name__ == "__main__":
    main()
