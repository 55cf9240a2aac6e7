"""What the config of a batch loses at others, by the cost model: which batches of a range are worth tuning.

    python benchmarks/claims/batch_ranges.py --out benchmarks/results/batch-ranges.json

No GPU is needed: times are estimates for an H200, bf16 nt, six (N, K), eleven Ms and batches up to 64. What a batch
gets is the best config of the tuned batch that serves it; it is compared with the best config at the batch itself.
"The better" is the tuned batch, above or below, that loses less over all Ms: no border between the two does better.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from bisect import bisect_left
from pathlib import Path

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.problem import Problem, batches

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

H200 = KNOWN["sm_90"]
PRODUCTS = ((128, 4096), (4096, 128), (512, 128), (128, 512), (2048, 1024), (1024, 2048))
MS = (1, 4, 16, 32, 48, 64, 96, 128, 200, 256, 512)
BATCHES = (*range(1, 17), *range(20, 65, 4))
POWERS = [1, 2, 4, 8, 16, 32, 64]
TUNED = {
    "powers of four": POWERS[::2],
    "powers of two": POWERS,
    "and their halves": [last for _, last in batches.rungs(1, 64)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="where the result is written")
    args = parser.parse_args()
    losses: dict[tuple[str, str], list[float]] = {}
    for (n, k), batch, (name, tuned) in itertools.product(PRODUCTS, BATCHES, TUNED.items()):
        place = bisect_left(tuned, batch)
        above = [loss(tuned[place], (batch, m, n, k)) for m in MS]
        below = [loss(tuned[place - (tuned[place] > batch)], (batch, m, n, k)) for m in MS]
        sides = {"the next above": above, "the next below": below, "the better": min(above, below, key=record.geomean)}
        for side, them in sides.items():
            losses.setdefault((name, side), []).extend(them)
    parts = [
        {"tuned": name, "served by": side, "geomean": round(record.geomean(them), 4), "worst": round(max(them), 3)}
        for (name, side), them in losses.items()
    ]
    record.write(args.out, {"device": H200.slug, "products": PRODUCTS, "ms": MS, "parts": parts})
    print(*parts, sep="\n")


def loss(tuned: int, shape: tuple[int, int, int, int]) -> float:
    """How many times as long as its own best config a product of a batch takes with a tuned batch's."""
    config = best(problem_of((tuned, *shape[1:])))
    problem = problem_of(shape)
    return estimate_us(problem, config) / estimate_us(problem, best(problem))


def problem_of(shape: tuple[int, int, int, int]) -> Problem:
    batch, m, n, k = shape
    return Problem(m, n, k, dtype="bf16", layout="nt", op="bmm", extras={"batch": batch})


@functools.cache
def best(problem: Problem):
    """The config with the least estimate of all that a search would try."""
    configs = (config for spec in registry.serving(problem, H200) for config in spec.space(problem, H200).configs())
    return min(configs, key=lambda config: estimate_us(problem, config))


def estimate_us(problem: Problem, config) -> float:
    return registry.find(problem.op, config.kernel).estimate_us(config, problem, H200)


if __name__ == "__main__":
    main()
