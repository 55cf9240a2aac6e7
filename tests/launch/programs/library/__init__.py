"""A library that knows nothing of triton-tuner: kernels under `triton.autotune` and under a subclass of its own."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.runtime import Autotuner

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((64, 2), (128, 4), (256, 8))]
calls = []


class OwnAutotuner(Autotuner):
    """Overrides `run`, as that of flash-linear-attention does."""

    def run(self, *args, **kwargs):
        calls.append(len(args))
        return super().run(*args, **kwargs)


@triton.autotune(CONFIGS, key=["N"], cache_results=True)
@triton.jit
def scale(x, y, stride, N, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at * stride, mask=at < N) * factor, mask=at < N)


@triton.jit
def shift(x, y, N, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + at, tl.load(x + at, mask=EVEN or at < N), mask=EVEN or at < N)


below = triton.heuristics({"EVEN": lambda args: args["N"] % args["BLOCK"] == 0})(shift)
shift = OwnAutotuner(below, below.arg_names, CONFIGS, ["N"], ["y"], None)


@triton.autotune(CONFIGS, key=["N"])
@triton.jit
def summed(x, y, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y, tl.sum(tl.load(x + at, mask=at < N, other=0.0)))


@triton.jit
def twice(v):
    return v * 2


@triton.jit
def double(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, twice(tl.load(x + at, mask=at < N)), mask=at < N)


@triton.autotune(CONFIGS[:1], key=["N"])
@triton.jit
def negate(x, y, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, -tl.load(x + at, mask=at < N), mask=at < N)
