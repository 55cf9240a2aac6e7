"""How well the kernels' cost model ranks: held against recorded landscapes.

python benchmarks/claims/cost_model.py --out RESULT.json

Of each problem: where its true best stands in the model's order, the best of the model's first 1 to 64, Spearman's rank
correlation, and the median of estimate over time. Problems of suites/held-out.csv were not fitted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from tuner.kernel import registry
from tuner.problem import suite

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import H200, ROOT, landscapes

BEST = {f"best_of_{count}": count for count in (1, 8, 16, 32, 64)}
_SAME = 1.005
"""Within a tie of the best is the best."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=str(ROOT / "data" / "landscapes-h200.json.gz"))
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    held = set(suite.load(str(ROOT / "suites" / "held-out.csv")))
    rows = [row(land, held_out=land.problem in held) for land in landscapes(args.data)]
    by_part = {"fitted": [one for one in rows if not one["held_out"]], "held_out": [o for o in rows if o["held_out"]]}
    parts = {part: summary(chosen) for part, chosen in by_part.items()}
    print(*rows, parts, sep="\n")
    record.write(args.out, {"summary": parts, "rows": rows})


def row(land, *, held_out):
    models = {name: spec.estimate_us for (op, name), spec in registry.specs().items() if op == land.problem.op}
    estimates = {config: models[config.kernel](config, land.problem, H200) for config in land.us}
    order = sorted(land.us, key=lambda config: (estimates[config], config))
    ratios = [land.us[config] / land.best_us for config in order]
    place = next(number for number, ratio in enumerate(ratios) if ratio <= _SAME * min(ratios))
    times = [land.us[config] for config in order]
    return {
        "problem": land.label,
        "held_out": held_out,
        "configs": len(order),
        "best_at": round(place / len(order), 4),
        **{name: round(min(ratios[:count]), 4) for name, count in BEST.items()},
        "spearman": round(statistics.correlation(range(len(times)), ranks(times)), 3),
        "estimate_over_time": round(statistics.median(estimates[config] / land.us[config] for config in order), 3),
    }


def ranks(times):
    """The place of each time among all."""
    ordered = {time: number for number, time in enumerate(sorted(times))}
    return [ordered[time] for time in times]


def summary(rows):
    return {
        "problems": len(rows),
        "best_in_top_5_percent": round(statistics.mean(found["best_at"] < 0.05 for found in rows), 3),
        "best_in_top_10_percent": round(statistics.mean(found["best_at"] < 0.10 for found in rows), 3),
        "spearman": round(statistics.mean(found["spearman"] for found in rows), 3),
        **{f"geomean_{each}": round(record.geomean([found[each] for found in rows]), 4) for each in BEST},
    }


if __name__ == "__main__":
    main()
