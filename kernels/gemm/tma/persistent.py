"""The `persistent_tma` kernel: one program per multiprocessor takes tile after tile, and loads during stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device, multiprocessors
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.cost import model as cost
from tuner.kernels.gemm import launches, sums
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma import jit as tma_kernel
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.gemm.tma import tile as tma_tile
from tuner.kernels.gemm.tma.spec import descriptor, destination, destination_strides
from tuner.kernels.space import refinements, tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem, dtype

NAME = "persistent_tma"
VERSION = 2


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out = operands.a, operands.b, operands.out
    view = launches.view_of(operands)
    (tiles,), group, constants, options = _parts(view, config)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    arguments = (
        descriptor(a, block_m, block_k),
        descriptor(b, block_k, block_n),
        destination(out, block_m, block_n),
        operands.bias,
        operands.scale_a,
        operands.scale_b,
        *view.shape,
        *destination_strides(out),
        group,
    )
    grid = (min(tiles, multiprocessors(a.device.index if a.device.type == "cuda" else None)),)
    return (Launch(tma_kernel.persistent_kernel, grid, arguments, constants, options),)


_parts = launches.parts_of(tma_kernel.persistent_kernel)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := tma_space.supports_tiles(problem, device):
        return reason
    if device.is_interpreter:
        return None
    if problem.n <= 32:
        return f"N is {problem.n}: a tile has 64 columns, more than half of them would be padding"
    smallest = -(-problem.m // 64) * -(-problem.n // 64)
    if smallest <= device.sm_count:
        return f"{smallest} tiles of 64x64 for {device.sm_count} multiprocessors: no program would take a second"
    return None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(device), RULES, pointer_space.canonical, _expand)


def _axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    if device.is_interpreter:
        tile: dict[str, tuple[Value, ...]] = dict.fromkeys(TILE, (32,))
        return {**tile, "GROUP_SIZE_M": (1,), "EPILOGUE_PARTS": (1,), "num_stages": (1,), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (64, 128, 256),
        "BLOCK_SIZE_N": (64, 128, 256),
        "BLOCK_SIZE_K": (32, 64, 128, 256),
        "GROUP_SIZE_M": tile_rules.GROUPS,
        "EPILOGUE_PARTS": (1,),
        "num_stages": (1,),
        "num_warps": (4, 8),
        **tile_rules.overlap(device),
    }


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, of loads by descriptors and programs that take tile after tile."""
    return cost.tiled(config, problem, device, by_tma=True, persistent=True)


def ties(config: Config) -> int:
    """Of equal estimates groups of about 8 rows come first."""
    return abs(config.integer("GROUP_SIZE_M", 1) - 8)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block: the pipeline and, in addition, the tile that is being stored."""
    block_m, block_n, _ = tile_resources.tile(config)
    # Threads also exchange row scales, with 4 warps.
    scales = 4 * max(block_m, block_n) if problem.scaling == "row" else 0
    stored = block_m * block_n * dtype.ITEMSIZE[problem.out_dtype]
    return tma_space.pipeline_bytes(config, problem, device) + stored + scales


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    if device.is_interpreter:
        yield config
        return
    deepest = tma_space.deepest(lambda tried: shared_bytes(tried, problem, device), config, device)
    for stages in range(max(2, deepest - 1), deepest + 1):
        yield config.replace(num_stages=stages)


@rule("one tile each", "the shape itself", early=True)
def _one_tile_each(config: Config, problem: Problem, device: Device) -> str | None:
    tiles_m, tiles_n, _ = tile_resources.tile_counts(config, problem)
    if tiles_m * tiles_n > device.sm_count or device.is_interpreter:
        return None
    return f"{tiles_m * tiles_n} tiles for {device.sm_count} multiprocessors: no program takes a second"


RULES = (
    tile_rules.parameters(lambda _, device: _axes(device), own={"EPILOGUE_PARTS": refinements.only(1)}),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/tma/persistent.py"),
    tma_space.tensor_cores,
    _one_tile_each,
    *tma_space.TILE_RULES,
)

SOURCES = sources_of(tma_kernel, tma_tile, program, descriptor, destination, placement)


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    ties=ties,
    sources=SOURCES,
    order=sums.of_tile,
)
