"""Trials of what the estimates put near the best, for a fit: `tuner run` with a strategy of its own.

    python benchmarks/fit/scattered.py --draw 75 --seed 61 --rows 257 3072 --out DRAWN.csv
    python benchmarks/fit/near.py --suite DRAWN.csv [--suite OTHERS.csv] --out NEW.db

Of each problem it tries the configs of least estimate, of all kernels and of each, and others drawn at random of those
whose estimate is not much longer than the least: which of near ties is faster is what a formula asks, and random
configs of whole spaces say little of that. The first 220 problems of data/near-h100.db.xz were tried before this script
was one: without the first of each kernel, and up to 1.2 times the least estimate. data/near-many-rows-h100.db.xz has
150 problems of 257 to 1,100 rows, 90 of 1,100 to 4,096, 80 of 257 to 4,096, 150 of those with 64 to 1,536 columns, and
40 of 129 to 256 rows (`scattered.py` with the seeds 72, 73, 71, 75 and 74). data/near-h200.db.xz has 300 problems of
the seeds 81 to 87, but for three whose weights a suite has: 90 of 257 to 4,096 rows and 64 to 1,536 columns, 50 of 257
to 1,100 rows, 40 of 1,100 to 4,096, of 129 to 256 and of 16 to 128, 15 of 1 to 15, and 25 of 1 to 256 with such
columns. data/near-blocks-h200.db.xz is of scales of blocks: 100 problems of 257 to 8,192 rows, 60 with N from 512 on
and 40 with 512 to 8,192 columns (seeds 183 and 184), and those of suites/drawn-blocks.csv with up to 256 rows;
data/narrow-blocks-h200.db.xz has 16 to 255 columns and K from 512 on, 70 of 257 to 16,384 rows and 30 of up to 256
(seeds 191 and 192). data/plain-few-rows-h200.db.xz is of float32 with K from 256 on: 60 problems of 1 to 4 rows and 16
to 16,384 columns, and 60 of 5 to 256 rows and 16 to 1,024 columns (seeds 201 and 202).
"""

from __future__ import annotations

import argparse
import random

from tuner.cli import main
from tuner.kernels.gemm.small_m import gemv
from tuner.sweep.search import FixedList, Strategy
from tuner.sweep.strategies import STRATEGIES

FIRST, FIRST_OF_A_KERNEL = 6, 3
NEAR = 1.35
"""Times the logarithm of the least estimate in microseconds: of 20 us, up to 57."""
DRAWN = {"warp_specialized": 10, "any_width": 4, None: 16}
"""How many configs are drawn at random, by kernel; None: of all."""
DRAWN_OF_BLOCKS = {"block_scaled_warp_specialized": 20, "any_height_split": 20, None: 12}
"""The same with scales of blocks: nearly all of two small spaces."""
DRAWN_OF_PLAIN = {"gemv": 100, "simt": 24, "split_k": 24, None: 12}
"""The same of up to four rows, which `gemv` serves, and of full float32: nearly all of `gemv`."""


def near_least(task):
    estimates = {config: task.estimate(config) for config in task.configs}
    order = sorted(estimates, key=estimates.get)
    taken = order[:FIRST]
    for kernel in task.specs:
        taken += [config for config in order if config.kernel == kernel][:FIRST_OF_A_KERNEL]
    near = [config for config in order if estimates[config] <= NEAR * estimates[order[0]]]
    drawing = random.Random(task.seed)
    for kernel, count in drawn(task.problem).items():
        some = [config for config in near if kernel in (None, config.kernel)]
        taken += drawing.sample(some, min(count, len(some)))
    chosen = list(dict.fromkeys([task.default, *taken]))
    return FixedList(chosen, f"its {len(chosen)} trials are spent")


def drawn(problem):
    if problem.scaling == "block":
        return DRAWN_OF_BLOCKS
    return DRAWN_OF_PLAIN if problem.m <= gemv.MOST_ROWS or problem.a_dtype == "float32" else DRAWN


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", required=True, action="append", help="whose problems are tried; may be repeated")
    parser.add_argument("--device", default="cuda:0", help="likewise")
    parser.add_argument("--out", required=True, metavar="DATABASE")
    args = parser.parse_args()
    STRATEGIES["race"] = Strategy("race", near_least, drop=(1.3, 1.15), finalists=1, margin=1.005, rounds=6)
    suites = [word for name in args.suite for word in ("--suite", name)]
    main(["run", *suites, "--device", args.device, "--db", args.out])
