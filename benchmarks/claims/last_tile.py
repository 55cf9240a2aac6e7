"""What it takes a config that its last tiles reach beyond N or M, in two versions of the kernels.

    python benchmarks/claims/last_tile.py --out BEFORE.json
    python benchmarks/claims/last_tile.py --before BEFORE.json --out RESULT.json

Of drawn products, each kernel that loads by TMA plays the two configs that it estimates best among those whose last
tiles reach beyond, where there are such. Run it once with each version's kernels: the second run plays what the first
one chose. Times are multiples of torch's in the same rounds, and `before_over_now` compares these. Before and now are
two processes, so equal programs differ by up to 3%.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.problem import Problem
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

LAYOUTS = ("nt", "nn", "tn")
EACH = 2
"""Configs of each kernel."""
Played = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="where the result is written")
    parser.add_argument("--before", type=Path, metavar="FILE", help="the same of another version")
    parser.add_argument("--count", type=int, default=14, help="products of each layout")
    parser.add_argument("--seed", type=int, default=1, help="of the drawing")
    args = parser.parse_args()
    with PairedRunner(0) as runner:
        before = json.loads(args.before.read_text())["products"] if args.before else []
        if before:
            todo = {read(each): [Config(name, **values) for name, values in each["configs"]] for each in before}
        else:
            todo = {each: ragged(each, runner.device) for each in drawn(args.count, args.seed)}
        failed = runner.compile((problem, config) for problem, configs in todo.items() for config in configs)
        print(len(todo), "products,", sum(map(len, todo.values())), "configs, not compiled:", len(failed), flush=True)
        products = [played for problem, configs in todo.items() if (played := play(runner, problem, configs))]
    compared = {}
    if before:
        earlier = {each["problem"]: times(each) for each in before}
        for product in products:
            was = earlier[product["problem"]]
            product["before_over_torch"] = [was.get(config) for config in times(product)]
        compared = compare(products)
        for name, told in compared.items():
            print(name, told)
    record.write(args.out, {"before_over_now": compared, "products": products})


def drawn(count: int, seed: int) -> list[Problem]:
    """Random products: half the Ns are whole numbers of 64, the others of 8."""
    draw, found = random.Random(seed), []
    for layout in LAYOUTS:
        for number in range(count):
            m, n, k = (int(2 ** draw.uniform(*sides)) for sides in ((6.1, 11.5), (6.5, 13), (9, 14)))
            unit = 64 if number % 2 else 8
            m = -(-m // 8) * 8 if layout[0] == "t" else m
            found.append(Problem(m, -(-n // unit) * unit, k // 64 * 64, dtype="bf16", layout=layout))
    return found


def ragged(problem: Problem, device: Device) -> list[Config]:
    """Of each kernel the best estimated configs whose last tiles along N or M reach beyond."""
    found = []
    for spec in registry.serving(problem, device):
        configs = [one for one in spec.space(problem, device).configs() if one.get("LOADS", "tma") == "tma"]
        if spec.name not in ("pointer", "gemv", "simt", "padded"):
            some = (one for one in configs if beyond(one, problem))
            found += sorted(some, key=lambda one: spec.estimate_us(one, problem, device))[:EACH]
    return found


def beyond(config: Config, problem: Problem) -> bool:
    """Whether a last tile reaches beyond N or M, and is not the only one."""
    rest = config.integer("BLOCK_SIZE_N_REST")
    rest_m, rest_n = (rest, 0) if config.get("SWAP_AB", False) else (0, rest)
    rows, columns = config.integer("BLOCK_SIZE_M") + rest_m, config.integer("BLOCK_SIZE_N") + rest_n
    return (problem.n > columns and problem.n % columns > 0) or (problem.m > rows and problem.m % rows > 0)


def play(runner: PairedRunner, problem: Problem, configs: list[Config]) -> Played | None:
    """Times over torch's of the configs that ran, or None where nothing did."""
    result = runner.play(problem, configs)
    if isinstance(result, str) or not result.times.get("vendor"):
        print(f"{problem}: {result}")
        return None
    torch_us = statistics.median(result.times["vendor"])
    ran = [one for one in configs if result.times.get(one.digest)]
    return {
        "problem": str(problem),
        "fields": problem.fields(),
        "torch_us": round(torch_us, 3),
        "configs": [[one.kernel, dict(one.pairs)] for one in ran],
        "over_torch": [round(statistics.median(result.times[one.digest]) / torch_us, 4) for one in ran],
    }


def read(product: Played) -> Problem:
    """The problem of a product that was played."""
    return Problem.from_fields(product["fields"])


def compare(products: list[Played]) -> dict[str, dict[str, float]]:
    """By kernel and layout, and of each product's fastest: how much longer it took before."""
    found = defaultdict(list)
    for product in products:
        both = zip(times(product).items(), product["before_over_torch"], strict=True)
        pairs = [(one, was, now) for (one, now), was in both if was]
        layout = read(product).layout
        if pairs:
            fastest = min(was for _, was, _ in pairs) / min(now for _, _, now in pairs)
            found[f"fastest of all {layout}"].append(fastest)
        for one, was, now in pairs:
            found[f"{one.kernel} {layout}"].append(was / now)
    return {name: figures(ratios) for name, ratios in sorted(found.items())}


def times(product: Played) -> dict[Config, float]:
    """Each config's time over torch's."""
    configs = (Config(name, **values) for name, values in product["configs"])
    return dict(zip(configs, product["over_torch"], strict=True))


def figures(ratios: list[float]) -> dict[str, float]:
    """How many, their geometric mean, the least and the most."""
    mean = record.geomean(ratios)
    return {
        "configs": len(ratios),
        "geomean": round(mean, 4),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
    }


if __name__ == "__main__":
    main()
