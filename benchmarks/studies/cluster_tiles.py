"""Tiles of `any_height` that all run at once, alone and in clusters, beside other kernels and torch's library.

    python benchmarks/studies/cluster_tiles.py --free 6 --out RESULT.json
    python benchmarks/studies/cluster_tiles.py --seed 2 --before DEFAULTS.json --out RESULT.json

Problems are drawn: weights of models, and a number of rows from 65 to 1,500, as likely in one octave as in another. Of
those that have such tiles, what the kernel's space keeps of them plays beside what other kernels estimate best and the
default of today. With --free any tile does, the likeliest by the kernel's model, in every kind of cluster.

--list writes the default of every problem instead, which needs no GPU. Such a file of another version plays along as
`before`, and `default_gain` is its time over that of today's default. With --differing nothing else plays, of the
problems whose default it changes. --dtype and --scaling name other operands than bfloat16, as in a suite.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import earlier_defaults
from ping_pong import WEIGHTS

from tuner import Config, Problem
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernels.gemm.any_tile import any_height_space, any_height_tile
from tuner.kernels.gemm.hopper.resources import tiles
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import plays
import record

MORE = ((5120, 25600), (1024, 8192), (5120, 8192), (5120, 17920))
MOST_ROWS = {64: 256, 128: 256, 192: 208, 256: 208}
"""Rows of a tile, by its columns."""
KINDS: tuple[dict[str, Any], ...] = ({}, {"num_ctas": 2}, {"num_ctas": 4}, {"num_ctas": 2, "SHARE_B": True})
OTHERS = {"warp_specialized": 2, "any_width": 2, "swap_ab": 2, "cluster_k": 1, "split_k": 2, "tma": 1}
OTHERS |= {"any_height": 3, "any_height_ping_pong": 1}
AT_ONCE = {1: 132, 2: 66, 4: 31}
"""Clusters of an H200, or one more."""
LEAST_BUSY = 0.6
"""Share of the multiprocessors that tiles keep busy at least."""
Result = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="the result, as JSON")
    parser.add_argument("--seed", type=int, default=1, help="of the problems")
    parser.add_argument("--count", type=int, default=60, help="problems drawn")
    parser.add_argument("--free", type=int, help="so many tiles of a problem play in every kind of cluster")
    earlier_defaults.add_options(parser)
    parser.add_argument("--differing", action="store_true", help="play only both defaults, where they differ")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--scaling", default="none")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    if args.differing and not args.before:
        parser.error("--differing from what: add --before FILE")
    problems = drawn(args.seed, args.count, dtype=args.dtype, scaling=args.scaling)
    if args.list:
        earlier_defaults.write(args.list, problems)
        return
    before = earlier_defaults.read(args.before)
    found = list[Result]()
    with PairedRunner(args.gpu) as runner:
        todo = dict[Problem, list[Config]]()
        for problem in problems:
            if args.differing:
                both = dict.fromkeys((before[str(problem)], registry.default_config(problem, runner.device)))
                todo |= {problem: list(both)} if len(both) > 1 else {}
            elif ours := list(clusters(problem, runner.device, args.free)):
                first = [before[str(problem)]] if before else []
                todo[problem] = list(dict.fromkeys([*first, *others(problem, runner.device), *ours]))
        failed = runner.compile((problem, config) for problem, configs in todo.items() for config in configs)
        print(len(todo), "problems", sum(map(len, todo.values())), "configs, not compiled:", list(failed.items())[:3])
        for problem, configs in todo.items():
            found.append(played(runner, problem, configs, before.get(str(problem))))
            print({name: each for name, each in found[-1].items() if name not in ("us", "best")}, flush=True)
            record.write(args.out, {"summary": summary(found), "found": found})
    print(json.dumps(summary(found)))


def drawn(seed: int, count: int, **operands: str) -> list[Problem]:
    chance = random.Random(seed)
    weights = itertools.cycle((*WEIGHTS, *MORE))
    rows = (round(65 * 23 ** chance.random()) for _ in range(count))
    return [Problem(m, *next(weights), layout="nt", **operands) for m in rows]


def others(problem: Problem, device: Device) -> list[Config]:
    """The default of today, and what each kernel estimates best."""
    found = [registry.default_config(problem, device)]
    for name, count in OTHERS.items():
        spec = registry.find("matmul", name)
        if spec.unserved(problem, device):
            continue
        estimates = {one: spec.estimate_us(one, problem, device) for one in spec.space(problem, device).configs()}
        found += sorted(estimates, key=lambda config: estimates[config])[:count]
    return found


def clusters(problem: Problem, device: Device, free: int | None) -> Iterator[Config]:
    """Tiles that all run at once: those of the space, or so many, the likeliest first, in every kind of cluster."""
    if free is None:
        yield from any_height_space.tiles_at_once(problem, device)
        return
    least = dict[tuple[int, int], float]()
    for count, columns in itertools.product(range(1, 33), MOST_ROWS):
        rows = -(-problem.m // (8 * count)) * 8
        if not 40 <= rows <= MOST_ROWS[columns] or -(-problem.m // rows) != count:
            continue
        one = any_height_tile.tile_config(rows, columns, problem, device)
        if LEAST_BUSY * device.sm_count <= tiles(one, problem) <= device.sm_count and one.integer("num_stages") > 2:
            least[rows, columns] = any_height_tile.own_estimate_us(one, problem, device)
    likeliest = sorted(least, key=lambda sides: least[sides])
    every = (any_height_tile.tile_config(*sides, problem, device, **kind) for sides in likeliest for kind in KINDS)
    yield from itertools.islice((one for one in every if fits(one, problem)), len(KINDS) * free)


def fits(config: Config, problem: Problem) -> bool:
    """Whether a config's clusters have a tile for each block, and room for all of them at once."""
    ctas = config.integer("num_ctas", 1)
    extent, side = (problem.m, "BLOCK_SIZE_M") if config.get("SHARE_B", False) else (problem.n, "BLOCK_SIZE_N")
    count = -(-extent // config.integer(side))
    room = tiles(config, problem) // count * -(-count // ctas) <= AT_ONCE[ctas]
    return room and count >= ctas and count % ctas <= count // 8


def played(runner: PairedRunner, problem: Problem, configs: list[Config], before: Config | None) -> Result:
    """Every config's median, and torch's time over that of the best of each kind."""
    result = plays.play(runner, problem, configs)
    times, medians = result.times, result.medians
    torch, default = result.torch, registry.default_config(problem, runner.device)
    assert torch is not None
    kinds = dict[str, Config]()
    for config in sorted(times, key=lambda one: medians[one]):
        kinds.setdefault(kind_of(config), config)
    return {
        "problem": str(problem),
        "shape": problem.shape,
        "torch_us": round(statistics.median(torch), 3),
        "default": str(default),
        "default_gain": round(finals.ratio(times[before], times[default]), 4) if before else None,
        "default_over_fastest": round(medians[default] / min(medians.values()), 4),
        "torch_over_default": round(finals.ratio(torch, times[default]), 4),
        "torch_over": {kind: round(finals.ratio(torch, times[config]), 4) for kind, config in kinds.items()},
        "best": {kind: str(config) for kind, config in kinds.items()},
        "us": [{"kernel": one.kernel, **dict(one.pairs), "us": round(us, 3)} for one, us in medians.items()],
        "rejected": result.rejected,
    }


def kind_of(config: Config) -> str:
    if config.kernel != any_height_tile.NAME or any_height_space.for_many_rows(config):
        return "others"
    shared = "share B" if config.get("SHARE_B", False) else "share A"
    return f"{config['num_ctas']} {shared}" if "num_ctas" in config else "alone"


def summary(found: list[Result]) -> Result:
    """Geometric means and the least; torch's time over that of the best of others, and of all."""
    figures = {
        "default_gain": [each["default_gain"] for each in found if each["default_gain"]],
        "torch_over_default": [each["torch_over_default"] for each in found],
        "torch_over_others": [each["torch_over"]["others"] for each in found if "others" in each["torch_over"]],
        "torch_over_all": [max(each["torch_over"].values()) for each in found],
    }
    most = [each["default_over_fastest"] for each in found]
    return {
        "problems": len(found),
        **{
            name: {"geomean": round(record.geomean(them), 4), "least": min(them)}
            for name, them in figures.items()
            if them
        },
        "default_over_fastest": {"geomean": round(record.geomean(most), 4), "most": max(most)},
    }


if __name__ == "__main__":
    main()
