"""The `block_scaled` kernel: fp8 operands with scales of 1x128 and 128x128 blocks (`scaling` "block").

It loads through pointers or descriptors and splits sums as `split_k` does. For few rows of A it exchanges the operands
as `swap_ab` does (SWAP_AB), so that the weight's columns fill the tensor cores' 64 rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import SCALE_GROUP, Operands, exchanged, placement
from tuner.kernels.cost import calibration
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.model import Candidates
from tuner.kernels.cost.terms import SCALING_CYCLES, Terms
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.kernels.gemm import launches, splitting, sums
from tuner.kernels.gemm.block_scaled import jit as block_scaled_kernel
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.small_m import swap_ab
from tuner.kernels.gemm.small_m.swap_ab import exchanged_tile
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.gemm.tma import tile as tma_tile
from tuner.kernels.gemm.tma.spec import descriptor
from tuner.kernels.space import refinements, tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem

NAME = "block_scaled"
VERSION = 2
_OPTIONS = (refinements.WAVES_PER_EU,)
_MOST_SWAPPED_ROWS = 256


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    swapped = bool(config["SWAP_AB"])
    given = operands.exchanged() if swapped else operands
    a, b, out = given.a, given.b, given.out
    viewed = exchanged_tile(config) if swapped else config
    view = launches.view_of(given, exchanged=swapped)
    grid, group, constants, options = _parts(view, viewed)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    strides: tuple[int | None, ...] = view.strides
    matrices: tuple[Any, ...] = (a, b, out)
    if splitting.by_tma(config):
        strides = (None,) * 6
        blocks = ((block_m, block_k), (block_k, block_n), (block_m, block_n))
        matrices = tuple(descriptor(matrix, *block) for matrix, block in zip(matrices, blocks, strict=True))
    assert given.scale_a is not None
    assert given.scale_b is not None
    scale_strides = (*given.scale_a.stride(), *given.scale_b.stride())
    memory = launches.split_memory(grid, constants, a)
    tensors = (*matrices, given.bias, given.scale_a, given.scale_b, *memory)
    arguments = (*tensors, *view.shape, *strides, *scale_strides, group)
    return (Launch(block_scaled_kernel.matmul_kernel, grid, arguments, constants, options),)


_parts = launches.parts_of(block_scaled_kernel.matmul_kernel)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if problem.scaling != "block":
        return f"scaling is {problem.scaling!r}: it takes block scales"
    return pointer_space.supports_operands(problem, device)


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    axes, refine = _axes(problem, device), refinements.more_waves
    return SearchSpace(NAME, problem, device, axes, RULES, _canonical, _expand, _OPTIONS, refine)


def _axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values, except that `splitting.expand` finds SPLIT_K and num_stages for each tile."""
    ways: tuple[Value, ...] = splitting.loads(problem.unscaled(), device)
    sides: tuple[Value, ...] = (False, True) if problem.m <= _MOST_SWAPPED_ROWS else (False,)
    if device.is_interpreter:
        tile: dict[str, tuple[Value, ...]] = {"BLOCK_SIZE_M": (32,), "BLOCK_SIZE_N": (64,)}
        splits: dict[str, tuple[Value, ...]] = {"GROUP_SIZE_M": (1,), "SPLIT_K": (1, 2), "num_warps": (4,)}
        return {**tile, "BLOCK_SIZE_K": (SCALE_GROUP,), "LOADS": ways, "SWAP_AB": sides, **splits, "num_stages": (1,)}
    return {
        "BLOCK_SIZE_M": (16, 32, 64, 128),
        "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
        "BLOCK_SIZE_K": (SCALE_GROUP,),
        "GROUP_SIZE_M": tile_rules.GROUPS,
        "LOADS": ways,
        "SWAP_AB": sides,
        "SPLIT_K": (1,),
        "num_stages": (1,),
        "num_warps": (4, 8),
        **tile_rules.overlap(device),
        **splitting.amd_axes(device),
    }


def terms(config: Config, problem: Problem, device: Device) -> Terms:
    """The cost model's terms; every step's products are scaled before the next step is multiplied."""
    inner, computed = _view(config, problem)
    return cost.of_tile(tile_of(Sides.of(inner), _loop(config), computed, device), inner, SCALING_CYCLES)


def _loop(config: Config) -> Loop:
    return Loop(splitting.by_tma(config), exchanged=bool(config["SWAP_AB"]))


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, calibrated."""
    return estimates_us((config,), problem, device)[config]


def estimates_us(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    """The same of many configs."""
    return _corrected({config: terms(config, problem, device) for config in configs}, problem, device)


def _corrected(models: Mapping[Config, Terms], problem: Problem, device: Device) -> dict[Config, float]:
    """The estimates, corrected by the calibration: exchanged operands have forests of their own."""
    found = dict[Config, float]()
    for swapped in (False, True):
        some = {config: one for config, one in models.items() if bool(config["SWAP_AB"]) is swapped}
        estimated = [(one, _view(config, problem)[0]) for config, one in some.items()]
        computed = exchanged(problem) if swapped else problem
        found |= dict(zip(some, calibration.of_tiles(estimated, computed, device, exchanged=swapped), strict=True))
    return found


def default_config(problem: Problem, device: Device) -> Config:
    """The candidate with the least estimated time."""

    def ties(config: Config) -> tuple[float, ...]:
        return *splitting.tie_break(*_view(config, problem), device), abs(config.integer("GROUP_SIZE_M", 1) - 8)

    tried = space(problem, device)
    estimated = functools.partial(estimate_us, problem=problem, device=device)
    if not calibration.applies(problem, device):
        tried = tried.narrowed(LOADS=splitting.loads(problem.unscaled(), device)[-1:])
    found = tried.best(estimated, ties=ties, among=_corrected(_shortlist(tried, problem, device), problem, device))
    smallest = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": SCALE_GROUP}
    return found or Config(NAME, **smallest, LOADS="pointer", SWAP_AB=False, SPLIT_K=1, num_stages=1, num_warps=4)


def _shortlist(tried: SearchSpace, problem: Problem, device: Device) -> dict[Config, Terms]:
    """The configs whose estimate by the cost model is near the least one, with the model's terms."""

    def variants(inner: Config, computed: Problem, splits: int) -> Iterator[dict[str, Value]]:
        for stages in splitting.depths_of(inner, splits, computed, device):
            yield {"SPLIT_K": splits, "num_stages": stages}

    def tiles() -> Iterator[Candidates]:
        for point in dict.fromkeys(map(tried.canonicalize, tried.points())):
            inner, computed = _view(point, problem)
            tile = tile_of(Sides.of(inner), _loop(point), computed, device)
            splits = splitting.splits_of(inner, computed, device)
            yield Candidates(point, tile, splits, functools.partial(variants, inner, computed), SCALING_CYCLES)

    return cost.near_least(tiles())


def _view(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """The config and the problem as the device computes them."""
    return swap_ab.view(config, problem) if config["SWAP_AB"] else (config, problem)


def _exchanged_back(config: Config) -> Config:
    # A second exchange restores the config.
    return exchanged_tile(config) if config["SWAP_AB"] else config


def _canonical(config: Config, problem: Problem, device: Device) -> Config:
    return _exchanged_back(pointer_space.canonical(*_view(config, problem), device))


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    return (_exchanged_back(split) for split in splitting.expand(*_view(config, problem), device))


@rule("one block", "the kernel's own", fatal=True, early=True)
def _one_block(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    block_k = config.integer("BLOCK_SIZE_K")
    return f"BLOCK_SIZE_K is {block_k}, a scale is for {SCALE_GROUP}" if block_k != SCALE_GROUP else None


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """An upper bound on a block's shared memory: the pipeline, and one side's scales, which threads exchange.

    Source: the kernels that tests/compile compiles.
    """
    return splitting.shared_bytes(*_view(config, problem), device) + 4 * max(tile_resources.tile(config)[:2])


@rule("registers", "255 a thread (CUDA C++ Programming Guide)", early=True)
def _registers(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    held, limit = tile_resources.accumulator_registers(config, device), 128 if device.vendor == "amd" else 64
    if device.is_interpreter or held <= limit:
        return None
    return f"a thread would hold {held:g} sums and as many products, {limit} of each fit"


RULES = (
    tile_rules.parameters(_axes, _OPTIONS),
    _one_block,
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/block_scaled/spec.py"),
    *(
        splitting.on_view(_view, rule, ("SWAP_AB",))
        for rule in (
            *splitting.RULES,
            _registers,
            *tile_rules.INSTRUCTIONS,
            tile_rules.padding,
            tile_rules.oblong,
            tile_rules.group,
        )
    ),
)

SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    estimates_us=estimates_us,
    sources=sources_of(block_scaled_kernel, tma_tile.load.fn, tma_tile.store.fn, program, descriptor, placement),
    runtime_parameters=("GROUP_SIZE_M", "SPLIT_K"),
    order=sums.of_tile,
)
