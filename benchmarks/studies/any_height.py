"""Tiles of any height beside what the tables that come with triton-tuner say and torch's library, in paired rounds.

    python benchmarks/studies/any_height.py --out RESULT.json
    python benchmarks/studies/any_height.py --wide --out RESULT.json

Every config of `any_height`'s space is played for batches that tiles of powers of two fill badly, and for some that
they fill. `over_torch` is a config's time over torch's, the table's config first: that of a folder with --tables.
--wide has weights whose tiles of 128 columns begin a second wave, and those of 192 do not: any-height-wide-h200.json.
results/any-height-h200.json had tables tuned without the kernel, on the same day, and also batches of 40 to 64
and clusters of few tiles, which its rules reject now.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

import tuner
from tuner import Config, Problem
from tuner.kernel import registry
from tuner.sweep import finals
from tuner.sweep.paired import PairedRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

SHAPES = (
    *((7168, 8192), (12288, 4096), (28672, 4096), (6144, 4096), (4608, 3584), (16032, 8192), (5120, 12800)),
    *((4096, 14336), (18944, 3584), (2880, 4096)),
)
WIDE = ((17408, 5120), (18944, 3584), (20480, 5120), (22016, 4096), (24576, 4096))
MS = (72, 96, 129, 160, 193, 224, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--wide", action="store_true", help="weights of 16,897 to 25,344 columns instead")
    parser.add_argument("--tables", metavar="FOLDER", help="whose config is played; what comes with triton-tuner")
    args = parser.parse_args()
    tuner.use(args.tables)
    problems = [Problem(m, n, k, dtype="bf16", layout="nt") for n, k in (WIDE if args.wide else SHAPES) for m in MS]
    spec = registry.find("matmul", "any_height")
    found = []
    with PairedRunner(args.gpu) as runner:
        device = runner.device
        configs = {
            problem: [tuner.lookup(problem, device.slug).config, *spec.space(problem, device).configs()]
            for problem in problems
        }
        runner.compile((problem, config) for problem in problems for config in configs[problem])
        for problem in problems:
            found.append(played(runner, problem, configs[problem]))
            print(found[-1]["problem"], {name: found[-1][name] for name in ("torch_us", "table", "best")}, flush=True)
    record.write(args.out, {"device": device.slug, "found": found})


def played(runner: PairedRunner, problem: Problem, configs: list[Config]) -> dict[str, Any]:
    """The times of the configs, of which the table's is the first, over torch's; `best` is of the others."""
    result = runner.play(problem, list(dict.fromkeys(configs)))
    if isinstance(result, str):
        sys.exit(f"{problem}: {result}")
    times = {
        config: round(finals.ratio(result.times[config.digest], result.times["vendor"]), 4)
        for config in configs
        if result.times.get(config.digest)
    }
    return {
        "problem": str(problem),
        "shape": problem.shape,
        "torch_us": round(statistics.median(result.times["vendor"]), 2),
        "table": times.get(configs[0]),
        "best": min((times[config] for config in configs[1:] if config in times), default=None),
        "over_torch": [
            {"ratio": ratio, "kernel": config.kernel, **dict(config.pairs)} for config, ratio in times.items()
        ],
        "rejected": result.rejected,
    }


if __name__ == "__main__":
    main()
