"""The `pointer` kernel, which computes one tile per program from operands with any strides, and its shared launch."""

from __future__ import annotations

import functools
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.cost import model as cost
from tuner.kernels.gemm import launches, sums
from tuner.kernels.gemm.pointer import jit as pointer_kernel
from tuner.kernels.gemm.pointer import tile as pointer_tile
from tuner.kernels.gemm.pointer.default import default_config
from tuner.kernels.gemm.pointer.space import NAME, space, supports
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.space import tile_resources
from tuner.launch.launch import Launch
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
    view = launches.view_of(operands, exchanged=exchanged)
    grid, group, constants, options = _parts(view, config)
    memory = launches.split_memory(grid, constants, operands.a)
    tensors = (operands.a, operands.b, operands.out, operands.bias, operands.scale_a, operands.scale_b, *memory)
    arguments = (*tensors, *view.shape, *view.strides, group)
    return Launch(pointer_kernel.matmul_kernel, grid, arguments, constants, options)


def _own(view: launches.View, config: Config) -> dict[str, Any]:
    return {"SUM_PARTS": 1 if view.exchanged else sums.within(config, view.problem)}


_parts = launches.parts_of(pointer_kernel.matmul_kernel, _own)


def order(config: Config, problem: Problem, device: Device) -> sums.Order:
    """How a config sums: by itself in the family's parts."""
    return sums.of_tile(config, problem, device, splits=sums.family_parts(problem))


SOURCES = sources_of(pointer_kernel, pointer_tile, pointer_launch, _own, placement)

SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=functools.partial(default_config, whole_k=True),
    shared_bytes=tile_resources.shared_bytes,
    estimate_us=functools.partial(cost.tiled, by_tma=False),
    sources=SOURCES,
    order=order,
)
