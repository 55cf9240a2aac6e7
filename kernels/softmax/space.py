"""Host code that the kernels of the op `softmax` share: constexprs of a matrix, formulas and rules for tiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch

from tuner.hardware.device import Device
from tuner.kernel import KernelSpec
from tuner.kernel.config import Config
from tuner.kernels.base import blocks
from tuner.kernels.base.operands import INT32_SPAN, Placement, placement
from tuner.kernels.base.program import Program, spec_of
from tuner.kernels.elementwise import rules
from tuner.kernels.elementwise.spec import Tensors, lacking
from tuner.kernels.softmax import whole_jit as softmax_kernel
from tuner.kernels.softmax.operands import SOFTMAX
from tuner.kernels.space import precedence
from tuner.kernels.space.precedence import Line, always
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_resources import MOST_ELEMENTS, next_power_of_two
from tuner.launch.launch import compiler_options
from tuner.problem import Problem, dtype

INTERPRETED_COLUMNS = 128
"""Columns of a block on the interpreter, which takes milliseconds per block."""


def softmax_spec(
    name: str, version: int, program: Program[Tensors], *, sources: Sequence[Any], **fields: Any
) -> KernelSpec:
    """Make a kernel of the op, with the sources that all its kernels share; see `spec_of` for the arguments."""
    first = functools.partial(precedence.of, _PRECEDENCE, name)
    fields |= {"sources": (*sources, *SOURCES), "precedence": first, "shared_bytes": shared_bytes}
    return spec_of(SOFTMAX, name, version, program, **fields)


def _leaves_idle(problem: Problem, device: Device) -> bool:
    """Whether rows leave half of the multiprocessors idle and are long enough to be worth a second launch."""
    return 2 * problem.m <= device.sm_count and problem.n >= _WORTH_SPLITTING and not device.is_interpreter


_WORTH_SPLITTING = 32768
_PRECEDENCE = (
    Line(3, "softmax_split", _leaves_idle),
    Line(2, "softmax_whole", always),
    Line(1, "softmax_online", always),
)


def supports(problem: Problem, device: Device) -> str | None:
    """Why no kernel of the op serves a problem on a device, or None."""
    if problem.k != 1:
        return f"K is {problem.k}: a matrix's problem is Problem(M, N, 1, op='softmax')"
    return lacking(problem, device, ("nn", "tn"))


def static_of(inputs: Tensors, config: Config) -> tuple[tuple[int, ...], int, dict[str, Any], dict[str, Any]]:
    """Row and column strides of x and of the output, number of blocks of rows, constexprs and compiler options.

    A tile without BLOCK_SIZE_N has whole rows.
    """
    strides = (*_strides(inputs.a), *_strides(inputs.out))
    return strides, *_static(inputs.a.shape, strides, (placement(inputs.a), placement(inputs.out)), config)


def _strides(matrix: torch.Tensor) -> tuple[int, int]:
    # The stride of a dimension of one element is never used, whatever torch says it is.
    rows, columns = matrix.shape
    return (0 if rows == 1 else matrix.stride(0)), (1 if columns == 1 else matrix.stride(1))


@functools.lru_cache(maxsize=4096)
def _static(
    shape: tuple[int, int], strides: tuple[int, ...], placed: tuple[Placement, Placement], config: Config
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    block_m, block_n = _tile(config, shape[1])
    stride_xm, stride_xn, stride_om, stride_on = strides
    spans = (
        (block_m - 1) * stride_xm + (block_n - 1) * stride_xn,
        (block_m - 1) * stride_om + (block_n - 1) * stride_on,
    )
    x, out = placed
    constants = {
        "BLOCK_SIZE_M": block_m,
        "BLOCK_SIZE_N": block_n,
        "X_TRANSPOSED": x.transposed,
        "X_VECTOR": x.vector,
        "OUT_VECTOR": 1 if out.transposed else out.vector,  # a transposed output is written element by element
        "EVEN_N": shape[1] % block_n == 0,
        "WIDE": max(spans) >= INT32_SPAN,
        "PDL": bool(config.get("launch_pdl", False)),
    }
    return -(-shape[0] // block_m), constants, compiler_options(config)


def covering(problem: Problem) -> int:
    """Number of elements in the smallest tile that covers the whole matrix."""
    return min(MOST_ELEMENTS, next_power_of_two(problem.m) * next_power_of_two(problem.n))


def _tile(config: Config, columns: int) -> tuple[int, int]:
    return config.integer("BLOCK_SIZE_M", 1), config.integer("BLOCK_SIZE_N") or next_power_of_two(columns)


SOURCES = (softmax_kernel, static_of, _strides, _static, _tile, placement, blocks)
"""The sources of every kernel whose constexprs are those of `static_of`."""


def elements(config: Config, problem: Problem) -> int:
    """Number of elements in a tile, including the padding of whole rows."""
    return math.prod(_tile(config, problem.n))


def programs(config: Config, problem: Problem) -> int:
    """Number of programs, each of which has some whole rows."""
    return -(-problem.m // config.integer("BLOCK_SIZE_M"))


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """An upper bound on the shared memory of a program in bytes.

    It holds a tile for each load in flight, a float32 value per row and warp that warps exchange, and, if x is
    transposed and the output is not, another tile to transpose through. Source: compiled for sm_80, sm_90 and sm_100
    (tests/compile/test_elementwise.py); nothing is pipelined on AMD, nor where a row is one block.
    """
    held = elements(config, problem) * dtype.ITEMSIZE[problem.a_dtype]
    is_pipelined = "BLOCK_SIZE_N" in config and device.vendor == "nvidia"
    pipeline = (config.integer("num_stages") - 1) * held if is_pipelined else 0
    exchanged = max(16, 4 * config.integer("BLOCK_SIZE_M", 1) * config.integer("num_warps"))
    turned = held if problem.layout[0] == "t" else 0
    return pipeline + max(exchanged, turned)


def in_flight(elements: int, config: Config, problem: Problem, device: Device) -> int:
    """Bytes in flight: those that the programs on a multiprocessor wait for at once."""
    return rules.resident(config, device) * elements * dtype.ITEMSIZE[problem.a_dtype]


@rule("beyond M", "the shape itself", early=True)
def beyond(config: Config, problem: Problem, device: Device) -> str | None:
    rows = max(16 if device.is_interpreter else 1, next_power_of_two(problem.m))
    block_m = config.integer("BLOCK_SIZE_M")
    return f"BLOCK_SIZE_M is {block_m}, {rows} covers M" if block_m > rows else None


"""The rule that a tile has no more rows than the smallest power of two that covers M."""


@rule("sectors", "CUDA C++ Best Practices Guide, 32-byte sectors of global memory", early=True)
def sectors(config: Config, problem: Problem, device: Device) -> str | None:
    size, block_m = dtype.ITEMSIZE[problem.a_dtype], config.integer("BLOCK_SIZE_M")
    least = min(32, next_power_of_two(problem.m) * size)
    if problem.layout[0] == "n" or device.is_interpreter or block_m * size >= least:
        return None
    return f"{block_m} rows are {block_m * size} bytes of a column: a sector of memory has 32"


"""The rule that, if x is transposed, a tile has enough neighbouring rows to fill a sector."""
