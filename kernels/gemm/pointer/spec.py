"""The `pointer` kernel, which computes one tile per program from operands with any strides, and its shared launch."""

from __future__ import annotations

import functools
from typing import Any

from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.base.workspace import splits_together
from tuner.kernels.cost import model as cost
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.pointer import jit as pointer_kernel
from tuner.kernels.gemm.pointer import tile as pointer_tile
from tuner.kernels.gemm.pointer.default import default_config
from tuner.kernels.gemm.pointer.space import NAME, space, supports
from tuner.kernels.gemm.spec import gemm_spec, sources_of
from tuner.kernels.space import tile_resources
from tuner.launch.launch import Launch, compiler_options
from tuner.problem import Problem

VERSION = 2


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
    memory = launches.split_memory(grid, constants, a)
    tensors = (a, b, out, operands.bias, operands.scale_a, operands.scale_b, *memory)
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
    tile = tile_resources.tile(config)
    constants = {
        **launches.overlap_constants(config),
        **launches.strided_constants(tile, strides, vectors),
        "TOGETHER": splits_together(tile[0] * tile[1], config.integer("num_warps"), config.integer("SPLIT_K", 1)),
        "EVEN_K": k % tile[2] == 0,
        "BIAS_ALONG_M": exchanged,
        **launches.epilogue_constants(problem, tile[2]),
    }
    grid, group = launches.grid_of(config, tile, m, n)
    return grid, (*shape, *strides, group), constants, compiler_options(config)


SOURCES = sources_of(pointer_kernel, pointer_tile, pointer_launch, _static, placement)

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
