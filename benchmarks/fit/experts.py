"""How well the cost model ranks configs of vLLM's fused experts, by the cycles that it adds to a step along K.

    python benchmarks/fit/experts.py --out RESULT.json
    python benchmarks/fit/experts.py --db DATABASE --db DATABASE --write FILE.csv.gz      # take trials of `tuner moe`

The data are trials that searches measured, so configs that the model of the day liked, vLLM's own and their neighbours.
A layer's file is a group: each is also judged by the cycles that the others choose.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tuner.kernel.config import Config
from tuner.moe import space
from tuner.problem import Problem
from tuner.store.records import State
from tuner.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import H200, ROOT, trials_of_experts

DATA = ROOT / "data" / "experts-trials-h200.csv.gz"
CYCLES = (0.0, 400.0, 800.0, 1200.0, 1600.0, 2400.0)
FIRST = (4, 8)
"""The best of as many configs that the model puts first."""
Times = dict[str, dict[Problem, dict[Config, float]]]
"""Microseconds by layer, problem and config."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--db", action="append", default=[], type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.db and args.write:
        write(args.write, args.db)
    elif args.out:
        times = trials_of_experts(DATA)
        found = {cycles: judged(times, cycles) for cycles in CYCLES}
        body = {
            "problems": sum(map(len, times.values())),
            "trials": sum(len(configs) for problems in times.values() for configs in problems.values()),
            "not_exchanged": mean(judged(times, 0.0, exchanging="none").values()),
            "by_cycles": {str(cycles): mean(layers.values()) for cycles, layers in found.items()},
            "left_out": {layer: left_out(found, layer) for layer in times},
        }
        print(json.dumps(body, indent=1))
        record.write(args.out, body)
    else:
        parser.error("say --out, or --db and --write")


def write(path: Path, databases: list[Path]) -> None:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("layer", "problem", "config", "us"))
    for database in databases:
        with Store.open(str(database), read_only=True) as store:
            for each in store.trials():
                if each.outcome.state is State.COMPLETE and each.outcome.median_us:
                    fields = json.dumps(each.problem.fields(), sort_keys=True)
                    table.writerow(
                        (database.stem, fields, each.config.parameters_json, round(each.outcome.median_us, 3))
                    )
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def judged(times: Times, cycles: float, *, exchanging: str = "sm_90") -> dict[str, dict[str, float]]:
    """By layer, how the model ranks with so many cycles, and exchanged tiles on one architecture."""
    space._STEP_CYCLES, space._EXCHANGING = cycles, exchanging
    return {layer: mean([of_problem(*each) for each in problems.items()]) for layer, problems in times.items()}


def of_problem(problem: Problem, us: Mapping[Config, float]) -> dict[str, float]:
    estimates = {config: space.estimate_us(config, problem, H200) for config in us}
    order, best = sorted(us, key=lambda config: (estimates[config], config)), min(us.values())
    found = {f"best_of_{count}": min(us[config] for config in order[:count]) / best for count in FIRST}
    return found | {"spearman": statistics.correlation(ranks(estimates.values()), ranks(us.values()))}


def ranks(values: Iterable[float]) -> list[int]:
    listed = list(values)
    order = {value: number for number, value in enumerate(sorted(listed))}
    return [order[value] for value in listed]


def mean(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Geometric means of ratios, the mean of correlations."""
    listed = list(rows)
    ratios = {name: record.geomean([row[name] for row in listed]) for name in listed[0] if name != "spearman"}
    found = ratios | {"spearman": statistics.mean(row["spearman"] for row in listed)}
    return {name: round(value, 4) for name, value in found.items()}


def left_out(found: Mapping[float, dict[str, dict[str, float]]], layer: str) -> dict[str, float]:
    """The cycles that the other layers choose, and how the model ranks this one's configs by them."""

    def of_others(cycles: float) -> float:
        return record.geomean([row["best_of_4"] for name, row in found[cycles].items() if name != layer])

    chosen = min(found, key=of_others)
    return {"cycles": chosen, **found[chosen][layer]}


if __name__ == "__main__":
    main()
