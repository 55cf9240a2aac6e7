"""The `add_block` kernel of the op `vector_add`, which adds contiguous blocks with enough bytes in flight."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch

from tuner.errors import ProblemError
from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base import blocks
from tuner.kernels.base.numerics import ROUNDOFF
from tuner.kernels.base.operands import INT32_SPAN, Values, guarded
from tuner.kernels.base.program import Operation, spec_of
from tuner.kernels.elementwise import rules
from tuner.kernels.elementwise import vector_add_jit as vector_add_kernel
from tuner.kernels.elementwise.spec import Tensors, lacking, launch_interpreted
from tuner.kernels.space import refinements, tile_rules
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import Launch, compiler_options
from tuner.problem import Problem
from tuner.problem import dtype as dtypes

NAME = "add_block"
VERSION = 1
_LOADS = {4: (1, 4), 2: (4, 2)}
"""The default's loads per thread from each operand, and its warps, by the bytes of an element.

No other block size or number of warps was more than 1.1% faster (measured on an H200 in November 2026).
"""


def make_inputs(problem: Problem, torch_device: str, seed: int) -> Tensors:
    """Draw vectors from N(0, 1), which start one element after a 16-byte address if the problem is not aligned.

    The arguments are those of `operands.make_operands`.

    Raises:
        ProblemError: N or K is not 1.
    """
    if (problem.n, problem.k) != (1, 1):
        raise ProblemError(f"{problem}: expected N and K of 1, as Problem(M, 1, 1, op='vector_add')")
    dtype, values, shift = dtypes.to_torch(problem.a_dtype), Values(torch_device, seed), int(not problem.aligned)
    x, y = (values.vector(problem.m, dtype, shift) for _ in range(2))
    out, buffer = guarded(problem.m, 1, dtype, torch_device)
    return Tensors(x, y, out.view(problem.m), problem, buffer)


def vendor(inputs: Tensors) -> None:
    """Write torch's sum into the output."""
    assert inputs.b is not None
    torch.add(inputs.a, inputs.b, out=inputs.out)


def reference(inputs: Tensors) -> torch.Tensor:
    """The sum in float64 [M]."""
    assert inputs.b is not None
    return inputs.a.double() + inputs.b.double()


def tolerance(problem: Problem) -> float:
    """Largest error of a correct result, in the measure of `tuner.sweep.verify.error`: |out - reference| / 2.

    There is one rounding to the output's dtype and one to float32. A sum of two N(0, 1) values is N(0, 2), and
    P(|sum| > t) <= 2 exp(-t²/4), which is 2e-12 at t = 10.6.
    """
    return (ROUNDOFF[problem.out_dtype] + 2.0**-24) * 10.6 / 2


VECTOR_ADD = Operation(
    "vector_add",
    make_inputs,
    vendor,
    reference,
    launch_interpreted,
    tolerance,
    flops=lambda problem: problem.m,
    bytes_moved=lambda problem: 3 * problem.m * dtypes.ITEMSIZE[problem.a_dtype],
)


def program(inputs: Tensors, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    assert inputs.b is not None
    tensors, length = (inputs.a, inputs.b, inputs.out), len(inputs.out)
    # The stride of a single element is never used, and 1 allows wider loads than the stride that torch reports.
    strides = tuple(tensor.stride(0) if length > 1 else 1 for tensor in tensors)
    blocks, constants, options = _static(length, strides, config)
    return (Launch(vector_add_kernel.add_kernel, (blocks,), (*tensors, length, *strides), constants, options),)


@functools.lru_cache(maxsize=4096)
def _static(length: int, strides: tuple[int, ...], config: Config) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Number of blocks, constexprs and compiler options."""
    block = config.integer("BLOCK_SIZE")
    constants = {
        "BLOCK_SIZE": block,
        "WIDE": (block - 1) * max(strides) >= INT32_SPAN,
        "PDL": bool(config.get("launch_pdl", False)),
    }
    return -(-length // block), constants, compiler_options(config)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if (problem.n, problem.k) != (1, 1):
        return f"N is {problem.n} and K {problem.k}: a vector's problem is Problem(M, 1, 1, op='vector_add')"
    return lacking(problem, device, ("nn",))


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(device), RULES)


def _axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    if device.is_interpreter:
        sizes: tuple[Value, ...] = (256, 1024, 8192)
        return {"BLOCK_SIZE": sizes, **rules.unlooped(device), "num_warps": (4,)}
    return {
        "BLOCK_SIZE": tuple(2**power for power in range(14)),
        **rules.unlooped(device),
        "num_warps": rules.warps(device),
        **tile_rules.overlap(device),
    }


def default_config(problem: Problem, device: Device) -> Config:
    """Loads of 16 bytes of each operand, with enough threads for `rules.BYTES_IN_FLIGHT` on a full multiprocessor.

    A multiprocessor full of threads then has at least 64 KiB in flight, while 36 KiB keep the memory busy. Threads have
    one load in programs of four warps, or for 16-bit elements four loads in programs of two warps. Blocks are smaller
    if they would not reach all multiprocessors.
    """
    tried, size = space(problem, device), dtypes.ITEMSIZE[problem.a_dtype]
    loads, few = _LOADS[size]

    def rank(config: Config) -> tuple[float, ...]:
        block, warps = config.integer("BLOCK_SIZE"), config.integer("num_warps")
        each = block * size / rules.threads(config, device)
        programs = -(-problem.m // block)
        idle = max(0, device.sm_count - programs)
        in_flight = 2 * block * size * rules.resident(config, device)
        short = max(0.0, rules.BYTES_IN_FLIGHT - in_flight)
        return idle, short, abs(math.log2(each / (loads * rules.VECTOR_BYTES))), abs(warps - few)

    return tried.best(rank) or tried.smallest()


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """See `elementwise.rules.estimate_us`."""
    block = config.integer("BLOCK_SIZE")
    loaded = 2 * block * dtypes.ITEMSIZE[problem.a_dtype]
    return rules.estimate_us(VECTOR_ADD.bytes_moved(problem), loaded, -(-problem.m // block), config, device)


def simplicity(config: Config) -> tuple[Any, ...]:
    """The sort key of configs by simplicity: fewest threads, smallest block."""
    return config.integer("num_warps"), config.integer("BLOCK_SIZE"), config


def _elements(config: Config, problem: Problem) -> int:  # noqa: ARG001
    return config.integer("BLOCK_SIZE")


def _covering(problem: Problem) -> int:
    return next_power_of_two(problem.m)


@rule("beyond M", "the length itself", early=True)
def _beyond(config: Config, problem: Problem, device: Device) -> str | None:
    smallest = 256 if device.is_interpreter else 1
    covering = max(smallest, _covering(problem))
    block = config.integer("BLOCK_SIZE")
    return f"BLOCK_SIZE is {block}, {covering} covers M" if block > covering else None


RULES = (
    tile_rules.parameters(lambda _, device: _axes(device), own={"PROGRAMS_PER_SM": refinements.only(0)}),
    *rules.of_tile(_elements, _covering),
    _beyond,
)

SPEC = spec_of(
    VECTOR_ADD,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    sources=(vector_add_kernel, program, _static, blocks),
    estimate_us=estimate_us,
    simplicity=simplicity,
)
