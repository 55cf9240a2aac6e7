"""Scattered trials: random problems, and of each configs that no race would come to, for a fit to be held against.

    python benchmarks/scattered.py --problems 150 --configs 52 --seed 1 --time-budget 200 --out FILE.csv.gz

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
import itertools
import json
import math
import multiprocessing
import random
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor

import retimed
from recorded import H200, ROOT, trials

from tuner import device as devices
from tuner import registry, suite
from tuner.kernels import cluster_k, warp_specialized
from tuner.problem import Problem
from tuner.sweep.bench import GraphTimer
from tuner.sweep.clocks import Clocks
from tuner.sweep.compile import CompilePool, cpu_count
from tuner.sweep.field import Field
from tuner.sweep.job import Job
from tuner.sweep.measure import Measurement
from tuner.sweep.search import Listed, Strategy

FIELDS = ("run", "m", "n", "k", "kernel", "config", "us")
_MOST_PRODUCTS = 4e11
"""M * N * K: beyond, a problem takes the time of ten others."""
_MOST_WEIGHTS = 4e8
"""N * K: beyond, B does not fit a few gigabytes in several sets."""
_ROWS = (1, 4096), (5, 256), (1, 16), (17, 256)
"""M, by turns: half the problems have rows among which most choices are."""
_SIDES = (1024, 65536), (1024, 32768)
"""N and K."""
_AGAIN = (1.3, 1.15)
"""Configs within these of the fastest are replayed a second and a third time."""
_SHARES = ((1.0, 1.1, 0.3), (1.1, 1.3, 0.25), (1.3, 1.7, 0.15), (1.7, math.inf, 0.08))
"""Of a problem's configs, how many are drawn of those whose estimate is so many times the least one."""
_LIKELY_SHARES = ((1.0, 1.05, 0.35), (1.05, 1.12, 0.25), (1.12, 1.3, 0.15))
"""The same of what a formula might choose."""
_OPTIONS = 0.25
"""How many have an option besides that the model's first lack."""
_SELDOM = ("pointer", "split_k", "tma", "persistent_tma")
"""Kernels that hardly ever win these problems: of them few are drawn."""
_POLL_S = 0.01


def main():
    args = parsed()
    deadline = time.monotonic() + args.time_budget
    spawn = multiprocessing.get_context("spawn")
    if args.drawn:
        listed = trials(args.drawn, str(args.seed))
        problems, drawn = list(listed), [list(configs) for configs in listed.values()]
    else:
        problems = drawn_problems(args.problems, args.seed, [args.rows] if args.rows else _ROWS)
        with ProcessPoolExecutor(cpu_count(), mp_context=spawn) as drawing:
            draw = likely_configs if args.likely else drawn_configs
            drawn = list(drawing.map(draw, problems, [args.configs] * len(problems), chunksize=2))
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


def drawn_problems(count, seed, rows=_ROWS):
    """Random problems, their rows by turns of `rows`."""
    chosen = random.Random(seed)
    kept = {problem.shape for path in sorted((ROOT / "suites").glob("*.csv")) for problem in suite.load(str(path))}
    found = {}
    while len(found) < count:
        least, most = rows[len(found) % len(rows)]
        m = round(math.exp(chosen.uniform(math.log(least), math.log(most))))
        m -= m % chosen.choice((1, 1, 4, 8, 16)) if m > 16 else 0
        step = chosen.choice((64, 128, 256))
        n, k = (step * round(math.exp(chosen.uniform(*map(math.log, ends))) / step) for ends in _SIDES)
        if m * n * k <= _MOST_PRODUCTS and n * k <= _MOST_WEIGHTS and (m, n, k) not in kept:
            found[Problem(m, n, k, dtype="bfloat16", layout="nt")] = None
    return list(found)


def drawn_configs(problem, count):
    """A problem's configs to measure, its default first."""
    chosen = random.Random(str(problem))
    spaces, default, us = estimated(problem)
    by_estimate = sorted(us, key=lambda one: (us[one], one))
    least_us = min(time for one, time in us.items() if one.kernel not in _SELDOM)
    taken = dict.fromkeys([default])
    for name in dict.fromkeys(one.kernel for one in us):
        of_kernel = [one for one in by_estimate if one.kernel == name]
        near = [one for one in of_kernel if us[one] <= 1.2 * us[of_kernel[0]]]
        taken |= dict.fromkeys([*of_kernel[:1], *chosen.sample(near, min(2, len(near)))])
    for least, most, share in _SHARES:
        within = [one for one in by_estimate if least <= us[one] / least_us < most and one.kernel not in _SELDOM]
        taken |= dict.fromkeys(chosen.sample(within, min(len(within), round(share * count))))
    usual = [one for one in taken if one.kernel not in _SELDOM]
    likely = sorted(usual, key=lambda one: us.get(one, 0.0))[: count // 2]
    taken |= dict.fromkeys(options(likely, spaces, round(_OPTIONS * count), chosen))
    return list(taken)


def likely_configs(problem, count):
    """A problem's configs that a formula might choose, its default first: of each tile one, before another has two."""
    chosen = random.Random(str(problem))
    spaces, default, us = estimated(problem)
    us = {one: time for one, time in us.items() if one.kernel not in _SELDOM and ranked(one, problem)}
    least_us = min(us.values())
    first = {name: min(group) for name, group in grouped(us, lambda one: one.kernel).items()}
    taken = dict.fromkeys([default, *(one for time, one in first.values() if time < _LIKELY_SHARES[-1][1] * least_us)])
    for least, most, share in _LIKELY_SHARES:
        within = {one: time for one, time in us.items() if least <= time / least_us < most and one not in taken}
        taken |= dict.fromkeys(by_turns(within, round(share * count), chosen))
    taken |= dict.fromkeys(options(list(taken)[: count // 3], spaces, round(_OPTIONS * count / 2), chosen))
    return list(taken)


def ranked(config, problem):
    """Whether a default formula looks at a config."""
    if config.kernel == "composite_n" or (config.kernel == "gemv" and problem.m > 1):
        return False
    if config.kernel == "cluster_k":
        return problem.m <= cluster_k.MOST_ROWS
    return config.kernel != "warp_specialized" or warp_specialized.is_usual(config, problem)


def estimated(problem):
    """A problem's search spaces by kernel, its default, and every config's estimate where a kernel has a model."""
    specs = {spec.name: spec for spec in registry.serving(problem, H200)}
    spaces = {name: spec.space(problem, H200) for name, spec in specs.items()}
    models = {name: spec.estimate_us for name, spec in specs.items() if spec.estimate_us and name != "padded"}
    default = registry.default_config(problem, H200)
    us = {one: model(one, problem, H200) for name, model in models.items() for one in spaces[name].configs()}
    return spaces, spaces[default.kernel].canonicalize(default), us


def grouped(us, key):
    """(estimate, config) of each group, by what `key` makes of a config."""
    found = defaultdict(list)
    for one, time_us in us.items():
        found[key(one)].append((time_us, one))
    return found


def by_turns(us, count, chosen):
    """So many configs: each time another tile's."""
    tiles = list(grouped(us, tile).values())
    for of_tile in tiles:
        chosen.shuffle(of_tile)
    chosen.shuffle(tiles)
    turns = itertools.zip_longest(*tiles)
    return [pair[1] for turn in turns for pair in turn if pair is not None][:count]


def tile(config):
    """What tells tiles apart."""
    sizes = (
        "BLOCK_SIZE_M",
        "BLOCK_SIZE_N",
        "BLOCK_SIZE_N_REST",
        "BLOCK_SIZE_K",
        "LOADS",
        "SPLIT_K",
        "SWAP_AB",
        "num_ctas",
    )
    return config.kernel, *(str(config.get(name, "")) for name in sizes)


def options(configs, spaces, count, chosen):
    """Some of the options of configs that the model's first lack."""
    refined = [option for one in configs for option in spaces[one.kernel].refinements(one)]
    return chosen.sample(refined, min(len(refined), count))


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
    strategy = Strategy("listed", lambda _field: Listed(configs, "every config was tried"))
    job = Job(Field(problem, H200, specs, configs, configs[0]), strategy)
    job.resume({})
    job.request(pool)
    return job


def compiled(job, pool, deadline):
    """Its configs that compiled, each program once, when all have; what is there when the time is up."""
    ready = []
    while job.searching and time.monotonic() < deadline:
        batch, _ = job.take(len(job.candidates), pool)
        ready += batch
        pool.mend()
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
