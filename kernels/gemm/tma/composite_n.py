"""The `composite_n` kernel: tiles of two widths side by side, 128 + 64 for instance, that share their rows of A.

`tl.dot` takes powers of two only: where they leave the last wave of tiles mostly empty, 192 or 320 columns may fill it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import Rule, SearchSpace
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.cost import calibration
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.terms import Terms
from tuner.kernels.cost.tile import Loop
from tuner.kernels.gemm.spec import epilogue_constants, gemm_spec, sources_of
from tuner.kernels.gemm.tma import jit as tma_kernel
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.gemm.tma import tile as tma_tile
from tuner.kernels.gemm.tma.spec import descriptor, destination, destination_strides
from tuner.kernels.space import refinements, tile_resources, tile_rules
from tuner.launch.launch import TILE, Launch, compiler_options
from tuner.problem import Problem, dtype

NAME = "composite_n"
VERSION = 1
_OPTIONS = (refinements.MAXNREG, refinements.WARP_SPECIALIZE)
_WIDTHS = ((64, 32), (128, 32), (128, 64), (256, 32), (256, 64), (256, 128))
_MOST_SUMS = 192
_MOST_WAVES = 16


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out = operands.a, operands.b, operands.out
    shape = (a.shape[0], b.shape[1], a.shape[1])
    transposed = (placement(a).transposed, placement(b).transposed, placement(out).transposed)
    tiles, group, constants, options = _static(operands.problem, shape, config, transposed)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    rest = constants["BLOCK_SIZE_N_REST"]
    arguments = (
        descriptor(a, block_m, block_k),
        descriptor(b, block_k, block_n),
        descriptor(b, block_k, rest),
        destination(out, block_m, block_n),
        destination(out, block_m, rest),
        operands.bias,
        operands.scale_a,
        operands.scale_b,
        *shape,
        *destination_strides(out),
        group,
    )
    return (Launch(tma_kernel.composite_kernel, (tiles,), arguments, constants, options),)


@functools.lru_cache(maxsize=4096)
def _static(
    problem: Problem, shape: tuple[int, int, int], config: Config, transposed: tuple[bool, bool, bool]
) -> tuple[int, int, dict[str, Any], dict[str, Any]]:
    """Tiles, GROUP_SIZE_M, constexprs and compiler options."""
    m, n, _ = shape
    block_m, block_n, block_k = (config.integer(name) for name in TILE)
    tiles_m = -(-m // block_m)
    rest = config.integer("BLOCK_SIZE_N_REST")
    constants = {
        "PDL": bool(config.get("launch_pdl", False)),
        **dict(zip(TILE, (block_m, block_n, block_k), strict=True)),
        "BLOCK_SIZE_N_REST": rest,
        "WARP_SPECIALIZE": "warp_specialize" in config,
        **dict(zip(("A_TRANSPOSED", "B_TRANSPOSED", "C_TRANSPOSED"), transposed, strict=True)),
        **epilogue_constants(problem, block_k),
    }
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m)
    return tiles_m * -(-n // (block_n + rest)), group, constants, compiler_options(config)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := tma_space.supports_tiles(problem, device):
        return reason
    if problem.n <= 64 and not device.is_interpreter:
        return f"N is {problem.n}: tiles of two widths have 96 columns or more"
    fewest = -(-problem.m // 128) * -(-problem.n // 384)
    if fewest > _MOST_WAVES * device.sm_count and not device.is_interpreter:
        return f"{fewest} tiles of 128x384: the last of their waves hardly counts"
    return None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    refine = refinements.of_tiles(_OPTIONS, shared_bytes)
    return SearchSpace(NAME, problem, device, _axes(device), RULES, expand=_expand, options=_OPTIONS, refine=refine)


def _axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    if device.is_interpreter:
        tile: dict[str, tuple[Value, ...]] = {"BLOCK_SIZE_M": (32,), "BLOCK_SIZE_N": (64,), "BLOCK_SIZE_K": (32,)}
        return {**tile, "BLOCK_SIZE_N_REST": (32,), "num_stages": (1,), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (64, 128, 256),
        "BLOCK_SIZE_N": (64, 128, 256),
        "BLOCK_SIZE_N_REST": (32, 64, 128),
        "BLOCK_SIZE_K": (32, 64, 128),
        "GROUP_SIZE_M": tile_rules.GROUPS,
        "num_stages": (1,),
        "num_warps": (4, 8),
        **tile_rules.overlap(device),
    }


def default_config(problem: Problem, device: Device) -> Config:
    """Of the candidates the one with the fewest sums on the fullest multiprocessor, its pipeline the deepest."""

    def rank(config: Config) -> tuple[float, ...]:
        waves = -(-_tiles(config, problem) // device.sm_count)
        sums = config.integer("BLOCK_SIZE_M") * _width(config)
        return waves * sums, -sums, -config.integer("num_stages"), abs(config.integer("GROUP_SIZE_M", 1) - 8)

    tried = space(problem, device)
    return tried.best(rank) or tried.smallest()


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block: the pipeline, or the wider part of the tile on its way out if that takes more.

    As in `tma`, Hopper's sums that are stored as they are lie beside the pipeline.
    """
    pipeline = tma_space.pipeline_bytes(config, problem, device, parts_of_b=2)
    pipeline += refinements.specialized_bytes(config, device)
    rows, size = config.integer("BLOCK_SIZE_M"), dtype.ITEMSIZE[problem.out_dtype]
    if tma_space.beside_pipeline(config, problem, device):
        return pipeline + rows * _width(config) * size
    return max(pipeline, rows * config.integer("BLOCK_SIZE_N") * size)


def _width(config: Config) -> int:
    return config.integer("BLOCK_SIZE_N") + config.integer("BLOCK_SIZE_N_REST")


def _tiles(config: Config, problem: Problem) -> int:
    return -(-problem.m // config.integer("BLOCK_SIZE_M")) * -(-problem.n // _width(config))


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    if (config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_N_REST")) not in _WIDTHS:
        return
    if device.is_interpreter:
        yield config
        return
    deepest = tma_space.deepest(lambda tried: shared_bytes(tried, problem, device), config, device)
    deepest = min(deepest, tile_resources.tile_counts(config, problem)[2])
    for stages in range(max(min(2, deepest), deepest - 1), deepest + 1):
        yield config.replace(num_stages=stages)


def _registers(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    held = config.integer("BLOCK_SIZE_M") * _width(config) / (device.warp_size * config.integer("num_warps"))
    if device.is_interpreter:
        return None
    if held < 48:
        return f"a thread would hold {held:g} sums: half the warps do"
    return f"a thread would hold {held:g} sums, {_MOST_SUMS} fit" if held > _MOST_SUMS else None


def _waves(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter:
        return None
    waves = _tiles(config, problem) / device.sm_count
    if waves > _MOST_WAVES:
        return f"{waves:.0f} waves: the last one hardly counts"
    return None


def _padding(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter:
        return None
    if config.integer("BLOCK_SIZE_M") > tile_resources.next_power_of_two(max(64, problem.m)):
        return f"BLOCK_SIZE_M is {config['BLOCK_SIZE_M']}, M {problem.m}"
    return f"{_width(config)} columns for N {problem.n}" if _width(config) >= 2 * problem.n else None


def _group(config: Config, problem: Problem, device: Device) -> str | None:
    group = config.integer("GROUP_SIZE_M", 1)
    if group > 1 and (
        _tiles(config, problem) <= device.sm_count or config.integer("BLOCK_SIZE_M") * group >= 2 * problem.m
    ):
        return f"GROUP_SIZE_M of {group} for {_tiles(config, problem)} tiles"
    return None


RULES = (
    tile_rules.parameters(_axes, tile_rules.OPTIONAL, _OPTIONS),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/tma/composite_n.py"),
    tma_space.TENSOR_CORES,
    Rule(
        "registers",
        "compiled for sm_90: 192 sums a thread fit beside the descriptors' addresses",
        _registers,
        early=True,
    ),
    tile_rules.BEYOND_K,
    tile_rules.SHORT_ROWS,
    Rule("waves", "the shape itself", _waves, early=True),
    Rule("padding", "the shape itself", _padding, early=True),
    Rule("group", "one wave of tiles shares the L2 in any order", _group, early=True),
)

SOURCES = sources_of(tma_kernel, tma_tile, program, _static, descriptor, destination, placement)


def _estimate_us(config: Config, problem: Problem, device: Device) -> float:
    return calibration.of_tiles([(terms(config, problem, device), config)], problem, device)[0]


def terms(config: Config, problem: Problem, device: Device) -> Terms:
    """The cost model's terms, of loads by descriptors."""
    return cost.terms(config, problem, device, Loop(by_tma=True))


SPEC = gemm_spec(
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    precedence=lambda _problem, _device: -1,
    shared_bytes=shared_bytes,
    estimate_us=_estimate_us,
    sources=SOURCES,
)
