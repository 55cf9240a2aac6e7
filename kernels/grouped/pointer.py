"""The `grouped_pointer` kernel: products of different sizes in one launch, from operands with any strides."""

from __future__ import annotations

import functools
from typing import Any

from tuner.hardware.device import multiprocessors
from tuner.kernel.config import Config
from tuner.kernels.base.operands import INT32_SPAN, placement
from tuner.kernels.batched.operands import placement as batch_placement
from tuner.kernels.gemm import launches
from tuner.kernels.gemm.pointer import tile as pointer_tile
from tuner.kernels.gemm.spec import gemm_spec, operation, sources_of
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
from tuner.launch.launch import TILE, Launch, compiler_options
from tuner.problem import Problem

VERSION = 1
GROUPED_MM = operation("grouped_mm", make_operands, vendor, reference, launch_grouped_interpreted)


def program(operands: GroupedOperands | ListedOperands, config: Config) -> tuple[Launch, ...]:
    """The launches of a config."""
    return _listed(operands, config) if isinstance(operands, ListedOperands) else (_grouped(operands, config),)


def _grouped(operands: GroupedOperands, config: Config) -> Launch:
    a, b, out = operands.a, operands.b, operands.out
    in_a, in_out = placement(a), placement(out)
    # If columns are contiguous, a group may begin anywhere within them.
    vectors = (
        1 if in_a.transposed else in_a.vector,
        batch_placement(b).vector,
        1 if in_out.transposed else in_out.vector,
    )
    shape = (out.shape[0], out.shape[1], a.shape[1], b.shape[0])
    strides = (*a.stride(), *b.stride(), *out.stride())
    tiles, scalars, constants, options = _static(operands.problem, shape, config, strides, vectors)
    grid = (programs(tiles, config, a.device.index),)
    tensors = (a, b, out, operands.bias, operands.ends)
    return Launch(grouped_kernel.grouped_kernel, grid, (*tensors, *scalars), constants, options)


@functools.lru_cache(maxsize=4096)
def _static(
    problem: Problem,
    shape: tuple[int, int, int, int],
    config: Config,
    strides: tuple[int, ...],
    vectors: tuple[int, int, int],
) -> tuple[int, tuple[int, ...], dict[str, Any], dict[str, Any]]:
    """The most tiles, integer arguments, constexprs and compiler options."""
    m, n, k, groups = shape
    tile = tile_resources.tile(config)
    constants = {
        **launches.strided_constants(tile, (*strides[:2], *strides[3:]), vectors),
        **launches.unscaled_constants(problem, tile[2]),
        "EVEN_K": k > 0 and k % tile[2] == 0,
        "BLOCK_GROUPS": next_power_of_two(groups),
        **launches.pdl_of(config),
    }
    scalars = (m, n, k, groups, *strides, max(1, config.integer("GROUP_SIZE_M", 1)))
    return most_tiles(m, n, groups, tile), scalars, constants, compiler_options(config)


def most_tiles(m: int, n: int, groups: int, tile: tuple[int, ...]) -> int:
    """The most tiles that M rows in groups of any sizes can have: in the worst case, groups end in tiles of one row."""
    return (m + min(groups, m) * (tile[0] - 1)) // tile[0] * -(-n // tile[1])


def programs(tiles: int, config: Config, index: int | None) -> int:
    """Number of programs in a launch on a CUDA device: as the config says, but no more than tiles."""
    return max(1, min(tiles, config.integer("PROGRAMS_PER_SM") * multiprocessors(index)))


def _listed(operands: ListedOperands, config: Config) -> tuple[Launch, ...]:
    rows = rows_of(operands)
    table, filling = table_of(rows, operands.output.device)
    lying = tuple(stored(matrices) for matrices in (operands.a, operands.b, operands.out))
    tile = tile_resources.tile(config)
    tiles = sum(-(-row[3] // tile[0]) * -(-row[4] // tile[1]) for row in rows)
    constants = {
        **dict(zip(TILE, tile, strict=True)),
        **launches.unscaled_constants(operands.problem, tile[2]),
        "BLOCK_GROUPS": next_power_of_two(len(rows)),
        **launches.pdl_of(config),
        **{f"{name}_STORED": way for name, (way, _) in zip("ABC", lying, strict=True)},
        **{f"{name}_VECTOR": vector for name, (_, vector) in zip("ABC", lying, strict=True)},
        "EVEN_K": all(row[5] > 0 and row[5] % tile[2] == 0 for row in rows),
        "WIDE": any(launches.span(tile, row[6:]) >= INT32_SPAN for row in rows),
    }
    likes = (operands.a[0], operands.b[0], operands.out[0])
    arguments = (table, *likes, len(rows), max(1, config.integer("GROUP_SIZE_M", 1)))
    grid = (programs(tiles, config, operands.output.device.index),)
    launch = Launch(grouped_kernel.listed_kernel, grid, arguments, constants, compiler_options(config))
    return (*filling, launch)


SPEC = gemm_spec(
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
        _static,
        programs,
        most_tiles,
        _listed,
        stored,
        placement,
    ),
    runtime_parameters=("GROUP_SIZE_M", "PROGRAMS_PER_SM"),
    operation=GROUPED_MM,
)
