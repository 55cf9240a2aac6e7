"""Is a config faster in one process than in another because of where its operands lie?

    python benchmarks/claims/retiming.py --out FOLDER
    python benchmarks/studies/placement.py --runs FOLDER --out placement.json
    python benchmarks/studies/placement.py --runs FOLDER --out placement.json --gpu -1 --processes 2    # a rehearsal

Of the problems of few rows with the largest weights, and of two with the smallest, the fastest configs on record play
each other and torch's library: in several processes, in each on several lots of operands, made one after the other
while all before them exist. A figure is a config's time over the geometric mean of all, the median of ten rounds on one
lot. Its standard deviation is told apart by what differs: nothing (odd and even rounds), the lot, the process.

Decision 116 expects that lots of large operands differ by far more than noise, some configs' by 2%, and the means of
processes by half as much as lots, as means of four lots would. Then finals on eight sets are the cure. If processes
differ and their lots do not, it is something else that a process has once, and the finals' own memory may go again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.store.records import State
from tuner.store.store import Store
from tuner.sweep.device_session import DeviceSession, open_session

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

LARGE, SMALL, CONFIGS, ROUNDS = 6, 2, 7, 10
VENDOR = "vendor"
Figures = dict[str, list[float]]
"""By contestant, its log time over that of all, round by round."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", required=True, type=Path, metavar="FOLDER", help="what claims/retiming.py made")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE.json")
    parser.add_argument("--gpu", type=int, default=0, help="its index; -1 for the interpreter")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--lots", type=int, default=4)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(play(args)))
        return
    os.environ["TRITON_CACHE_DIR"] = str((args.runs / "cache").resolve())
    if args.gpu < 0:
        os.environ["TRITON_INTERPRET"] = "1"
    command = [sys.executable, *sys.argv, "--child"]
    told = [
        json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(args.processes)
    ]
    rows = [spread(problem, [process[problem] for process in told]) for problem in told[0]]
    for row in rows:
        shares = "  ".join(f"{name} {100 * row[name]:.2f}%" for name in ("noise", "lots", "processes"))
        print(
            f"{row['problem']:45} sets {row['sets']:3}  {shares}  worst {100 * row['worst']:.1f}% {row['worst_config']}"
        )
    record.write(args.out, {"rows": rows})


def play(args: argparse.Namespace) -> dict[str, Any]:
    """One process: by problem, the number of sets in a lot, and each lot's figures."""
    import torch

    with contextlib.ExitStack() as stack:
        session = open_session(None if args.gpu < 0 else args.gpu, stack)
        found = {}
        for problem, configs in chosen(args.runs / "runs.db", session.device).items():
            found[str(problem)] = lots(problem, configs, session, args.lots)
            session.timer.synchronize()
            torch.cuda.empty_cache()  # as a worker does between problems
        return found


def chosen(db: Path, device: Device) -> dict[Problem, list[Config]]:
    """The problems of few rows with the largest weights and the smallest, and the fastest configs of each."""
    known: dict[Problem, dict[Config, float]] = defaultdict(dict)
    with Store.open(str(db), read_only=True) as store:
        for trial in store.trials():
            if trial.outcome.state is State.COMPLETE and trial.outcome.median_us:
                known[trial.problem][trial.config] = trial.outcome.median_us
    few = sorted((p for p in known if p.m <= 64 and p.a_dtype == "bfloat16"), key=lambda p: (p.n * p.k, p.m))
    listed = dict.fromkeys([*few[-LARGE:], *few[:SMALL]] or list(known)[:LARGE])
    return {
        problem: list(dict.fromkeys([*sorted(known[problem], key=known[problem].__getitem__)[:CONFIGS], default]))
        for problem, default in ((each, registry.default_config(each, device)) for each in listed)
    }


def lots(problem: Problem, configs: list[Config], session: DeviceSession, count: int) -> dict[str, Any]:
    timer, first = session.timer, registry.serving(problem, session.device)[0]
    held = []
    size = timer.buffer_sets(first.make_inputs(problem, session.torch_device, 0).nbytes)
    figures = []
    for _ in range(count):
        held.append([first.make_inputs(problem, session.torch_device, seed) for seed in range(size)])
        figures.append(rounds(problem, configs, session, held[-1]))
    return {"sets": size, "lots": figures}


def rounds(problem: Problem, configs: list[Config], session: DeviceSession, sets: list[Any]) -> Figures:
    calls = {str(config): registry.find(problem.op, config.kernel).launch for config in configs}
    by_name = {str(config): config for config in configs}
    vendor = registry.serving(problem, session.device)[0].vendor
    captures: dict[str, Any] = {}
    for name, launch in calls.items():
        launch(sets[0], by_name[name])  # compiled and loaded before it is captured
        captures[name] = session.timer.capture(
            lambda index, launch=launch, name=name: launch(sets[index], by_name[name]), len(sets)
        )
    vendor(sets[0])
    captures[VENDOR] = session.timer.capture(lambda index: vendor(sets[index]), len(sets))
    found: Figures = {name: [] for name in captures}
    for _ in range(ROUNDS):
        order = random.sample(list(captures), len(captures))
        logs = dict(zip(order, map(math.log, session.timer.replay([captures[name] for name in order])), strict=True))
        middle = statistics.mean(logs.values())
        for name, log in logs.items():
            found[name].append(log - middle)
    return found


def spread(problem: str, processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Standard deviations, pooled over the contestants, and the config that moved most between any two lots."""
    noise, between_lots, between_processes, moved = [], [], [], {}
    for name in processes[0]["lots"][0]:
        medians = [[statistics.median(lot[name]) for lot in process["lots"]] for process in processes]
        halves = [
            statistics.median(lot[name][::2]) - statistics.median(lot[name][1::2])
            for process in processes
            for lot in process["lots"]
        ]
        noise.append(statistics.mean(half * half for half in halves) / 4)  # of a median of all rounds
        between_lots += [statistics.variance(each) for each in medians if len(each) > 1]
        between_processes.append(statistics.variance(map(statistics.mean, medians)) if len(medians) > 1 else 0.0)
        every = [figure for each in medians for figure in each]
        moved[name] = max(every) - min(every)
    worst = max(moved, key=moved.__getitem__)
    told = {"noise": noise, "lots": between_lots, "processes": between_processes}
    return {
        "problem": problem,
        "sets": processes[0]["sets"],
        **{name: math.sqrt(statistics.mean(variances or [0.0])) for name, variances in told.items()},
        "worst": moved[worst],
        "worst_config": worst,
    }


if __name__ == "__main__":
    main()
