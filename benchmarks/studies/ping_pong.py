"""Kernels whose warpgroups take turns beside others and torch's library, for more than 256 rows of A, in paired rounds.

    python benchmarks/studies/ping_pong.py --out RESULT.json

Problems are drawn: weights of models, a number of rows from 257 to 8,192, as likely in one octave as in another, and
operands of bfloat16 or fp8, the latter without scales or with those of rows; with --others operands and layouts whose
defaults never are of these kernels, and with --few those of which all tiles of 128x128 run at once. All configs of
`ping_pong` and of `any_height_ping_pong` play beside those that other kernels estimate best, their default, and the
default of today; with --heights also so many other heights, drawn.
Figures are the others' time over ours; `us` has every config's median, for benchmarks/fit/ping_pong.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner import Config, Problem
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernels.gemm.any_tile.any_height_ping_pong_space import HEIGHTS
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import plays
import record

WEIGHTS = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (4608, 3584), (3584, 3584), (37888, 3584)),
    *((3584, 18944), (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584), (5120, 5120), (5120, 13824)),
    *((10240, 5120), (27648, 5120), (2560, 9728), (12288, 4096), (24576, 1536), (7168, 2048)),
)
"""N and K of models' layers."""
OTHERS = {"warp_specialized": 4, "any_width": 2, "any_height": 1}
"""Other kernels, and how many of their configs play, by their estimates."""
OF_FEW_TILES = {"tma": 1, "split_k": 2}
"""More of them where all tiles run at once."""
KINDS = (
    {"dtype": "bf16", "layout": "nt"},
    {"dtype": "bf16", "layout": "nt"},
    {"dtype": "bf16", "layout": "nt"},
    {"dtype": "e4m3", "layout": "nt"},
    {"dtype": "e4m3", "layout": "nt", "scaling": "row"},
)
OTHER_KINDS = (
    {"dtype": "bf16", "layout": "nn"},
    {"dtype": "bf16", "layout": "tn"},  # an odd number of rows is not served
    {"dtype": "bf16", "layout": "nt", "out_dtype": "fp32"},
    {"dtype": "int8", "layout": "nt"},
    {"dtype": "fp32", "layout": "nt", "precision": "tf32"},
)
OURS = ("ping_pong", "any_height_ping_pong")
FIGURES = ("default_gain", "best_gain", "torch_over_before", "torch_over_now")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--seed", type=int, default=1, help="of the problems")
    parser.add_argument("--count", type=int, default=100, help="problems drawn")
    parser.add_argument("--heights", type=int, default=0, help="heights of tiles drawn beside those of the space")
    parser.add_argument("--others", action="store_true", help="operands and layouts without defaults of these kernels")
    parser.add_argument("--few", action="store_true", help="of these, the problems whose tiles all run at once")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    found = list[dict[str, Any]]()
    with PairedRunner(args.gpu) as runner:
        most = runner.device.sm_count if args.few else math.inf
        problems = drawn(args.seed, args.count, OTHER_KINDS if args.others else KINDS, most)
        served = [one for one in problems if not registry.find("matmul", "ping_pong").unserved(one, runner.device)]
        todo = {problem: configs_of(problem, runner.device, args.heights) for problem in served}
        runner.compile((problem, config) for problem, configs in todo.items() for config in configs)
        for problem, configs in todo.items():
            found.append(played(runner, problem, configs))
            print({name: each for name, each in found[-1].items() if name != "us"}, flush=True)
            record.write(args.out, {"summary": summary(found), "found": found})
    print(summary(found))


def drawn(seed: int, count: int, kinds: Sequence[Mapping[str, Any]], most: float = math.inf) -> list[Problem]:
    """So many problems of at most so many tiles; weights take turns."""
    chance = random.Random(seed)
    every = (
        Problem(round(256 * 2 ** (5 * chance.random())) + 1, *weight, **chance.choice(kinds))
        for weight in itertools.cycle(WEIGHTS)
    )
    return list(itertools.islice((problem for problem in every if tiles_of(problem) <= most), count))


def tiles_of(problem: Problem) -> int:
    return -(-problem.m // 128) * -(-problem.n // 128)


def configs_of(problem: Problem, device: Device, heights: int) -> list[Config]:
    """The default without ours first, the default of today, what other kernels estimate best, all of ours."""
    ours = [spec for name in OURS if not (spec := registry.find("matmul", name)).unserved(problem, device)]
    without = {spec.default_config(problem, device): "left out" for spec in ours}
    found = [registry.default_config(problem, device, without), registry.default_config(problem, device)]
    others = OTHERS | (OF_FEW_TILES if tiles_of(problem) <= device.sm_count else {})
    for name, count in others.items():
        other = registry.find("matmul", name)
        if other.unserved(problem, device):
            continue
        estimates = {config: other.estimate_us(config, problem, device) for config in configs(other, problem, device)}
        found += sorted(estimates, key=lambda config: estimates[config])[:count]
    for spec in ours:
        found += configs(spec, problem, device)
    if heights and ours[-1].name == "any_height_ping_pong":
        more = random.Random(str(problem)).sample(HEIGHTS, heights)
        pattern = dataclasses.replace(ours[-1].space(problem, device), rules=())
        found += [config for rows in more for config in pattern.narrowed(BLOCK_SIZE_M=(rows,)).programs()]
    return list(dict.fromkeys(found))


def configs(spec: Any, problem: Problem, device: Device) -> list[Config]:
    return list(spec.space(problem, device).configs())


def played(runner: PairedRunner, problem: Problem, configs: list[Config]) -> dict[str, Any]:
    """What others and their default take over the best of ours and the default of today, and every median."""
    result = plays.play(runner, problem, configs)
    times, medians = result.times, result.medians
    before, now = (
        min((one for one in times if (one.kernel in OURS) is ours), key=lambda one: medians[one])
        for ours in (False, True)
    )
    torch, default = result.torch, registry.default_config(problem, runner.device)
    fastest = min((before, now), key=lambda one: medians[one])
    return {
        "problem": str(problem),
        "shape": problem.shape,
        "dtype": problem.a_dtype,
        "scaling": problem.scaling,
        "kind": kind_of(problem),
        "before": str(before),
        "now": str(now),
        "default": str(default),
        "default_gain": round(finals.ratio(times[configs[0]], times[default]), 4),
        "best_gain": round(finals.ratio(times[before], times[now]), 4),
        "torch_over_before": round(finals.ratio(torch, times[before]), 4) if torch else None,
        "torch_over_now": round(finals.ratio(torch, times[fastest]), 4) if torch else None,
        "over_fastest": [round(medians[one] / medians[fastest], 4) for one in (configs[0], default)],
        "us": [{"kernel": one.kernel, **dict(one.pairs), "us": round(us, 3)} for one, us in medians.items()],
        "rejected": [str(config) for config in configs if config not in times],
    }


def kind_of(problem: Problem) -> str:
    return f"{problem.a_dtype} {problem.layout} to {problem.out_dtype}, scaling {problem.scaling}"


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and the least, for each kind of operands."""
    kinds = sorted({each["kind"] for each in found})
    return {
        kind: {
            "problems": len(ones := [each for each in found if each["kind"] == kind]),
            "faster": sum(each["best_gain"] > 1 for each in ones),
            **{
                name: {"geomean": round(record.geomean(them), 4), "least": min(them)}
                for name in FIGURES
                if (them := [each[name] for each in ones if each[name]])
            },
            "over_fastest": [
                round(record.geomean(them), 4) for them in zip(*(e["over_fastest"] for e in ones), strict=True)
            ],
        }
        for kind in kinds
    }


if __name__ == "__main__":
    main()
