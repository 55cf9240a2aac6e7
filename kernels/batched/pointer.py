"""The `bmm_pointer` kernel: each program computes one tile of one product, from operands with any strides."""

from __future__ import annotations

import functools
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands
from tuner.kernels.batched import jit as bmm_kernel
from tuner.kernels.batched.operands import batch_of, make_operands, placement, vendor
from tuner.kernels.batched.space import POINTER, config_of, pointer, share, supports_pointer
from tuner.kernels.cost import model as cost
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.pointer import default as pointer_default
from tuner.kernels.gemm.pointer import tile as pointer_tile
from tuner.kernels.gemm.spec import gemm_spec, operation, sources_of
from tuner.kernels.space import tile_resources
from tuner.kernels.space.tile_resources import shared_bytes
from tuner.launch.launch import Launch, compiler_options
from tuner.problem import Problem

VERSION = 1
BMM = operation("bmm", make_operands, vendor)


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
    tile = tile_resources.tile(config)
    constants = {
        **launches.strided_constants(tile, (*strides[1:3], *strides[4:6], *strides[7:9]), vectors),
        "EVEN_K": k % tile[2] == 0,
        **launches.unscaled_constants(problem, tile[2]),
        **launches.pdl_of(config),
    }
    (tiles,), group = launches.grid_of(config, tile, m, n)
    return (batch * tiles,), (m, n, k, *strides, group), constants, compiler_options(config)


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
    sources=sources_of(bmm_kernel, pointer_tile, program, _static, placement),
    operation=BMM,
)
