"""Landscapes for the search's replay: every config's time, of exhaustive sweeps; the fastest measured again together.

    python benchmarks/tune_suite.py --suite FILE.csv --db NEW.db --out RESULT.json
    python benchmarks/landscapes.py --db NEW.db --gpus 0,1 --out benchmarks/data/NAME.json.gz

With --beside OLDER.json.gz what a sweep of some kernels alone (tune_suite.py --kernel) did not try is taken from there.

A sweep replays a config once to three times, so the fastest of a thousand is partly luck. Here the configs that were
within `NEAR` of the fastest, `TOP` at most, and the default run `ROUNDS` rounds in rotation: what counts as the best,
and how one replay scatters, come from these. What a config costs to enter (launch, check, capture) and a replay costs
is timed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor

import record

from tuner import device as devices
from tuner import registry
from tuner.config import Config
from tuner.problem import Problem
from tuner.records import Outcome, Resources, State
from tuner.store.listing import TrialFilter
from tuner.store.store import Store

NEAR, TOP, ROUNDS = 1.2, 80, 15
_BATCH = 16
_HEADER = ("gpus", "driver", "python", "torch", "triton", "triton_tuner", "date", "command")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--db", required=True)
    parser.add_argument("--gpus", default="0", help="CUDA indices, comma separated; -1: the interpreter, to rehearse")
    parser.add_argument("--beside", help="landscapes recorded before: their configs join those of the database")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    with Store.open(args.db, read_only=True) as store:
        problems = [winner.problem for winner in store.winners() if winner.problem.op == "matmul"]
        trials = {problem: [] for problem in problems}
        for row in store.trials(TrialFilter()):
            if row.problem in trials:
                trials[row.problem].append((row.config, row.outcome))
    if args.beside:
        join(trials, args.beside)
    trials = {problem: offered(problem, listed) for problem, listed in trials.items()}
    gpus = args.gpus.split(",")
    work = [(problem, fastest(trials[problem])) for problem in problems]
    spawn = multiprocessing.get_context("spawn")
    slots = spawn.Queue()
    for gpu in gpus:
        slots.put(gpu)
    with ProcessPoolExecutor(len(gpus), mp_context=spawn, initializer=take_gpu, initargs=(slots,)) as pool:
        measured = list(pool.map(again, work))
    document = body(problems, trials, measured)
    document |= {name: value for name, value in record.header().items() if name in _HEADER}
    with gzip.GzipFile(args.out, "wb", mtime=0) as file:
        file.write(json.dumps(document, separators=(",", ":"), default=str).encode())
    for entry in document["problems"]:
        best = min(min(times) for times in entry["rounds"].values())
        print(f"{entry['label']:44} {len(entry['us']):5} configs {best:9.2f} us, {entry['enter_ms']:6.2f} ms to enter")


def join(trials, path):
    """Add what landscapes know of configs that a problem's trials lack."""
    with gzip.open(path) as file:
        document = json.load(file)
    configs = [Config(kernel, **parameters) for kernel, parameters in document["configs"]]
    for entry in document["problems"]:
        listed = trials.get(Problem.from_fields(entry["problem"]))
        if listed is None:
            continue
        known = {config for config, _ in listed}
        for number, us, compile_ms in zip(entry["configs"], entry["us"], entry["compile_ms"], strict=True):
            if configs[number] not in known:
                outcome = Outcome(State.COMPLETE, median_us=us, resources=Resources(compile_ms=compile_ms))
                listed.append((configs[number], outcome))


def offered(problem, trials):
    """Trials of the configs that today's search spaces offer."""
    device = devices.KNOWN["sm_90"]
    spaces = {spec.name: spec.space(problem, device) for spec in registry.serving(problem, device)}
    return [(config, outcome) for config, outcome in trials if spaces[config.kernel].rejection(config) is None]


def fastest(trials):
    """The configs worth measuring again, from the fastest on."""
    complete = sorted((o.median_us, config) for config, o in trials if o.state is State.COMPLETE)
    return [config for us, config in complete if us <= NEAR * complete[0][0]][:TOP]


def take_gpu(slots):
    gpu = slots.get()
    if gpu == "-1":
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def again(task):
    """Times of the fastest configs, each round's in one list; milliseconds to enter a config and to replay one."""
    problem, configs = task
    import torch

    from tuner.sweep.bench import GraphTimer, HostTimer
    from tuner.sweep.clocks import Clocks
    from tuner.sweep.measure import Measurement

    on_gpu = "CUDA_VISIBLE_DEVICES" in os.environ
    here = devices.current()
    timer = GraphTimer(here.l2_bytes) if on_gpu else HostTimer()
    timer.search_rounds = 1
    spec = registry.serving(problem, here)[0]
    default = registry.default_config(problem, here)
    configs = list(dict.fromkeys([*configs, default]))
    begin = time.perf_counter()
    with torch.cuda.stream(torch.cuda.Stream()) if on_gpu else torch.no_grad():
        measurement = Measurement(spec, problem, timer, Clocks(), "cuda" if on_gpu else "cpu")
        set_up_s = time.perf_counter() - begin
        warm = [config for config, _ in measurement.search(configs, lambda _config: None, drop=())]
        begin = time.perf_counter()
        again_at = warm[:_BATCH]
        list(measurement.search(again_at, lambda _config: None, drop=()))
        both_s = (time.perf_counter() - begin) / len(again_at)
        shots = {config: measurement._capture(measurement._call(config)) for config in configs}
        timer.fire(list(shots.values()))
        begin = time.perf_counter()
        rounds = [timer.fire(list(shots.values())) for _ in range(ROUNDS)]
        replay_s = (time.perf_counter() - begin) / ROUNDS / len(shots)
    times = [list(of_one) for of_one in zip(*rounds, strict=True)]
    return list(shots), times, (both_s - replay_s) * 1e3, replay_s * 1e3, set_up_s


def body(problems, trials, measured):
    """Configs once, in a list; each problem's trials by their index there."""
    configs = sorted({config for listed in trials.values() for config, _ in listed})
    index = {config: number for number, config in enumerate(configs)}
    entries = []
    for problem, (top, rounds, enter_ms, replay_ms, set_up_s) in zip(problems, measured, strict=True):
        listed = sorted((index[config], outcome) for config, outcome in trials[problem])
        complete = [(number, outcome) for number, outcome in listed if outcome.state is State.COMPLETE]
        entries.append(
            {
                "problem": problem.fields(),
                "label": str(problem),
                "configs": [number for number, _ in complete],
                "us": [float(f"{outcome.median_us:.5g}") for _, outcome in complete],
                "compile_ms": [outcome.resources.compile_ms for _, outcome in complete],
                "others": [number for number, outcome in listed if outcome.state is not State.COMPLETE],
                "rounds": {
                    index[config]: [float(f"{us:.5g}") for us in times]
                    for config, times in zip(top, rounds, strict=True)
                    if config in index
                },
                "enter_ms": round(enter_ms, 3),
                "replay_ms": round(replay_ms, 3),
                "set_up_s": round(set_up_s, 3),
            }
        )
    return {"configs": [[config.kernel, dict(config.pairs)] for config in configs], "problems": entries}


if __name__ == "__main__":
    main()
