"""Random problems, and of each some of its configs: for trials that a fit is held against (scattered.py)."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict

from recorded import H200, ROOT

from tuner.kernel import registry
from tuner.kernels.gemm.hopper import warp_specialized
from tuner.kernels.gemm.precedence import CLUSTER_ROWS
from tuner.problem import Problem, suite

_MOST_PRODUCTS = 4e11
"""M * N * K: beyond, a problem takes the time of ten others."""
_MOST_WEIGHTS = 4e8
"""N * K: beyond, B does not fit a few gigabytes in several sets."""
ROWS = (1, 4096), (5, 256), (1, 16), (17, 256)
"""M, by turns: half the problems have rows among which most choices are."""
_SIDES = (1024, 65536), (1024, 32768)
"""N and K."""
_SHARES = ((1.0, 1.1, 0.3), (1.1, 1.3, 0.25), (1.3, 1.7, 0.15), (1.7, math.inf, 0.08))
"""Of a problem's configs, how many are drawn of those whose estimate is so many times the least one."""
_LIKELY_SHARES = ((1.0, 1.05, 0.35), (1.05, 1.12, 0.25), (1.12, 1.3, 0.15))
"""The same of what a formula might choose."""
_OPTIONS = 0.25
"""How many have an option besides that the model's first lack."""
_SELDOM = ("pointer", "split_k", "tma", "persistent_tma")
"""Kernels that hardly ever win these problems: of them few are drawn."""


def problems(count, seed, rows=ROWS):
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


def configs_of_all(problem, count):
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
    if config.kernel == "gemv" and problem.m > 1:
        return False
    if config.kernel == "cluster_k":
        return problem.m <= CLUSTER_ROWS
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
