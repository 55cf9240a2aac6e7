"""The `pointer` kernel, which computes one tile per program from operands with any strides, and its shared launch."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.base.workspace import splits_together, workspace
from tuner.kernels.cost import model as cost
from tuner.kernels.gemm.pointer import jit as pointer_kernel
from tuner.kernels.gemm.pointer import tile as pointer_tile
from tuner.kernels.gemm.pointer.default import default_config
from tuner.kernels.gemm.pointer.space import NAME, space, supports
from tuner.kernels.gemm.spec import epilogue_constants, gemm_spec, overlap_constants, sources_of
from tuner.kernels.space import tile_resources
from tuner.launch.launch import TILE, Launch, compiler_options
from tuner.problem import Problem

VERSION = 2
_INT32_SPAN = 2**31


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    return (pointer_launch(operands, config),)


def pointer_launch(operands: Operands, config: Config, *, exchanged: bool = False) -> Launch:
    """Make a launch of `pointer.jit.matmul_kernel`, which splits sums if the config has a SPLIT_K above 1.

    Args:
        operands: the operands, with any strides.
        config: tile, GROUP_SIZE_M, SPLIT_K and the compiler's options.
        exchanged: whether the operands are those of the transposed output, whose bias runs along the rows.
    """
    a, b, out = operands.a, operands.b, operands.out
    shape = (a.shape[0], b.shape[1], a.shape[1])
    strides = (*a.stride(), *b.stride(), *out.stride())
    vectors = (placement(a).vector, placement(b).vector, placement(out).vector)
    grid, scalars, constants, options = _static(operands.problem, shape, config, strides, vectors, exchanged)
    partials = counters = None
    if len(grid) == 2:
        elements = grid[0] * grid[1] * constants["BLOCK_SIZE_M"] * constants["BLOCK_SIZE_N"]
        memory = workspace(elements, torch.int32 if a.dtype == torch.int8 else torch.float32, a.device)
        partials, counters = memory.partials, memory.counters
    tensors = (a, b, out, operands.bias, operands.scale_a, operands.scale_b, partials, counters)
    return Launch(pointer_kernel.matmul_kernel, grid, (*tensors, *scalars), constants, options)


@functools.lru_cache(maxsize=4096)
def _static(  # noqa: PLR0917  the cache's key
    problem: Problem,
    shape: tuple[int, int, int],
    config: Config,
    strides: tuple[int, ...],
    vectors: tuple[int, int, int],
    exchanged: bool,
) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], dict[str, Any]]:
    """Everything in a launch except its tensors: grid, integer arguments, constexprs and compiler options."""
    m, n, k = shape
    block_m, block_n, block_k = (config.integer(name) for name in TILE)
    tiles_m, tiles_n = -(-m // block_m), -(-n // block_n)
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn = strides
    spans = (
        (block_m - 1) * stride_am + (block_k - 1) * stride_ak,
        (block_k - 1) * stride_bk + (block_n - 1) * stride_bn,
        (block_m - 1) * stride_cm + (block_n - 1) * stride_cn,
    )
    constants = {
        **overlap_constants(config),
        "TOGETHER": splits_together(block_m * block_n, config.integer("num_warps"), config.integer("SPLIT_K", 1)),
        **dict(zip(TILE, (block_m, block_n, block_k), strict=True)),
        "A_TRANSPOSED": stride_ak != 1 and stride_am == 1,
        "B_TRANSPOSED": stride_bn != 1 and stride_bk == 1,
        "C_TRANSPOSED": stride_cn != 1 and stride_cm == 1,
        "A_VECTOR": vectors[0],
        "B_VECTOR": vectors[1],
        "C_VECTOR": vectors[2],
        "EVEN_K": k % block_k == 0,
        "WIDE": max(spans) >= _INT32_SPAN,
        "BIAS_ALONG_M": exchanged,
        **epilogue_constants(problem, block_k),
    }
    # Limit a group to all rows of tiles, because the kernel multiplies it by tiles_n in 32 bits.
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m)
    splits = config.integer("SPLIT_K", 1)
    grid = (tiles_m * tiles_n,) if splits == 1 else (tiles_m * tiles_n, splits)
    return grid, (*shape, *strides, group), constants, compiler_options(config)


SOURCES = sources_of(pointer_kernel, pointer_tile, pointer_launch, _static, placement, workspace)

SPEC = gemm_spec(
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=tile_resources.shared_bytes,
    estimate_us=functools.partial(cost.tiled, by_tma=False),
    sources=SOURCES,
)
