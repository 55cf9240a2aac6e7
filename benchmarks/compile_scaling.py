"""How compiles scale over processes: the same configs by one worker and by many, each from an empty Triton cache.

python benchmarks/compile_scaling.py --workers 16 --out RESULT.json
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time

import record

from tuner.hardware.device import KNOWN
from tuner.kernel import registry
from tuner.problem import Problem
from tuner.sweep.compile_pool import Compiled, CompilePool

DEVICE = KNOWN["sm_90"]
# Set before the pool's fork server starts: its children inherit the environment of that moment.
CACHE = tempfile.mkdtemp(prefix="compile-scaling-")
os.environ["TRITON_CACHE_DIR"] = CACHE
PROBLEM = Problem(4096, 4096, 4096, dtype="bfloat16", layout="nt")


def seconds(configs, workers):
    """Wall seconds from the end of the warm-ups, so that no child's imports count, to the last finished compile."""
    shutil.rmtree(CACHE, ignore_errors=True)
    spec = registry.find("matmul", "pointer")
    with CompilePool(DEVICE, workers=workers) as pool:
        warm = [pool.request(spec, problem, configs[0]) for problem in warm_problems(workers)]
        wait(pool, warm)
        start = time.monotonic()
        keys = [pool.request(spec, PROBLEM, config) for config in configs]
        wait(pool, keys)
        took = time.monotonic() - start
        assert all(isinstance(pool.result(key), Compiled) for key in keys)
    return took


def warm_problems(workers):
    """Problems of other classes, several a child, so that each has imported all before the clock."""
    dtypes = ("float16", "float32", "bfloat16")
    epilogues = ("relu", "gelu", "silu", "leaky_relu", "bias", "bias+relu", "bias+gelu", "bias+silu")
    every = [
        Problem(512, 512, 512, dtype=d, layout=y, epilogue=e) for d in dtypes for y in ("nn", "tn") for e in epilogues
    ]
    return every[: 2 * workers]


def wait(pool, keys):
    while any(pool.result(key) is None for key in keys):
        time.sleep(0.005)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--configs", type=int, default=96)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    spec = registry.find("matmul", "pointer")
    space = spec.space(PROBLEM, DEVICE).configs()
    by_class = {spec.compile_class(PROBLEM, config): config for config in space}
    configs = list(by_class.values())[:: max(1, len(by_class) // args.configs)][: args.configs]
    one, many = seconds(configs, 1), seconds(configs, args.workers)
    summary = {
        "configs": len(configs),
        "one_worker_s": round(one, 2),
        "workers": args.workers,
        "workers_s": round(many, 2),
        "ratio": round(one / many, 2),
        "compiles_per_s": round(len(configs) / many, 1),
    }
    print(summary)
    record.write(args.out, {"summary": summary})


if __name__ == "__main__":
    main()
