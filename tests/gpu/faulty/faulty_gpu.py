"""A third party's Triton kernel that copies [M, N] float32, or fails on the GPU in the way its config says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernel.space import SearchSpace

GUARD = 1024
BEHAVIOURS = ("good", "wrong", "stray", "illegal", "hang")


@triton.jit
def copy(source, target, n, BEHAVIOUR: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + offsets, mask=offsets < n)
    if BEHAVIOUR == "wrong":
        value += 1.0
    if BEHAVIOUR == "stray":
        tl.store(target + n + offsets % 64, value)
    if BEHAVIOUR == "illegal":
        tl.store(target + offsets + (1 << 42), value)
    if BEHAVIOUR == "hang":
        # A normal number never equals this one.
        while tl.load(source, volatile=True) != 1.0e30:
            pass
    tl.store(target + offsets, value, mask=offsets < n)


@dataclass(frozen=True)
class Inputs:
    source: torch.Tensor
    buffer: torch.Tensor
    output: torch.Tensor
    nbytes: int


def _make_inputs(problem, device, seed):
    generator = torch.Generator(device).manual_seed(seed)
    source = torch.randn(problem.m, problem.n, generator=generator, device=device)
    buffer = torch.zeros(problem.m * problem.n + 2 * GUARD, device=device)
    return Inputs(source, buffer, buffer[GUARD:-GUARD].view(problem.m, problem.n), 8 * source.numel())


def _options(config):
    return {"BEHAVIOUR": config["behaviour"], "BLOCK": config["BLOCK"], "num_warps": config["num_warps"]}


def _launch(inputs, config):
    n = inputs.source.numel()
    copy[(triton.cdiv(n, config.integer("BLOCK")),)](inputs.source, inputs.output, n, **_options(config))


def _compile(problem, config):
    return copy.warmup(torch.float32, torch.float32, problem.m * problem.n, grid=(1,), **_options(config))


SPEC = KernelSpec(
    op="faulty_gpu",
    name="faulty_gpu",
    version=1,
    supports=lambda problem, device: None,
    space=lambda problem, device: SearchSpace(
        "faulty_gpu", problem, device, {"behaviour": BEHAVIOURS, "BLOCK": (1024,), "num_warps": (4,)}
    ),
    default_config=lambda problem, device: Config("faulty_gpu", behaviour="good", BLOCK=1024, num_warps=4),
    make_inputs=_make_inputs,
    launch=_launch,
    vendor=lambda inputs: inputs.output.copy_(inputs.source),
    reference=lambda inputs: inputs.source.double(),
    tolerance=lambda problem: 1e-6,
    compile=_compile,
)
