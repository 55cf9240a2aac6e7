"""Launches for a profiler: of each problem the config that a lookup gives, then torch's call. See profiling.py.

A spin kernel separates the launches of one contestant from the next one's.
"""

from __future__ import annotations

import contextlib
import json
import sys

import torch

import tuner
from tuner.kernel import registry
from tuner.problem import suite


def main(database: str, path: str, *shapes: str) -> None:
    tuner.use(database)
    chosen = [p for p in suite.load(path) if not shapes or f"{p.m}x{p.n}x{p.k}" in shapes]
    torch.cuda.init()
    for problem in chosen:
        match = tuner.lookup(problem)
        spec = registry.find(problem.op, match.config.kernel)
        inputs = spec.make_inputs(problem, "cuda", 0)
        torch.cuda.synchronize()
        contestants = {match.config.label: (spec.launch, (inputs, match.config)), "torch": (spec.vendor, (inputs,))}
        for label, (call, arguments) in contestants.items():
            with contextlib.suppress(NotImplementedError, RuntimeError):
                call(*arguments)
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                torch.cuda._sleep(1)
                call(*arguments)
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
                shown = {"problem": str(problem), "contestant": label, "rule": match.rule}
                print("profiled", json.dumps(shown), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
