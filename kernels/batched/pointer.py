"""The `bmm_pointer` kernel: each program computes one tile of one product, from operands with any strides."""

from __future__ import annotations

import functools
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands
from tuner.kernels.batched import jit as bmm_kernel
from tuner.kernels.batched.operands import batch_of, make_operands, placement
from tuner.kernels.batched.space import POINTER, config_of, pointer, share, supports_pointer
from tuner.kernels.batched.vendor import vendor
from tuner.kernels.cost import model as cost
from tuner.kernels.gemm.pointer import default as pointer_default
from tuner.kernels.gemm.pointer import tile as pointer_tile
from tuner.kernels.gemm.spec import epilogue_constants, gemm_spec, operation, sources_of
from tuner.kernels.space.tile_resources import shared_bytes
from tuner.launch.launch import TILE, Launch, compiler_options
from tuner.problem import Problem

VERSION = 1
BMM = operation("bmm", make_operands, vendor)
_INT32_SPAN = 2**31


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out = operands.a, operands.b, operands.out
    shape = (out.shape[0], out.shape[1], out.shape[2], a.shape[2])
    strides = (*a.stride(), *b.stride(), *out.stride())
    vectors = (placement(a).vector, placement(b).vector, placement(out).vector)
    grid, scalars, constants, options = _static(operands.problem, shape, config, strides, vectors)
    return (Launch(bmm_kernel.pointer_kernel, grid, (a, b, out, operands.bias, *scalars), constants, options),)


@functools.lru_cache(maxsize=4096)
def _static(
    problem: Problem,
    shape: tuple[int, int, int, int],
    config: Config,
    strides: tuple[int, ...],
    vectors: tuple[int, int, int],
) -> tuple[tuple[int], tuple[int, ...], dict[str, Any], dict[str, Any]]:
    """Everything in a launch except its tensors: grid, integer arguments, constexprs and compiler options."""
    batch, m, n, k = shape
    tile = tuple(config.integer(name) for name in TILE)
    tiles_m, tiles_n = -(-m // tile[0]), -(-n // tile[1])
    plain = (*strides[1:3], *strides[4:6], *strides[7:9])
    constants = {**tile_constants(tile, plain, vectors, problem), "EVEN_K": k % tile[2] == 0, **pdl_of(config)}
    # Limit a group to all rows of tiles, because the kernel multiplies it by tiles_n in 32 bits.
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m)
    return (batch * tiles_m * tiles_n,), (m, n, k, *strides, group), constants, compiler_options(config)


def tile_constants(
    tile: tuple[int, ...], strides: tuple[int, ...], vectors: tuple[int, int, int], problem: Problem
) -> dict[str, Any]:
    """Constexprs of `pointer.tile.multiply`, except EVEN_K.

    Args:
        tile: BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K.
        strides: row strides of A, B and C, then their column strides.
        vectors: elements that divide the leading strides and contiguous extents of A, B and C.
        problem: what is computed.
    """
    block_m, block_n, block_k = tile
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn = strides
    spans = (
        (block_m - 1) * stride_am + (block_k - 1) * stride_ak,
        (block_k - 1) * stride_bk + (block_n - 1) * stride_bn,
        (block_m - 1) * stride_cm + (block_n - 1) * stride_cn,
    )
    epilogue = epilogue_constants(problem, block_k)
    return {
        **dict(zip(TILE, tile, strict=True)),
        "A_TRANSPOSED": stride_ak != 1 and stride_am == 1,
        "B_TRANSPOSED": stride_bn != 1 and stride_bk == 1,
        "C_TRANSPOSED": stride_cn != 1 and stride_cm == 1,
        **dict(zip(("A_VECTOR", "B_VECTOR", "C_VECTOR"), vectors, strict=True)),
        "WIDE": max(spans) >= _INT32_SPAN,
        **{name: epilogue[name] for name in ("ACTIVATION", "PRECISION", "MAX_IMPRECISE")},
    }


def pdl_of(config: Config) -> dict[str, bool]:
    """The constexpr that goes with the compiler's option `launch_pdl`."""
    return {"PDL": bool(config.get("launch_pdl", False))}


def default_config(problem: Problem, device: Device) -> Config:
    """The `pointer` kernel's default for one product on its share of the device."""
    single = pointer_default.default_config(problem, share(device, batch_of(problem)))
    return config_of(single, pointer(problem, device))


SPEC = gemm_spec(
    POINTER,
    VERSION,
    program,
    supports=supports_pointer,
    space=pointer,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=lambda config, problem, device: cost.tiled(
        config, problem, device, by_tma=False, products=batch_of(problem)
    ),
    sources=sources_of(bmm_kernel, pointer_tile, program, _static, tile_constants, pdl_of, placement),
    operation=BMM,
)
