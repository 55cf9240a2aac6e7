"""The `grouped_pointer` kernel: products of different sizes in one launch, from operands with any strides."""

from __future__ import annotations

from typing import Any

import torch

from tuner.hardware.device import multiprocessors
from tuner.kernel.config import Config
from tuner.kernels.base import numerics
from tuner.kernels.base.operands import INT32_SPAN, Placement, placement
from tuner.kernels.base.program import Operation
from tuner.kernels.batched.operands import placement as batch_placement
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.pointer import tile as pointer_tile
from tuner.kernels.gemm.spec import gemm_spec, sources_of
from tuner.kernels.grouped import jit as grouped_kernel
from tuner.kernels.grouped.operands import (
    GroupedOperands,
    ListedOperands,
    launch_grouped_interpreted,
    make_operands,
    reference,
    vendor,
)
from tuner.kernels.grouped.space import POINTER, default_pointer, estimate_us, pointer, supports_pointer
from tuner.kernels.grouped.table import rows_of, stored, table_of
from tuner.kernels.space import tile_resources
from tuner.kernels.space.tile_resources import next_power_of_two, shared_bytes
from tuner.launch.launch import Launch, compiler_options

VERSION = 1
GROUPED_MM = Operation("grouped_mm", make_operands, vendor, reference, launch_grouped_interpreted, numerics.tolerance)


def program(operands: GroupedOperands | ListedOperands, config: Config) -> tuple[Launch, ...]:
    """The launches of a config."""
    return _listed(operands, config) if isinstance(operands, ListedOperands) else (_grouped(operands, config),)


def _grouped(operands: GroupedOperands, config: Config) -> Launch:
    a, b, out = operands.a, operands.b, operands.out
    view = launches.view_of(operands, placed)
    _, _, constants, options = _parts(view, config)
    tiles = most_tiles(view, config)
    grid = (programs(tiles, config, a.device.index),)
    strides = (*a.stride(), *b.stride(), *out.stride())
    sizes = (*view.shape, view.products, *strides, max(1, config.integer("GROUP_SIZE_M", 1)))
    arguments = (a, b, out, operands.bias, operands.ends, *sizes)
    return Launch(grouped_kernel.grouped_kernel, grid, arguments, constants, options)


def placed(matrix: torch.Tensor) -> Placement:
    """How an operand lies in memory: B is a batch, and a group is rows of A and C."""
    return batch_placement(matrix) if matrix.dim() == 3 else placement(matrix)


def _own(view: launches.View, _config: Config) -> dict[str, Any]:
    # If columns are contiguous, a group may begin anywhere within them.
    by_rows = [1 if transposed else vector for transposed, vector in zip(view.transposed, view.vectors, strict=True)]
    return {"A_VECTOR": by_rows[0], "C_VECTOR": by_rows[2]}


_parts = launches.parts_of(grouped_kernel.grouped_kernel, _own)


def most_tiles(view: launches.View, config: Config) -> int:
    """The most tiles that M rows in groups of any sizes can have: in the worst case, groups end in tiles of one row."""
    (m, n, _), (block_m, block_n, _) = view.shape, tile_resources.tile(config)
    return (m + min(view.products, m) * (block_m - 1)) // block_m * -(-n // block_n)


def programs(tiles: int, config: Config, index: int | None) -> int:
    """Number of programs in a launch on a CUDA device: as the config says, but no more than tiles."""
    return max(1, min(tiles, config.integer("PROGRAMS_PER_SM") * multiprocessors(index)))


def _listed(operands: ListedOperands, config: Config) -> tuple[Launch, ...]:
    rows = rows_of(operands)
    table, filling = table_of(rows, operands.output.device)
    lying = tuple(stored(matrices) for matrices in (operands.a, operands.b, operands.out))
    tile = tile_resources.tile(config)
    tiles = sum(-(-row[3] // tile[0]) * -(-row[4] // tile[1]) for row in rows)
    given = {
        **launches.of_config(operands.problem, config),
        "BLOCK_GROUPS": next_power_of_two(len(rows)),
        **{f"{name}_STORED": way for name, (way, _) in zip("ABC", lying, strict=True)},
        **{f"{name}_VECTOR": vector for name, (_, vector) in zip("ABC", lying, strict=True)},
        "EVEN_K": all(row[5] > 0 and row[5] % tile[2] == 0 for row in rows),
        "WIDE": any(launches.span(tile, row[6:]) >= INT32_SPAN for row in rows),
    }
    constants = launches.named(grouped_kernel.listed_kernel, given)
    likes = (operands.a[0], operands.b[0], operands.out[0])
    arguments = (table, *likes, len(rows), max(1, config.integer("GROUP_SIZE_M", 1)))
    grid = (programs(tiles, config, operands.output.device.index),)
    launch = Launch(grouped_kernel.listed_kernel, grid, arguments, constants, compiler_options(config))
    return (*filling, launch)


SPEC = gemm_spec(
    GROUPED_MM,
    POINTER,
    VERSION,
    program,
    supports=supports_pointer,
    space=pointer,
    default_config=default_pointer,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    sources=sources_of(
        grouped_kernel,
        pointer_tile,
        program,
        _grouped,
        placed,
        _own,
        programs,
        most_tiles,
        _listed,
        stored,
        placement,
    ),
    runtime_parameters=("GROUP_SIZE_M", "PROGRAMS_PER_SM"),
)
