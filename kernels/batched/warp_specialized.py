"""The `bmm_warp_specialized` kernel: one warp loads, one or two warpgroups multiply, tile after tile. For Hopper."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tuner.hardware import device as devices
from tuner.hardware.device import Device, multiprocessors
from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands
from tuner.kernels.batched import along_k, along_k_jit, warp_specialized_jit
from tuner.kernels.batched.operands import batch_of, placement
from tuner.kernels.batched.pointer import BMM
from tuner.kernels.batched.tma import descriptor
from tuner.kernels.batched.warp_specialized_space import (
    NAME,
    as_computed,
    computed,
    copied,
    is_exchanged,
    is_filled,
    shared_bytes,
    space,
    supports,
)
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.hopper import cluster, loader, output, register_operand, resources
from tuner.kernels.gemm.hopper import tile as hopper_tile
from tuner.kernels.gemm.hopper.warp_specialized import Registers, registers_of, with_layout
from tuner.kernels.gemm.k_major import copy_jit
from tuner.kernels.gemm.k_major.problem import copy_us, is_copied
from tuner.kernels.gemm.small_m.swap_ab import exchanged_tile
from tuner.kernels.gemm.spec import gemm_spec, sources_of
from tuner.kernels.space.tile_resources import through_registers
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem, dtype

VERSION = 1


def program(operands: Operands, config: Config) -> tuple[Launch, ...]:
    """The launch that copies an operand, if one must be copied, and that of a config."""
    operands, copies = along_k.along_k(operands)
    swapped = is_exchanged(operands.problem)
    if swapped:
        config, operands = exchanged_tile(config), operands.exchanged()
    a, b, out = operands.a, operands.b, operands.out
    view = launches.view_of(operands, placement, exchanged=swapped)
    (tiles,), group, constants, options = _parts(view, config)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    arguments = (
        laid_out(a, block_m, block_k),
        laid_out(b, block_k, block_n),
        laid_out(out, block_m // constants["WARPGROUPS"], block_n // constants["EPILOGUE_PARTS"]),
        operands.bias,
        *view.shape,
        view.products,
        int(a.stride(0) != 0),
        int(b.stride(0) != 0),
        group,
    )
    # The launch's num_warps are those of the first multiplying warpgroup. Gluon adds the warps of other partitions.
    options = {**options, "num_warps": 4, "maxnreg": _registers(config).launched}
    del options["num_stages"]
    resident = _resident(config, view.problem)
    grid = (min(view.products * tiles, resident * multiprocessors(a.device.index if a.is_cuda else None)),)
    return (*copies, Launch(warp_specialized_jit.bmm_kernel, grid, arguments, constants, options))


def laid_out(batch: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """`tma.descriptor` with the layout of its blocks in shared memory."""
    return with_layout(descriptor(batch, rows, columns), batch.dtype, 1)


def _own(_view: launches.View, config: Config) -> dict[str, Any]:
    registers = _registers(config)
    return {
        "EPILOGUE_PARTS": config.integer("EPILOGUE_PARTS", 1),
        "WARPGROUPS": resources.warpgroups(config),
        "LOADER_REGISTERS": registers.loader,
        "MULTIPLIER_REGISTERS": registers.multiplier,
    }


@functools.lru_cache(maxsize=1024)
def _registers(config: Config) -> Registers:
    groups, columns = resources.warpgroups(config), config.integer("BLOCK_SIZE_N")
    return registers_of(groups, columns, config.integer("BLOCK_SIZE_M") * columns / (128 * groups))


@functools.lru_cache(maxsize=1024)
def _resident(config: Config, problem: Problem) -> int:
    """Programs of a multiprocessor."""
    return resources.resident(config, problem, devices.KNOWN["sm_90"])


_parts = launches.parts_of(warp_specialized_jit.bmm_kernel, _own)


_PART_CYCLES = 500
"""Cycles of a warpgroup for each part of a tile that it rounds and hands to TMA: two barriers, and an earlier part is
awaited; a tile in one part awaits its only buffer, which takes as long. Fitted on 17 problems of
benchmarks/suites/attention.csv, where stores took no other time than memory's."""


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, where stores are behind and only their parts are waited for, and that of a copy."""
    elements = problem.k * sum(itertools.compress((problem.m, problem.n), copied(problem)))
    nbytes = batch_of(problem) * elements * dtype.ITEMSIZE[problem.a_dtype]
    copied_us = copy_us(nbytes, device) if nbytes else 0.0
    loop = Loop(by_tma=True, persistent=True, specialized=True, products=batch_of(problem))
    config, problem = as_computed(config, problem)
    tile = tile_of(Sides.of(config), loop, problem, device)._replace(store=0.0)
    waits = max(2, config.integer("EPILOGUE_PARTS", 1))
    return copied_us + cost.of_tile(tile, config, waits * _PART_CYCLES / tile.steps).us


SPEC = gemm_spec(
    BMM,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    sources=(
        *sources_of(warp_specialized_jit, cluster, loader, hopper_tile, register_operand, output, program, _own),
        *(along_k_jit, copy_jit, along_k, copied, is_copied),
        laid_out,
        with_layout,
        registers_of,
        descriptor,
        placement,
    ),
    precedence=lambda problem, device: 2 if is_filled(problem, device) or through_registers(computed(problem)) else 0,
)
