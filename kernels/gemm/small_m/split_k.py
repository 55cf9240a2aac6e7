"""The `split_k` kernel: several programs share a tile's sum, and the last to finish adds the parts in order.

It is for outputs of few tiles and a long K. Results are deterministic, whichever program finishes last.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import Operands
from tuner.kernels.base.workspace import MOST_BYTES
from tuner.kernels.cost import calibration
from tuner.kernels.gemm import calibrated, splitting, sums
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.pointer import spec as pointer
from tuner.kernels.gemm.spec import MATMUL, gemm_spec
from tuner.kernels.gemm.tma import spec as tma
from tuner.kernels.space import refinements, tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem

NAME = "split_k"
VERSION = 2
_OPTIONS = (refinements.WAVES_PER_EU, refinements.PDL_TRIGGER, refinements.PREFETCH_KIB)
_SHORTEST_K = 256


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    launch = tma.tma_launch if splitting.by_tma(config) else pointer.pointer_launch
    return (launch(operands, config),)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := pointer_space.supports(problem, device):
        return reason
    parts = sums.family_parts(problem)
    if problem.invariant and parts == 1:
        return "this family's sums are not split"
    smallest = -(-problem.m // 128) * -(-problem.n // 256)
    if smallest > 2 * device.sm_count and not device.is_interpreter:
        return f"{smallest} tiles of 128x256 fill {device.sm_count} multiprocessors unsplit"
    if max(2, parts) * 4 * problem.m * problem.n > MOST_BYTES:
        return f"{problem.m}x{problem.n} sums {max(2, parts)} times are more than {MOST_BYTES} B, which are kept"
    return None if problem.k >= _SHORTEST_K else f"K is {problem.k}: it splits sums of {_SHORTEST_K} and more"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    axes, refine = _axes(problem, device), refinements.of_splits
    return SearchSpace(NAME, problem, device, axes, RULES, expand=splitting.expand, options=_OPTIONS, refine=refine)


def _axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values, except that `splitting.expand` finds SPLIT_K and num_stages for each tile."""
    ways: tuple[Value, ...] = splitting.loads(problem, device)
    if device.is_interpreter:
        tile: dict[str, tuple[Value, ...]] = dict.fromkeys(TILE, (32,))
        if problem.invariant:
            tile["BLOCK_SIZE_K"] = (32, 64)  # of which its family's order leaves one
        splits = (sums.family_parts(problem),) if problem.invariant else (2, 3)
        return {**tile, "LOADS": ways, "SPLIT_K": splits, "num_stages": (1,), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (16, 32, 64, 128),
        "BLOCK_SIZE_N": (16, 32, 64, 128, 256),
        "BLOCK_SIZE_K": (32, 64, 128, 256),
        "LOADS": ways,
        "SPLIT_K": (sums.family_parts(problem),),
        "num_stages": (1,),
        "num_warps": (1, 2, 4, 8),
        **tile_rules.overlap(device),
        **splitting.amd_axes(device),
    }


def default_config(problem: Problem, device: Device) -> Config:
    """The candidate with the least estimated time; where no calibration speaks, of those that mostly win elsewhere."""
    tried, axes = space(problem, device), splitting.formula_axes(problem, device)
    ties = functools.partial(splitting.tie_break, problem=problem, device=device)
    if calibration.applies(problem, device):
        axes = {"BLOCK_SIZE_K": axes["BLOCK_SIZE_K"], "BLOCK_SIZE_M": (64, 128), "num_warps": (4, 8)}

    def variants(point: Config, splits: int) -> Iterator[dict[str, Value]]:
        depths = splitting.depths_of(point, splits, problem, device)
        return ({"SPLIT_K": splits, "num_stages": stages} for stages in depths)

    return calibrated.best(tried.narrowed(**axes), lambda point: splits_of(point, problem, device), variants, ties)


def splits_of(config: Config, problem: Problem, device: Device) -> list[int]:
    """Every SPLIT_K worth trying for a tile: one is what the other kernels do."""
    return [splits for splits in splitting.splits_of(config, problem, device) if splits > 1]


@rule("few warps", "the shape itself")
def _few_warps(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    block_m, block_n, _ = tile_resources.tile(config)
    warps = config.integer("num_warps")
    if warps >= 4 or block_m * block_n <= 1024 or device.is_interpreter:
        return None
    return f"{warps} warps for {block_m}x{block_n} sums: 4 add the parts of all splits faster"


@rule("unsplit", "the kernel's own")
def _unsplit(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    return "SPLIT_K is 1: that is what the other kernels do" if config.integer("SPLIT_K", 1) == 1 else None


RULES = (
    tile_rules.parameters(_axes, _OPTIONS),
    _unsplit,
    _few_warps,
    *splitting.RULES,
    *tile_rules.OF_DOTS,
    tile_rules.oblong,
)


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=splitting.shared_bytes,
    estimate_us=calibrated.estimate_us,
    estimates_us=calibrated.estimates_us,
    sources=(*pointer.SOURCES, *tma.SOURCES),
    runtime_parameters=("SPLIT_K",),
    order=sums.of_tile,
)
