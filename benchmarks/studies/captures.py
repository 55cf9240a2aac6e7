"""What capturing a config's calls takes by its kernel's host code and by addresses, and whether their replays agree.

    python benchmarks/studies/captures.py --out RESULT.json

Each kernel's default config is captured both ways, on the buffer sets that a sweep would make. `ms` is the host's time
of a capture. `ratio` is the median over pairs of replays, in an order that alternates, of the time of what the kernel's
host code captured over that of what addresses did.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tuner.hardware import device as devices
from tuner.kernel import registry
from tuner.launch.plan import recorded
from tuner.problem import Problem
from tuner.sweep import buffer_sets
from tuner.sweep.timer import GraphTimer

sys.path.insert(0, str(Path(__file__).parents[1]))
import record

SHAPES = ((1, 6144, 4096), (16, 1280, 8192), (64, 256, 7168), (16, 8192, 1024), (1024, 4096, 4096))
PAIRS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="the result, as JSON")
    args = parser.parse_args()
    torch.cuda.set_stream(torch.cuda.Stream())
    device = devices.current()
    timer = GraphTimer(device.l2_bytes)
    found = []
    for shape in SHAPES:
        problem = Problem(*shape, dtype="bfloat16", layout="nt")
        for spec in registry.serving(problem, device):
            found.append(both(timer, spec, problem, spec.default_config(problem, device)))
            print(found[-1], flush=True)
    record.write(args.out, {"captures": found})


def both(timer: GraphTimer, spec: Any, problem: Problem, config: Any) -> dict[str, Any]:
    first = spec.make_inputs(problem, "cuda", 0)
    sets = [first, *(spec.make_inputs(problem, "cuda", seed) for seed in range(1, timer.buffer_sets(first.nbytes)))]
    with recorded() as seen:
        spec.launch(first, config)
    by_addresses = buffer_sets.launches_again(seen, first, sets)
    if by_addresses is None:
        return {"problem": str(problem), "kernel": spec.name}
    calls = timer.capture(by_addresses, len(sets)).calls
    by_kernel, by_kernel_ms = captured(timer, lambda index: spec.launch(sets[index], config), calls, len(sets))
    again, again_ms = captured(timer, by_addresses, calls, len(sets))
    ratios = []
    for _ in range(PAIRS):
        (one, other), (last, first_us) = timer.replay([by_kernel, again]), timer.replay([again, by_kernel])
        ratios.append((one + first_us) / (other + last))
    return {
        "problem": str(problem),
        "kernel": spec.name,
        "calls": calls,
        "us": round(one, 2),
        "ms": {"kernel": round(by_kernel_ms, 2), "addresses": round(again_ms, 2)},
        "ratio": round(statistics.median(ratios), 4),
    }


def captured(timer: GraphTimer, call: Callable[[int], None], calls: int, sets: int) -> tuple[Any, float]:
    torch.cuda.synchronize()
    began = time.perf_counter()
    capture = timer._record(call, calls, sets)
    return capture, 1e3 * (time.perf_counter() - began)


if __name__ == "__main__":
    main()
