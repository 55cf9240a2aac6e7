"""Landscapes for the search's replay: every config's time on recorded problems, the fastest measured again together.

    tuner run --suite FILE.csv --strategy exhaustive --db NEW.db
    python benchmarks/fit/landscapes.py --db NEW.db --gpus 0,1 --out benchmarks/data/NAME.json.gz

takes the trials of an exhaustive sweep.

A sweep replays a config once to three times, so the fastest of a thousand is partly luck: what counts as the best, and
how one replay scatters, come from rounds that the fastest play together.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tuner.hardware import device as devices
from tuner.kernel import registry
from tuner.store.listing import TrialFilter
from tuner.store.records import State
from tuner.store.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
import record
import retimed

_COSTS = ("enter_ms", "replay_ms", "set_up_s")
_HEADER = ("gpus", "driver", "python", "torch", "triton", "triton_tuner", "date", "command")


@dataclasses.dataclass
class Task:
    """What is known of a problem, and what to measure of it.

    Attributes:
        problem: which.
        known: microseconds and compile milliseconds by config.
        configs: to measure, the most promising first.
        others: configs that cannot be measured.
    """

    problem: object
    known: dict
    configs: list
    others: list = dataclasses.field(default_factory=list)


def main():
    args = parsed()
    gpus = args.gpus.split(",")
    spawn = multiprocessing.get_context("spawn")
    slots = spawn.Queue()
    for gpu in gpus:
        slots.put(gpu)
    deadline = time.monotonic() + args.time_budget
    with ExitStack() as stack:
        workers = stack.enter_context(
            ProcessPoolExecutor(len(gpus), mp_context=spawn, initializer=retimed.take_gpu, initargs=(slots,))
        )
        device = workers.submit(devices.current).result()
        tasks = swept(args.db, device)
        rules = retimed.Rules(args.top, args.rounds, deadline)
        submitted = [
            (task, workers.submit(retimed.measure, task.problem, task.configs, rules) if task.configs else None)
            for task in tasks
        ]
        entries = [entry(task, future and future.result()) for task, future in submitted]
    document = body([found for found in entries if found is not None])
    document |= {name: value for name, value in record.header().items() if name in _HEADER}
    with gzip.GzipFile(args.out, "wb", mtime=0) as file:
        file.write(json.dumps(document, separators=(",", ":"), default=str).encode())


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", required=True, help="of an exhaustive sweep")
    parser.add_argument("--gpus", default="0", help="CUDA indices, comma separated; -1: the interpreter, to rehearse")
    parser.add_argument("--top", type=int, default=80, help="configs measured together at most")
    parser.add_argument("--rounds", type=int, default=15, help="that they play")
    parser.add_argument("--time-budget", type=float, default=float("inf"), help="seconds: no problem is begun after")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def swept(path, device):
    """Tasks of a sweep's database: today's configs, of which the fastest are measured again."""
    with Store.open(path, read_only=True) as store:
        tasks = {w.problem: Task(w.problem, {}, []) for w in store.winners() if w.problem.op == "matmul"}
        spaces = {problem: spaces_of(problem, device) for problem in tasks}
        for row in store.trials(TrialFilter()):
            task, config, outcome = tasks.get(row.problem), row.config, row.outcome
            if task is None or spaces[row.problem][config.kernel].rejection(config) is not None:
                continue
            if outcome.state is State.COMPLETE:
                task.known[config] = outcome.median_us, outcome.resources.compile_ms
            else:
                task.others.append(config)
    for problem, task in tasks.items():
        fastest = retimed.near({config: us for config, (us, _) in task.known.items()})
        task.configs = list(dict.fromkeys([registry.default_config(problem, device), *fastest]))
        yield task


def spaces_of(problem, device):
    return {spec.name: spec.space(problem, device) for spec in registry.serving(problem, device)}


def entry(task, found):
    """A problem's part of the document, all times on the scale of the rounds; None if the time was up.

    Args:
        task: what was known.
        found: what `retimed.measure` returned.
    """
    if found is None:
        print(f"{task.problem!s:44} left out")
        return None
    rounds = {config: [float(f"{us:.5g}") for us in times] for config, times in found.rounds.items()}
    medians = {config: statistics.median(times) for config, times in rounds.items()}
    known = {config: us for config, (us, _) in task.known.items()}
    us = scaled(found.us, medians) | scaled(known, medians)
    compile_ms = {config: ms for config, (_, ms) in task.known.items()}
    best_us = min(medians.values())
    print(f"{task.problem!s:44} {len(us):5} configs {best_us:9.2f} us, {found.enter_ms:6.2f} ms to enter", flush=True)
    listed = sorted(us)
    return {
        "problem": task.problem.fields(),
        "label": str(task.problem),
        "configs": listed,
        "us": [float(f"{us[config]:.5g}") for config in listed],
        "compile_ms": [compile_ms.get(config) for config in listed],
        "others": sorted({*task.others, *found.failed} - us.keys()),
        "rounds": rounds,
        **{name: round(getattr(found, name), 3) for name in _COSTS},
    }


def scaled(us, medians):
    """Times brought to the scale of others: by the median ratio over the configs that both have."""
    ratios = [medians[config] / us[config] for config in medians if config in us]
    by = statistics.median(ratios) if ratios else 1.0
    return {config: by * time_us for config, time_us in us.items()}


def body(entries):
    """Configs once, in a list; each problem's by their index there."""
    configs = sorted({config for one in entries for config in (*one["configs"], *one["others"], *one["rounds"])})
    index = {config: number for number, config in enumerate(configs)}
    numbered = [
        one
        | {name: [index[config] for config in one[name]] for name in ("configs", "others")}
        | {"rounds": {index[config]: times for config, times in one["rounds"].items()}}
        for one in entries
    ]
    return {"configs": [[config.kernel, dict(config.pairs)] for config in configs], "problems": numbered}


if __name__ == "__main__":
    main()
