"""A kernel under `tuner.tuned`, as a module of its own: processes that compile it and that launch it import it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import tuner

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((64, 2), (128, 4), (256, 8))]


@tuner.tuned(CONFIGS, ["N"])
@triton.jit
def scale(x, y, stride, N, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at * stride, mask=at < N) * factor, mask=at < N)


@scale.make_inputs
def inputs(problem):
    x = torch.randn(2048)
    return tuner.Arguments((8,), (x, torch.empty_like(x), 1, problem["N"], 2.5), outputs=["y"])
