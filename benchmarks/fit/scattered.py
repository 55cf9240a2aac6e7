"""Scattered trials: random problems, and of each configs that no race would come to, for a fit to be held against.

    python benchmarks/fit/scattered.py --problems 150 --configs 52 --seed 1 --time-budget 200 --out FILE.csv.gz

A race measures what the model already likes, so its trials say little of what the model is wrong about. Here problems
are drawn (bf16 nt, sizes spread evenly in their logarithms), and of each: the default, the first of every kernel, some
of the model's first, some of those it holds for up to half as slow again, a few of the rest, and options of all these.
With --likely only what a formula might choose, of as many tiles as can be: so a fit is told where it is too hopeful.
Shapes of benchmarks/suites are left out. All cores compile while the GPU measures; every result is checked first.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tuner.hardware import device as devices
from tuner.kernel import registry
from tuner.sweep.compile_pool import CompilePool, cpu_count
from tuner.sweep.job import Job
from tuner.sweep.measure import Measurement
from tuner.sweep.nvml import Clocks
from tuner.sweep.search import FixedList, Strategy
from tuner.sweep.search_task import SearchTask
from tuner.sweep.timer import GraphTimer

sys.path.insert(0, str(Path(__file__).parents[1]))
import drawing
import retimed
from recorded import H200, trials

FIELDS = ("run", "m", "n", "k", "kernel", "config", "us")
_AGAIN = (1.3, 1.15)
"""Configs within these of the fastest are replayed a second and a third time."""
_POLL_S = 0.01


def main():
    args = parsed()
    deadline = time.monotonic() + args.time_budget
    spawn = multiprocessing.get_context("spawn")
    if args.drawn:
        listed = trials(args.drawn, str(args.seed))
        problems, drawn = list(listed), [list(configs) for configs in listed.values()]
    else:
        problems = drawing.problems(args.problems, args.seed, [args.rows] if args.rows else drawing.ROWS)
        with ProcessPoolExecutor(cpu_count(), mp_context=spawn) as pool:
            draw = drawing.likely_configs if args.likely else drawing.configs_of_all
            drawn = list(pool.map(draw, problems, [args.configs] * len(problems), chunksize=2))
    print(f"{sum(map(len, drawn))} configs of {len(problems)} problems", flush=True)
    if args.draw_only:
        found = {problem: dict.fromkeys(configs, 0.0) for problem, configs in zip(problems, drawn, strict=True)}
    else:
        found = measured(problems, drawn, deadline, spawn, args.gpu)
    write(args.out, str(args.seed), found)


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--problems", type=int, default=150)
    parser.add_argument("--configs", type=int, default=52, help="of each problem")
    parser.add_argument("--seed", type=int, default=1, help="also the run's name in the file")
    parser.add_argument("--time-budget", type=float, default=200, help="seconds: no problem is begun after")
    parser.add_argument("--likely", action="store_true", help="draw what a formula might choose, and options of it")
    parser.add_argument("--rows", type=int, nargs=2, metavar=("LEAST", "MOST"), help="of A; else by turns")
    parser.add_argument("--gpu", default="0", help="its number")
    parser.add_argument("--drawn", help="such a file, for its problems and configs: none are drawn")
    parser.add_argument("--draw-only", action="store_true", help="measure nothing: rehearse without a GPU")
    parser.add_argument("--out", required=True)
    return parser.parse_args()


def measured(problems, drawn, deadline, spawn, gpu):
    """Every drawn config's time, problem by problem until the deadline."""
    slots = spawn.Queue()
    slots.put(gpu)
    with (
        ProcessPoolExecutor(1, mp_context=spawn, initializer=retimed.take_gpu, initargs=(slots,)) as worker,
        CompilePool(worker.submit(devices.current).result()) as pool,
    ):
        jobs = [job_of(problem, configs, pool) for problem, configs in zip(problems, drawn, strict=True)]
        futures = [worker.submit(timed, job.problem, compiled(job, pool, deadline), deadline) for job in jobs]
        found = {job.problem: future.result() for job, future in zip(jobs, futures, strict=True)}
        print(f"{pool.compiled} binaries, {sum(map(len, found.values()))} trials", flush=True)
    return found


def job_of(problem, configs, pool):
    specs = {spec.name: spec for spec in registry.serving(problem, H200)}
    strategy = Strategy("listed", lambda _field: FixedList(configs, "every config was tried"))
    job = Job(SearchTask(problem, H200, specs, configs, configs[0]), strategy)
    job.resume({})
    job.request(pool)
    return job


def compiled(job, pool, deadline):
    """Its configs that compiled, each program once, when all have; what is there when the time is up."""
    ready = []
    while job.searching and time.monotonic() < deadline:
        batch, _ = job.take(len(job.candidates), pool)
        ready += batch
        pool.recover()
        time.sleep(_POLL_S)
    return ready


def timed(problem, configs, deadline):
    """Microseconds of each config that ran and was right; of none when the time is up."""
    if not configs or time.monotonic() > deadline:
        return {}
    import torch

    here = devices.current()
    with torch.cuda.stream(torch.cuda.Stream()):
        spec, timer = registry.serving(problem, here)[0], GraphTimer(here.l2_bytes)
        measurement = Measurement(spec, problem, timer, Clocks(), "cuda")
        outcomes = dict(measurement.search(configs, lambda _config: None, drop=_AGAIN))
    del measurement
    torch.cuda.empty_cache()  # graphs hold pools of their own: of hundreds of problems they would fill the device
    return {config: outcome.median_us for config, outcome in outcomes.items() if outcome.median_us is not None}


def write(path, run, found):
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(FIELDS)
    for problem in sorted(found):
        for config, us in sorted(found[problem].items()):
            named = json.dumps(dict(config.pairs), separators=(",", ":"), sort_keys=True)
            table.writerow([run, *problem.shape, config.kernel, named, f"{us:.5g}"])
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(text.getvalue().encode())


if __name__ == "__main__":
    main()
