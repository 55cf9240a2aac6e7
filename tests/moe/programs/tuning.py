"""Tunes two Ms of a small layer on the interpreter: `tuning.py PACKAGE DATABASE [RECORDING]`; prints what it found."""

import json
import sys
from pathlib import Path

from tuner.moe.layer import Layer
from tuner.moe.space import config_of
from tuner.moe.sweep import Tuning, chosen, tune
from tuner.store.store import Store
from tuner.sweep.report import Observer, Plan

LAYER = Layer(4, 32, 32, 2, "fp16")
SHIPPED = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "SPLIT_K": 1, "num_warps": 2}


class Telling(Observer):
    """Says when a trial was measured, so that who waits may kill this process in the midst."""

    def trial_ended(self, job, config, outcome):
        sys.stderr.write(f"trial {config.digest} {outcome.state}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    package, database, *recording = sys.argv[1:]
    tuning = Tuning(package, LAYER, (1, 8), "zipf", Path(recording[0]) if recording else None)
    shipped = config_of(package, SHIPPED)
    contestants = {problem: [shipped] for m in tuning.ms for problem in tuning.problems(m)}
    tuning = Tuning(package, LAYER, tuning.ms, tuning.routing, tuning.recording, contestants)
    with Store.open(database) as store:
        reports = tune(store, tuning, [None], Plan(trials=4), observer=Telling())
        rows = chosen(store, tuning, reports[0].device, reports[0].environment)
        trials = [trial for trial in store.trials() if trial.config == shipped]
    found = {
        "rows": {m: [winner.config.parameters_json for winner in winners] for m, winners in rows.items()},
        "default_us": [winner.default_us for winners in rows.values() for winner in winners],
        "routing": sorted({str(winner.problem["routing"]) for winners in rows.values() for winner in winners}),
        "measured": sum(each.measured for report in reports for each in report.problems),
        "played": sum(shipped in each.ratios for report in reports for each in report.problems),
        "shipped": sorted({f"{trial.problem.m} {trial.problem['gemm']} {trial.outcome.state}" for trial in trials}),
    }
    json.dump(found, sys.stdout)
