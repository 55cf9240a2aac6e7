"""What the launches of GEMM kernels have in common on the host: constexprs, grids and memory for split sums."""

from __future__ import annotations

from typing import Any

import torch

from tuner.kernel.config import Config
from tuner.kernels.base import numerics
from tuner.kernels.base.operands import INT32_SPAN
from tuner.kernels.base.workspace import workspace
from tuner.kernels.space import refinements
from tuner.launch.launch import TILE
from tuner.problem import Problem


def epilogue_constants(problem: Problem, block_size_k: int) -> dict[str, Any]:
    """The constexprs of the multiplication and of `epilogue.finish`, except BIAS_ALONG_M."""
    return {"SCALING": problem.scaling, **unscaled_constants(problem, block_size_k)}


def unscaled_constants(problem: Problem, block_size_k: int) -> dict[str, Any]:
    """`epilogue_constants` of a kernel whose operands have no scales."""
    return {
        "ACTIVATION": problem.activation,
        "PRECISION": "ieee" if problem.precision == "default" else problem.precision,
        "MAX_IMPRECISE": numerics.max_imprecise(problem, block_size_k),
    }


def overlap_constants(config: Config) -> dict[str, Any]:
    """The constexprs of programmatic dependent launch: PDL, TRIGGER and PREFETCH."""
    return {
        "PDL": bool(config.get("launch_pdl", False)),
        "TRIGGER": config.integer(refinements.PDL_TRIGGER, 0),
        "PREFETCH": config.integer(refinements.PREFETCH_KIB, 0) * 1024,
    }


def pdl_of(config: Config) -> dict[str, bool]:
    """The constexpr that goes with the compiler's option `launch_pdl`."""
    return {"PDL": bool(config.get("launch_pdl", False))}


def strided_constants(tile: tuple[int, ...], strides: tuple[int, ...], vectors: tuple[int, ...]) -> dict[str, Any]:
    """The constexprs of a tile that is loaded and stored through pointers, except EVEN_K.

    Args:
        tile: BLOCK_SIZE_M, BLOCK_SIZE_N and BLOCK_SIZE_K.
        strides: the row and the column stride of A, then of B and of C.
        vectors: elements that divide the leading strides and contiguous extents of A, B and C.
    """
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn = strides
    return {
        **dict(zip(TILE, tile, strict=True)),
        "A_TRANSPOSED": stride_ak != 1 and stride_am == 1,
        "B_TRANSPOSED": stride_bn != 1 and stride_bk == 1,
        "C_TRANSPOSED": stride_cn != 1 and stride_cm == 1,
        "A_VECTOR": vectors[0],
        "B_VECTOR": vectors[1],
        "C_VECTOR": vectors[2],
        "WIDE": span(tile, strides) >= INT32_SPAN,
    }


def span(tile: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The largest offset within a tile of A, B or C, in elements."""
    block_m, block_n, block_k = tile
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn = strides
    return max(
        (block_m - 1) * stride_am + (block_k - 1) * stride_ak,
        (block_k - 1) * stride_bk + (block_n - 1) * stride_bn,
        (block_m - 1) * stride_cm + (block_n - 1) * stride_cn,
    )


def grid_of(config: Config, tile: tuple[int, ...], m: int, n: int) -> tuple[tuple[int, ...], int]:
    """The grid, which has an axis for tiles and one for splits if there are any, and GROUP_SIZE_M."""
    tiles_m, tiles_n = -(-m // tile[0]), -(-n // tile[1])
    # Limit a group to all rows of tiles, because the kernel multiplies it by tiles_n in 32 bits.
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m)
    splits = config.integer("SPLIT_K", 1)
    return (tiles_m * tiles_n,) if splits == 1 else (tiles_m * tiles_n, splits), group


def split_memory(
    grid: tuple[int, ...], constants: dict[str, Any], a: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """The partial sums and the counters of a launch, if its grid has an axis for splits."""
    if len(grid) == 1:
        return None, None
    elements = grid[0] * grid[1] * constants["BLOCK_SIZE_M"] * constants["BLOCK_SIZE_N"]
    return workspace(elements, torch.int32 if a.dtype == torch.int8 else torch.float32, a.device)
