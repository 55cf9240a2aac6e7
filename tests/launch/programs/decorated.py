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


@tuner.tuned(CONFIGS, ["mode"])
@triton.jit(do_not_specialize=["mode"])
def shift(x, y, count, mode, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < count) + mode, mask=at < count)


@shift.make_inputs
def shift_inputs(problem):
    """Of mode 0 a count that 16 divides, of any other one that it does not: the count is not part of the key."""
    x = torch.randn(2048)
    return tuner.Arguments(
        (8,), (x, torch.empty_like(x), 1001 if problem["mode"] else 1024, problem["mode"]), outputs=["y"]
    )
