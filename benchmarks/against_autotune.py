"""Our winners, torch.matmul, and a plain tiled kernel under triton.autotune with the tutorial's config list.

    python benchmarks/against_autotune.py --db TUNED.db --out RESULT.json

The seconds are those of autotune's first call for each shape, compiles and measurements, from an empty Triton cache.
`tuner bench --against vendor,autotune` plays the same on the command line, over what a lookup gives.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="autotune-")

import paired
import record
import torch

from tuner.contest.tutorial import multiply
from tuner.store.store import Store


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with Store.open(args.db, read_only=True) as store:
        winners = {winner.problem: winner.config for winner in store.winners()}
    rows = []
    with paired.gpu() as bench:
        for problem, config in sorted(winners.items(), key=lambda item: item[0]):
            spec, sets = bench.operands(problem)
            start = time.perf_counter()
            multiply(sets[0])
            torch.cuda.synchronize()
            tune_s = time.perf_counter() - start
            calls = {
                "winner": bench.launcher(problem, config, sets),
                "torch": lambda index, spec=spec, sets=sets: spec.vendor(sets[index]),
                "autotune": lambda index, sets=sets: multiply(sets[index]),
            }
            ratios = paired.over(bench.play(calls, len(sets)), "winner")
            rows.append(
                {
                    "problem": str(problem),
                    "winner_vs_torch": round(ratios["torch"], 4),
                    "winner_vs_autotune": round(ratios["autotune"], 4),
                    "autotune_s": round(tune_s, 2),
                }
            )
            print(rows[-1], flush=True)
    summary = {
        "problems": len(rows),
        "geomean_winner_vs_torch": round(record.geomean([row["winner_vs_torch"] for row in rows]), 4),
        "geomean_winner_vs_autotune": round(record.geomean([row["winner_vs_autotune"] for row in rows]), 4),
        "autotune_s": round(sum(row["autotune_s"] for row in rows), 1),
    }
    print(summary)
    record.write(args.out, {"summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
