"""What the default configs of ranges of M lose against the formula asked for each M, by the calibrated cost model.

    python benchmarks/claims/default_ranges.py --out benchmarks/results/default-ranges.json

No GPU is needed: both configs' times are the model's estimates for an H200, bf16 nt.
"""

from __future__ import annotations

import argparse
import functools
import sys
from pathlib import Path

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.lookup import match_rules
from tuner.problem import Problem

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

H200 = KNOWN["sm_90"]
WEIGHTS = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (2112, 7168), (1280, 8192), (3584, 2560))
PARTS = {
    "1 to 16": (1, 16),
    "17 to 64": (17, 64),
    "65 to 128": (65, 128),
    "129 to 256": (129, 256),
    "257 to 4096": (257, 4096),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="where the result is written")
    args = parser.parse_args()
    parts = [part(name, *ends) for name, ends in PARTS.items()]
    record.write(args.out, {"device": H200.slug, "weights": WEIGHTS, "parts": parts})
    print(*parts, sep="\n")


def part(name: str, first: int, last: int) -> dict[str, object]:
    """The loss over all weights and the Ms from the first to the last, which are about 4% apart."""
    ms = sorted({*range(first, min(last, first + 15) + 1), *(round(first * 1.04**step) for step in range(200))})
    problems = [Problem(m, n, k, dtype="bf16", layout="nt") for n, k in WEIGHTS for m in ms if m <= last]
    losses = [loss(problem) for problem in problems]
    return {
        "m": name,
        "problems": len(problems),
        "ranges": len({match_rules.default_range(m) for m in range(first, last + 1)}),
        "geomean": round(record.geomean(losses), 4),
        "worst": round(max(losses), 3),
    }


def loss(problem: Problem) -> float:
    """How many times as long as the formula's own config a problem takes by that of its range."""
    config, _ = match_rules.default_config(problem, H200)
    return estimate_us(problem, config) / estimate_us(problem, formula(problem))


@functools.cache
def formula(problem: Problem):
    return registry.default_config(problem, H200)


def estimate_us(problem: Problem, config) -> float:
    return registry.find(problem.op, config.kernel).estimate_us(config, problem, H200)


if __name__ == "__main__":
    main()
