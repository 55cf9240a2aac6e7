"""Tiles of `any_height` for more than 256 rows of A beside other kernels' and torch's library, in paired rounds.

    python benchmarks/studies/many_rows.py --out RESULT.json

Problems are drawn: weights of models, and a number of rows from 257 to 4,097, as likely in one octave as in another.
Those play for which the kernel has tiles that leave the busiest multiprocessor less to compute than others do: its
configs beside what `any_width` and `warp_specialized` estimate best, and the default config of today. Figures are the
others' time over ours.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from pathlib import Path
from typing import Any

from tuner import Config, Problem
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernels.gemm.hopper.any_height_space import fills_waves
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

WEIGHTS = (
    *((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (4608, 3584), (3584, 3584), (37888, 3584)),
    *((3584, 18944), (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584), (5120, 5120), (5120, 13824)),
    *((10240, 5120), (27648, 5120), (2560, 9728), (12288, 4096), (24576, 1536), (7168, 2048)),
)
OTHERS = ("any_width", "warp_specialized")
BEST = 7
"""Configs of each other kernel, by its estimates."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--seed", type=int, default=147, help="of the numbers of rows")
    parser.add_argument("--count", type=int, default=60, help="problems drawn")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    spec, found = registry.find("matmul", "any_height"), list[dict[str, Any]]()
    with PairedRunner(args.gpu) as runner:
        problems = drawn(args.seed, args.count)
        filled = [problem for problem in problems if fills_waves(problem, runner.device)]
        ours = {problem: spec.space(problem, runner.device).configs() for problem in filled}
        theirs = {problem: others(problem, runner.device) for problem in filled}
        runner.compile((problem, config) for problem in theirs for config in theirs[problem] + ours[problem])
        for problem, configs in theirs.items():
            found.append(played(runner, problem, configs, ours[problem]))
            print(found[-1], flush=True)
    names = ("default_gain", "best_gain", "torch_over_before", "torch_over_now")
    figures = {name: [each[name] for each in found if each[name]] for name in names}
    summary = {name: {"geomean": round(record.geomean(them), 4), "least": min(them)} for name, them in figures.items()}
    record.write(args.out, {"drawn": len(problems), "played": len(found), "summary": summary, "found": found})
    print(len(problems), len(found), summary)


def drawn(seed: int, count: int) -> list[Problem]:
    chance = random.Random(seed)
    rows = [round(256 * 2 ** (4 * chance.random())) + 1 for _ in range(count)]
    return [Problem(m, *WEIGHTS[i % len(WEIGHTS)], dtype="bf16", layout="nt") for i, m in enumerate(rows)]


def others(problem: Problem, device: Device) -> list[Config]:
    """The default without `any_height`, then what other kernels estimate best."""
    own = registry.find("matmul", "any_height").default_config(problem, device)
    found = [registry.default_config(problem, device, {own: "left out"})]
    for name in OTHERS:
        spec = registry.find("matmul", name)
        estimates = {
            config: spec.estimate_us(config, problem, device) for config in spec.space(problem, device).configs()
        }
        found += sorted(estimates, key=lambda config: estimates[config])[:BEST]
    return list(dict.fromkeys(found))


def played(runner: PairedRunner, problem: Problem, theirs: list[Config], ours: list[Config]) -> dict[str, Any]:
    """What the best of others and their default take, over the best of ours and the default of today."""
    result = runner.play(problem, theirs + ours)
    if isinstance(result, str):
        sys.exit(f"{problem}: {result}")
    times = {config: result.times[config.digest] for config in theirs + ours if result.times.get(config.digest)}
    medians = {config: statistics.median(them) for config, them in times.items()}
    before, now = (
        min((one for one in configs if one in times), key=lambda one: medians[one]) for configs in (theirs, ours)
    )
    default = registry.default_config(problem, runner.device)
    torch = result.times.get("vendor")
    return {
        "problem": str(problem),
        "before": str(before),
        "now": str(now),
        "default": str(default),
        "default_gain": round(finals.ratio(times[theirs[0]], times[default]), 4) if default in times else None,
        "best_gain": round(finals.ratio(times[before], times[now]), 4),
        "torch_over_before": round(finals.ratio(torch, times[before]), 4) if torch else None,
        "torch_over_now": round(finals.ratio(torch, min((times[before], times[now]), key=statistics.median)), 4)
        if torch
        else None,
        "rejected": [str(config) for config in theirs + ours if config not in times],
    }


if __name__ == "__main__":
    main()
