"""`gated_any_height` beside the other kernels of gated linear layers and torch's library, in paired rounds.

    python benchmarks/studies/gated_heights.py --out RESULT.json

Problems are drawn: layers of benchmarks/suites/mlps.csv on one to eight GPUs and a number of rows from 65 to 4,096, as
likely in one octave as in another. All configs of `gated_any_height` play beside those that the other kernel for Hopper
estimates best, its default, and the default of today; with --heights also so many other heights, drawn, in both orders.
`default_gain` is the time of the other kernel's default over that of today's, `best_gain` that of its fastest config
over that of ours; `us` has every config's median, for benchmarks/fit/gated_heights.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from pathlib import Path
from typing import Any

from tuner import Config, Problem
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernels.gated.any_height_space import HEIGHTS, NAME
from tuner.problem import suite
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import plays
import record

LAYERS = Path(__file__).parents[1] / "suites" / "mlps.csv"
GPUS = (1, 1, 1, 2, 4, 8)
"""Over how many GPUs a layer is divided, as likely as they are listed."""
FEWEST, MOST = 65, 4096
OTHER, OTHERS = "gated_warp_specialized", 12
"""The other kernel, and how many of its configs play, by their estimates."""
FIGURES = ("default_gain", "best_gain", "torch_over_before", "torch_over_now")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--seed", type=int, default=1, help="of the problems")
    parser.add_argument("--count", type=int, default=60, help="problems drawn")
    parser.add_argument("--heights", type=int, default=0, help="heights of tiles drawn beside those of the space")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    found = list[dict[str, Any]]()
    with PairedRunner(args.gpu) as runner:
        todo = {one: configs_of(one, runner.device, args.heights) for one in drawn(args.seed, args.count)}
        runner.compile((problem, config) for problem, configs in todo.items() for config in configs)
        for problem, configs in todo.items():
            found.append(played(runner, problem, configs))
            print({name: each for name, each in found[-1].items() if name != "us"}, flush=True)
            record.write(args.out, {"summary": summary(found), "found": found})
    print(summary(found))


def drawn(seed: int, count: int) -> list[Problem]:
    """So many problems."""
    chance, found = random.Random(seed), list[Problem]()
    layers = sorted({problem.with_m(FEWEST) for problem in suite.load(str(LAYERS))}, key=str)
    while len(found) < count:
        layer, gpus = chance.choice(layers), chance.choice(GPUS)
        rows = round(FEWEST * (MOST / FEWEST) ** chance.random())
        found.append(Problem.from_fields({**layer.fields(), "m": rows, "n": layer.n // gpus // 8 * 8}))
    return found


def configs_of(problem: Problem, device: Device, heights: int) -> list[Config]:
    """The other kernel's default first, the default of today, what the other estimates best, all of ours."""
    ours, other = (registry.find(problem.op, name) for name in (NAME, OTHER))
    estimates = {one: other.estimate_us(one, problem, device) for one in other.space(problem, device).configs()}
    likeliest = sorted(estimates, key=lambda config: estimates[config])[:OTHERS]
    found = [other.default_config(problem, device), registry.default_config(problem, device), *likeliest]
    configs = ours.space(problem, device).configs()
    more = random.Random(str(problem)).sample(HEIGHTS, heights)
    pattern = dataclasses.replace(ours.space(problem, device), rules=())
    sides = {(one["BLOCK_SIZE_N"], one["num_warps"]) for one in configs}
    for columns, warps in sorted(sides):
        shape = {"BLOCK_SIZE_N": (columns,), "num_warps": (warps,)}
        configs += [one for rows in more for one in pattern.narrowed(BLOCK_SIZE_M=(rows,), **shape).programs()]
    return list(dict.fromkeys([*found, *configs]))


def played(runner: PairedRunner, problem: Problem, configs: list[Config]) -> dict[str, Any]:
    """What the other kernel and its default take over ours and the default of today, and every median."""
    result = plays.play(runner, problem, configs)
    times, medians = result.times, result.medians
    before, now = (
        min((one for one in times if (one.kernel == NAME) is ours), key=lambda one: medians[one])
        for ours in (False, True)
    )
    torch, default = result.torch, registry.default_config(problem, runner.device)
    assert torch is not None
    fastest = min((before, now), key=lambda one: medians[one])
    return {
        "problem": problem.fields(),
        "before": str(before),
        "now": str(now),
        "default": str(default),
        "default_gain": round(finals.ratio(times[configs[0]], times[default]), 4),
        "best_gain": round(finals.ratio(times[before], times[now]), 4),
        "torch_over_before": round(finals.ratio(torch, times[before]), 4),
        "torch_over_now": round(finals.ratio(torch, times[fastest]), 4),
        "over_fastest": [round(medians[one] / medians[fastest], 4) for one in (configs[0], default)],
        "us": [{"kernel": one.kernel, **dict(one.pairs), "us": round(us, 3)} for one, us in medians.items()],
        "rejected": [str(config) for config in configs if config not in times],
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and the least, up to 256 rows and of more."""
    kinds = {"65 to 256 rows": (0, 256), "257 to 4,096 rows": (256, MOST)}
    return {
        kind: {
            "problems": len(ones),
            "faster": sum(each["best_gain"] > 1 for each in ones),
            **{name: {"geomean": round(record.geomean(them), 4), "least": min(them)} for name, them in columns.items()},
            "over_fastest": [
                round(record.geomean(them), 4) for them in zip(*(e["over_fastest"] for e in ones), strict=True)
            ],
        }
        for kind, (above, most) in kinds.items()
        if (ones := [each for each in found if above < each["problem"]["m"] <= most])
        and (columns := {name: [each[name] for each in ones] for name in FIGURES})
    }


if __name__ == "__main__":
    main()
