"""Searches of vLLM's experts, replayed on rows of which every config was measured: what single steps from leaders gain.

    python benchmarks/claims/experts_replay.py --out RESULT.json

The data are two runs of experts_space.py on an H100, by fit/experts.py: seven rows, on which the steps were chosen, and
nine that were measured later. The search is the product's own code, and a config's time is the recorded one. Needs no
GPU. vllm has to be installed, or its Python files on the path.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

from tuner.hardware.device import MODELS
from tuner.kernel.config import Config
from tuner.moe import kernel
from tuner.store.records import Outcome, State
from tuner.sweep import race
from tuner.sweep.search import RefinedSearch
from tuner.sweep.search_task import SearchTask, make_search_task

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
from recorded import ROOT, trials_of_experts

DATA = ROOT / "data" / "experts-space-h100.csv.gz"
(H100,) = (model for model in MODELS if model.name == "NVIDIA H100 80GB HBM3")
PACES = {
    "with steps": race.FULL,
    "without": race.FULL,
    "without, patience 24": race.FULL._replace(patience=race.FULL.patience._replace(least=24)),
    "without, first wave 24": race.FULL._replace(first=race.FULL.first._replace(least=24)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path)
    args = parser.parse_args()
    kernel.register("vllm")
    rows = []
    for part, problems in trials_of_experts(DATA).items():
        tasks = {problem: make_search_task(problem, H100) for problem in problems}
        for name, pace in PACES.items():
            race.FULL = pace
            found = [replayed(task_of(name, tasks[problem]), us) for problem, us in problems.items()]
            losses, trials = zip(*found, strict=True)
            row = {"rows": part, "search": name, "problems": len(found), "trials": round(statistics.mean(trials), 1)}
            rows.append(row | {"geomean": round(record.geomean(losses), 4), "worst": round(max(losses), 4)})
            print(rows[-1], flush=True)
    record.write(args.out, {"rows": rows})


def task_of(name: str, task: SearchTask) -> SearchTask:
    return task if name == "with steps" else dataclasses.replace(task, refine=lambda _config: (), refinable=False)


def replayed(task: SearchTask, us: Mapping[Config, float]) -> tuple[float, int]:
    """The fastest config's time that a search tried, over the fastest of all, and how many it tried."""
    search = RefinedSearch(race.Race(task), task.refine, task.trials, refinable=task.refinable)
    outcomes: dict[Config, Outcome] = {}
    while wave := search.propose(outcomes):
        outcomes |= {config: Outcome(State.COMPLETE, median_us=us[config]) for config in wave if config in us}
    return min(us[config] for config in outcomes) / min(us.values()), len(outcomes)


if __name__ == "__main__":
    main()
