"""Whether `any_height_split` is worth its place beside other kernels of 65 to 256 rows of A, in paired rounds.

    python benchmarks/studies/split_few_rows.py --out RESULT.json

Problems are drawn that the kernel serves: M of 65 to 256, N of 512 to 12,288, K of 1,024 to 28,672, in layout nt or nn.
Its likeliest configs play beside today's default, what other kernels estimate best, and torch's library. `split` has
the median of each of its configs, for benchmarks/fit/any_height_split.py; `us` that of each kernel's fastest.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

from tuner import Config, Problem
from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import plays
import record

SPLIT = "any_height_split"
BEST = {SPLIT: 10, "any_height": 3, "split_k": 1, "tma": 1, "pointer": 0, "persistent_tma": 0}
"""Configs of a kernel that play, two of those not named here."""
MOST_WEIGHTS = 3e8
"""N * K."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--seed", type=int, default=30, help="of the problems")
    parser.add_argument("--count", type=int, default=64, help="problems drawn")
    parser.add_argument("--gpu", type=int, default=0)
    args = parser.parse_args()
    found = list[dict[str, Any]]()
    with PairedRunner(args.gpu) as runner:
        todo = {one: configs_of(one, runner.device) for one in drawn(args.seed, args.count, runner.device)}
        runner.compile((problem, config) for problem, configs in todo.items() for config in configs)
        for problem, configs in todo.items():
            found.append(played(runner, problem, configs))
            print(found[-1]["problem"], found[-1]["default_over_fastest"], found[-1]["us"], flush=True)
            record.write(args.out, {"summary": summary(found), "found": found})
    print(summary(found))


def drawn(seed: int, count: int, device: Device) -> list[Problem]:
    """So many problems; sizes are spread evenly in their logarithms."""
    chance, spec, found = random.Random(seed), registry.find("matmul", SPLIT), list[Problem]()

    def size(least: int, most: int) -> int:
        return max(64, round(least * (most / least) ** chance.random() / 64) * 64)

    while len(found) < count:
        m = round(65 * (256.49 / 65) ** chance.random())
        m -= m % chance.choice((1, 1, 8, 16, 32)) if m > 80 else 0
        n, k = size(512, 12288), size(1024, 28672)
        problem = Problem(m, n, k, dtype="bf16", layout=chance.choice(("nt", "nt", "nt", "nn")))
        if n * k < MOST_WEIGHTS and not spec.unserved(problem, device):
            found.append(problem)
    return found


def configs_of(problem: Problem, device: Device) -> list[Config]:
    """Today's default, and what each kernel estimates best."""
    found = [registry.default_config(problem, device)]
    for spec in registry.serving(problem, device):
        estimates = {one: spec.estimate_us(one, problem, device) for one in spec.space(problem, device).configs()}
        found += sorted(estimates, key=lambda config: estimates[config])[: BEST.get(spec.name, 2)]
    return list(dict.fromkeys(found))


def played(runner: PairedRunner, problem: Problem, configs: list[Config]) -> dict[str, Any]:
    result = plays.play(runner, problem, configs)
    times, medians = result.times, result.medians
    fastest, torch, kernels = min(medians, key=lambda one: medians[one]), result.torch, {}
    for config, us in sorted(medians.items(), key=lambda each: each[1]):
        kernels.setdefault(config.kernel, round(us, 3))
    return {
        "problem": str(problem),
        "fields": problem.fields(),
        "default": configs[0].kernel,
        "default_over_fastest": round(finals.ratio(times[configs[0]], times[fastest]), 4),
        "torch_over_fastest": round(finals.ratio(torch, times[fastest]), 4) if torch else None,
        "us": kernels,
        "split": [[dict(config.pairs), round(us, 3)] for config, us in medians.items() if config.kernel == SPLIT],
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    losses = [each["default_over_fastest"] for each in found]
    return {
        "problems": len(found),
        "split is the fastest": sum(min(each["us"], key=each["us"].get) == SPLIT for each in found),
        "default_over_fastest": {"geomean": round(record.geomean(losses), 4), "worst": max(losses)},
    }


if __name__ == "__main__":
    main()
