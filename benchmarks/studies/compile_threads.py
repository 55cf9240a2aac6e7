"""How long threads of one process take for the binaries of a family of the wheel's tables, by their number.

    python benchmarks/studies/compile_threads.py --out RESULT.json [--threads 1,2,3,4,6,8,16]

The family is Llama 3 8B's 4096x4096, all of whose ranges are compiled for sm_90, from an empty cache each time and with
the same options; no GPU is used. The rounds go through the numbers of threads in an order drawn anew; `seconds` is the
median. Python's lock is what threads wait for: Triton traces a kernel in Python, and compiles it outside of the lock.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tuner
from tuner.kernel import registry
from tuner.kernel.config import Config
from tuner.lookup.table import load
from tuner.problem import Problem
from tuner.sweep import cross_target

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

TABLE = Path(tuner.__file__).parent / "tables" / "shipped" / "matmul--nvidia-h100-80gb-hbm3-sm90-132.json"
FAMILY = Problem(1, 4096, 4096, dtype="bfloat16", layout="nt").family


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the result, as JSON")
    parser.add_argument(
        "--threads", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2, 3, 4, 6, 8, 16]
    )
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cross_target.activate("sm_90")
    wanted = {row.config: row.problem for row in load(TABLE).rows if row.problem.family == FAMILY}
    for config, problem in wanted.items():
        compiled((config, problem))  # what is imported or read once
    functions = [each for each in gc.get_objects() if type(each).__name__.endswith("JITFunction")]
    took: dict[int, list[float]] = {count: [] for count in args.threads}
    for _ in range(args.rounds):
        for count in random.sample(args.threads, len(args.threads)):
            took[count].append(seconds(count, list(wanted.items()), functions))
    found = {str(count): round(statistics.median(each), 3) for count, each in took.items()}
    print(len(wanted), "binaries:", found)
    record.write(args.out, {"binaries": len(wanted), "seconds": found, "rounds": {str(n): t for n, t in took.items()}})


def seconds(threads: int, wanted: list[tuple[Config, Problem]], functions: list[Any]) -> float:
    """How long an empty cache takes to fill."""
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(threads) as pool:
        os.environ["TRITON_CACHE_DIR"] = cache
        for each in functions:
            each.device_caches.clear()
        begun = time.perf_counter()
        list(pool.map(compiled, wanted))
        return round(time.perf_counter() - begun, 3)


def compiled(wanted: tuple[Config, Problem]) -> None:
    """Compile a config."""
    config, problem = wanted
    registry.find(problem.op, config.kernel).compile(problem, config)


if __name__ == "__main__":
    main()
