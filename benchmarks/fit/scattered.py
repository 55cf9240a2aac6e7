"""Trials of random problems (nt), for a fit to be held against: draws a suite, and takes a database's trials.

    python benchmarks/fit/scattered.py --draw 150 --seed 1 --out DRAWN.csv [--dtype e4m3] [--scaling block]
    tuner run --suite DRAWN.csv --strategy race --db NEW.db
    tuner run --suite DRAWN.csv --strategy random --trials 52 --db NEW.db
    python benchmarks/fit/scattered.py --db NEW.db --run 14 --out FILE.csv.gz

A race measures what the model already likes, so its trials alone say little of what the model is wrong about: a random
search adds the others. Shapes of benchmarks/suites are left out. The file is of bf16; a compressed database holds all.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import math
import random
import sys
from pathlib import Path

from tuner.problem import Problem, suite
from tuner.store.listing import TrialFilter
from tuner.store.records import State
from tuner.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
from recorded import ROOT

_MOST_PRODUCTS = 4e11
"""M * N * K: beyond, a problem takes the time of ten others."""
_MOST_WEIGHTS = 4e8
"""N * K: beyond, B does not fit a few gigabytes in several sets."""
ROWS = (1, 4096), (5, 256), (1, 16), (17, 256)
"""M, by turns: half the problems have rows among which most choices are."""
_SIDES = (65536, 32768)
"""The most of N and K."""
_BLOCK = 128
"""Elements along K of a scale's block."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draw", type=int, metavar="N", help="problems of a suite")
    parser.add_argument("--seed", type=int, default=1, help="of the drawing")
    parser.add_argument("--rows", type=int, nargs=2, metavar=("LEAST", "MOST"), help="M; without it by several turns")
    parser.add_argument("--columns", type=int, nargs=2, metavar=("LEAST", "MOST"), help="N; without it from --least on")
    parser.add_argument("--least", type=int, default=1024, help="of N and K")
    parser.add_argument("--dtype", choices=("bfloat16", "float32", "e4m3"), default="bfloat16", help="of A and B")
    parser.add_argument("--scaling", choices=("none", "row", "block"), default="none", help="of e4m3")
    parser.add_argument("--db", help="take its trials")
    parser.add_argument("--run", default="1", help="the trials' run in the file")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    if bool(args.draw) == bool(args.db):
        parser.error("say --draw N for a suite, or --db DATABASE for its trials")
    if args.scaling != "none" and args.dtype != "e4m3":
        parser.error("--scaling is of fp8: say --dtype e4m3")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    if args.draw:
        table.writerow(("m", "n", "k", "dtype", "layout", "scaling"))
        rows = (tuple(args.rows),) if args.rows else ROWS
        drawn = shapes(args.draw, args.seed, rows, args.least, _BLOCK if args.scaling == "block" else 1, args.columns)
        table.writerows((*shape, args.dtype, "nt", args.scaling) for shape in drawn)
        Path(args.out).write_text(text.getvalue())
        return
    table.writerow(("run", "m", "n", "k", "kernel", "config", "us"))
    for (problem, config), us in sorted(trials(args.db).items()):
        named = json.dumps(dict(config.pairs), separators=(",", ":"), sort_keys=True)
        table.writerow([args.run, *problem.shape, config.kernel, named, f"{us:.5g}"])
    with gzip.GzipFile(args.out, "wb", mtime=0) as file:
        file.write(text.getvalue().encode())


def shapes(count, seed, rows=ROWS, smallest=1024, multiple=1, columns=None):
    """Random shapes, sizes spread evenly in their logarithms, N and K from `smallest` on, K in whole multiples.

    With `columns`, the least and the most, N is a multiple of 16 between them.
    """
    chosen = random.Random(seed)
    kept = {problem.shape for path in sorted((ROOT / "suites").glob("*.csv")) for problem in suite.load(str(path))}
    found = {}
    while len(found) < count:
        least, most = rows[len(found) % len(rows)]
        m = round(math.exp(chosen.uniform(math.log(least), math.log(most))))
        m -= m % chosen.choice((1, 1, 4, 8, 16)) if m > 16 else 0
        step = chosen.choice((64, 128, 256))
        n, k = (
            step * max(1, round(math.exp(chosen.uniform(math.log(smallest), math.log(most))) / step)) for most in _SIDES
        )
        k = -(-k // multiple) * multiple
        if columns:
            n = 16 * max(1, round(math.exp(chosen.uniform(*map(math.log, columns))) / 16))
        if m * n * k <= _MOST_PRODUCTS and n * k <= _MOST_WEIGHTS and (m, n, k) not in kept:
            found[m, n, k] = None
    return list(found)


def trials(path):
    """The time of every config that ran and was right, of problems that a row of the file can name."""
    with Store.open(path, read_only=True) as store:
        rows = [row for row in store.trials(TrialFilter(state=State.COMPLETE)) if row.problem.op == "matmul"]
    plain = (row for row in rows if row.problem == Problem(*row.problem.shape, dtype="bfloat16", layout="nt"))
    return {(row.problem, row.config): row.outcome.median_us for row in plain}


if __name__ == "__main__":
    main()
