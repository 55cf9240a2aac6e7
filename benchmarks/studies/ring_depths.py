"""What one more stage of the ring is worth beside a second buffer for storing, in paired rounds.

    python benchmarks/studies/ring_depths.py --out RESULT.json

Of drawn problems, the configs that each kernel of `any_width_space.deepest` estimates best and whose ring has one more
stage with one buffer than with two are played with either. `gain` is the time with two buffers over that with one.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tuner import Config, Problem
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gated.any_height_space import both
from tuner.kernels.gemm.any_tile.any_height_tile import as_computed
from tuner.kernels.gemm.any_tile.any_width_space import deepest
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import plays
import record

KERNELS: dict[str, Callable[[Config, Problem], tuple[Config, Problem]]] = {
    "any_width": lambda config, problem: (config, problem),
    "any_height": lambda config, problem: (as_computed(config), exchanged(problem)),
    "any_height_ping_pong": lambda config, problem: (as_computed(config), exchanged(problem)),
    "gated_any_height": lambda config, problem: (as_computed(config), both(problem)),
}
"""Kernels, each with what the device computes of a config and a problem."""
_MOST_PRODUCTS = 1.5e12
_STEP, _MOST_STAGES = 64, 12
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "bf16 nt": (20, {"dtype": "bf16", "layout": "nt"}),
    "bf16 nn": (8, {"dtype": "bf16", "layout": "nn"}),
    "bf16 tn": (8, {"dtype": "bf16", "layout": "tn"}),
    "e4m3 nt": (8, {"dtype": "e4m3", "layout": "nt"}),
    "gated bf16": (12, {"dtype": "bf16", "layout": "nt", "op": "gated_linear"}),
}
"""How many problems of which operands."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="the result, as JSON")
    parser.add_argument("--seed", type=int, default=180, help="of the problems")
    parser.add_argument("--best", type=int, default=3, help="configs of each kernel, by its estimates")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    found = list[dict[str, Any]]()
    with PairedRunner(args.gpu) as runner:
        todo = {problem: list(pairs(problem, runner.device, args.best)) for problem in drawn(args.seed)}
        runner.compile((problem, config) for problem, them in todo.items() for pair in them for config in pair)
        for problem, them in todo.items():
            if them:
                found += played(runner, problem, them)
                record.write(args.out, {"summary": summary(found), "found": found})
    print(json.dumps(summary(found), indent=1))


def drawn(seed: int) -> Iterator[Problem]:
    """Yield problems of layers: N and K in whole steps of 64, M any but for an A stored [K, M]."""
    chosen = random.Random(seed)
    for count, operands in KINDS.values():
        left = count
        while left:
            m, n, k = (round(math.exp(chosen.uniform(*map(math.log, ends)))) for ends in _LIMITS)
            n, k = n // _STEP * _STEP, k // _STEP * _STEP
            m = -(-m // _STEP) * _STEP if operands["layout"][0] == "t" else m
            if m * n * k <= _MOST_PRODUCTS:
                left -= 1
                yield Problem(m, n, k, **operands)


_LIMITS = ((65, 3000), (1024, 20000), (512, 12000))


def pairs(problem: Problem, device: Device, best: int) -> Iterator[tuple[Config, Config]]:
    """Yield configs with two buffers for storing, and with one beside a deeper ring."""
    served = {spec.name: spec for spec in registry.serving(problem, device)}
    for name, computed in KERNELS.items():
        if (spec := served.get(name)) is not None:
            space = spec.space(problem, device)
            found = dict[tuple[Config, ...], None]()
            for config in space.configs():
                depths = (deepest(*computed(config, problem), device, _MOST_STAGES, enough) for enough in (0, 99))
                found[tuple(config.replace(num_stages=depth) for depth in depths)] = None
            able = (pair for pair in found if not any(space.rejection(one) for one in pair))
            differing = [(two, one) for two, one in able if two != one]
            yield from sorted(differing, key=lambda pair: spec.estimate_us(pair[0], problem, device))[:best]


def played(runner: PairedRunner, problem: Problem, todo: list[tuple[Config, Config]]) -> Iterator[dict[str, Any]]:
    result = plays.play(runner, problem, list(dict.fromkeys(config for pair in todo for config in pair)))
    for two, one in todo:
        if two in result.times and one in result.times:
            torch = finals.ratio(result.torch, result.times[one]) if result.torch else None
            yield {
                "problem": str(problem),
                "with_two": str(two),
                "kind": f"{two.kernel}, {two['num_warps']} warps, {two['num_stages']} stages",
                "gain": round(finals.ratio(result.times[two], result.times[one]), 4),
                "torch_over_one": torch and round(torch, 4),
            }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """By kernel, warps and stages with two buffers: how many pairs, the mean gain, and the least and most."""
    gains = dict[str, list[float]]()
    for each in found:
        gains.setdefault(each["kind"], []).append(each["gain"])
    return {
        kind: {"pairs": len(them), "geomean": round(record.geomean(them), 4), "least": min(them), "most": max(them)}
        for kind, them in sorted(gains.items())
    }


if __name__ == "__main__":
    main()
