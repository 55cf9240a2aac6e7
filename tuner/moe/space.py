"""The search space of the packages' kernels, and the cost model's view of a layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import Rule, SearchSpace
from tuner.kernels.cost import model as cost
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.moe.inputs import BLOCKS_M
from tuner.moe.layer import layer_of
from tuner.problem import Problem

PARAMETERS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
_UNSAID = {"num_warps": 4, "num_stages": 3}
"""What Triton takes where a config of the packages does not say: CUDAOptions of Triton 3.6 to 3.9."""


def config_of(package: str, parameters: Mapping[str, Value]) -> Config:
    """Return a config of a package's kernel from what its files and functions hold.

    SPLIT_K is 1 whatever a file says, as it is in vLLM's launch, and other parameters (USE_TMA, AMD's) are left out.
    """
    return Config(
        package, **{name: value for name, value in (_UNSAID | dict(parameters)).items() if name in PARAMETERS}
    )


def space(problem: Problem, device: Device) -> SearchSpace:
    """Return every config for a problem on a device."""
    return SearchSpace(str(problem["package"]), problem, device, axes(problem, device), RULES, canonical)


def axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Return every parameter's values."""
    block_m = dict(problem.extras).get("block_m")
    rows: tuple[Value, ...] = BLOCKS_M if block_m is None else (int(block_m),)
    if device.is_interpreter:
        tile = {"BLOCK_SIZE_M": rows[:2], "BLOCK_SIZE_N": (32, 64), "BLOCK_SIZE_K": (32, 64)}
        return {**tile, "GROUP_SIZE_M": (1,), "num_warps": (4,), "num_stages": (3,)}
    return {
        "BLOCK_SIZE_M": rows,
        "BLOCK_SIZE_N": (32, 64, 128, 256),
        "BLOCK_SIZE_K": (32, 64, 128, 256),
        "GROUP_SIZE_M": (1, 8, 16, 32, 64),
        "num_warps": (2, 4, 8),
        "num_stages": (2, 3, 4, 5),
    }


def canonical(config: Config, problem: Problem, device: Device) -> Config:  # noqa: ARG001
    """Return the config with the BLOCK_SIZE_K that vLLM launches: none is larger than a block with one scale."""
    blocks = layer_of(problem).block_shape
    if blocks is None or problem["package"] != "vllm" or config.integer("BLOCK_SIZE_K") <= min(blocks):
        return config
    return config.replace(BLOCK_SIZE_K=min(blocks))


@functools.lru_cache(maxsize=1024)
def average(problem: Problem) -> tuple[Problem, int]:
    """Return the product of an expert with an average number of tokens, and how many experts have any."""
    layer = layer_of(problem)
    used = layer.experts * (1 - (1 - layer.top_k / layer.experts) ** problem.m)
    active = max(1, round(used))
    rows = max(1, math.ceil(problem.m * layer.top_k / active))
    return Problem(rows, problem.n, problem.k, dtype=problem.a_dtype, out_dtype=problem.out_dtype, layout="nt"), active


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """Return the estimated microseconds of all that one launch plays, if all experts have equally many tokens."""
    one, active = average(problem)
    parts = [one]
    if problem["gemm"] == "both":
        parts.append(one.with_shape(one.m, problem.k, problem.n // 2))
    us = sum(cost.tiled(config, each, device, by_tma=False, products=active) for each in parts)
    return us * int(problem["draws"])


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Return the shared memory of one block."""
    return tile_resources.shared_bytes(config, average(problem)[0], device)


def _of_average(its: Rule) -> Rule:
    def rejects(config: Config, problem: Problem, device: Device) -> str | None:
        return its.rejects(config, average(problem)[0], device)

    return Rule(its.name, its.source, rejects, its.fatal, its.early, its.reads)


@rule("block scales", "the kernels load one scale a step along K", fatal=True)
def _block_scales(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    blocks, block_k = layer_of(problem).block_shape, config.integer("BLOCK_SIZE_K")
    # vLLM's launch lowers a larger one, see `canonical`.
    if blocks is None or blocks[1] % block_k == 0 or (problem["package"] == "vllm" and block_k > min(blocks)):
        return None
    return f"BLOCK_SIZE_K is {block_k}, one scale is of {blocks[1]}"


@rule("sorted tokens", "tokens are sorted for these sizes alone", fatal=True, reads=("BLOCK_SIZE_M",))
def _sorted_tokens(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    block_m, only = config.integer("BLOCK_SIZE_M"), dict(problem.extras).get("block_m")
    allowed = BLOCKS_M if only is None else (only,)
    return None if block_m in allowed else f"BLOCK_SIZE_M is {block_m}: expected {', '.join(map(str, allowed))}"


@rule("group", "blocks of several experts share no weights", reads=("BLOCK_SIZE_M", "GROUP_SIZE_M"))
def _group(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows = average(problem)[0].m
    if config.integer("GROUP_SIZE_M") > 1 and rows <= config.integer("BLOCK_SIZE_M"):
        return f"{rows} tokens an expert are one block"
    return None


@rule("rows", "the rest of such a block is padding", reads=("BLOCK_SIZE_M",))
def _rows(config: Config, problem: Problem, device: Device) -> str | None:
    # Routing is uneven, so the fullest expert has more than the average. Hopper's own instructions begin at 64 rows: a
    # tenth of the rows that vLLM ships for it have blocks of 64 for fewer tokens.
    least = 64 if device.features.wgmma else 16
    covering = tile_resources.next_power_of_two(max(least, min(4 * average(problem)[0].m, problem.m)))
    block_m = config.integer("BLOCK_SIZE_M")
    pinned = "block_m" in dict(problem.extras)
    return None if pinned or block_m <= covering else f"BLOCK_SIZE_M is {block_m}, {covering} covers an expert's tokens"


RULES = (
    tile_rules.parameters(axes),
    _block_scales,
    _sorted_tokens,
    _of_average(tile_rules.dot_size),
    _of_average(tile_rules.registers),
    _of_average(tile_rules.idle_warps),
    _of_average(tile_rules.tensor_core_shape),
    _rows,
    _group,
    tile_rules.shared_memory(shared_bytes, "tuner/moe/space.py"),
)
