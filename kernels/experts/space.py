"""Which problems the kernels of `fused_experts` serve, and their search spaces, made from one product's."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from tuner.errors import ProblemError
from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernel.space import Rule, SearchSpace
from tuner.kernels.batched.space import config_of, of_many, share
from tuner.kernels.cost import model as cost
from tuner.kernels.experts.operands import GROUPS, TOP_K, experts_of, top_k_of
from tuner.kernels.gemm.pointer import default as pointer_default
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.grouped.space import MOST_GROUPS
from tuner.kernels.space import tile_resources, tile_rules
from tuner.launch.launch import TILE
from tuner.problem import Problem, dtype
from tuner.problem.gemm_fields import MAX_SIZE

POINTER = "experts_pointer"
TMA = "experts_tma"
DTYPES = ("float32", "float16", "bfloat16")
_MOST_SLOTS = 2**31 - 1
_FEWEST_COLUMNS = 32
"""Half of a tile's columns are gate's, and `tl.dot` takes 16 at least."""
_ROUTE_BYTES = 4096
"""The most shared memory of the launches around the products."""


def supports_pointer(problem: Problem, device: Device) -> str | None:  # noqa: PLR0911  one return for each reason
    """Why `experts_pointer` cannot serve a problem on a device, or None."""
    if problem.a_dtype not in DTYPES:
        return f"no {problem.a_dtype}: it takes {', '.join(DTYPES)}"
    if not problem.a_dtype == problem.b_dtype == problem.out_dtype:
        return f"no {problem.dtype_label}: tokens, weights and output are of one dtype"
    if problem.layout != "nt":
        return f"no layout {problem.layout}: expected nt, weights stored [experts, outputs, inputs]"
    if problem.has_bias:
        return f"no epilogue {problem.epilogue}: experts have no bias"
    try:
        experts, top_k = experts_of(problem), top_k_of(problem)
    except ProblemError as e:
        return str(e)
    if unknown := set(dict(problem.extras)) - {GROUPS, TOP_K}:
        return f"no extras {', '.join(sorted(unknown))}: leave them out"
    if top_k > experts or experts > MOST_GROUPS:
        return f"top_k is {top_k} of {experts} experts: expected at most as many, and {MOST_GROUPS} experts"
    if 2 * problem.n > MAX_SIZE:
        return f"N is {problem.n}: expected at most {MAX_SIZE // 2}, as gate and up have twice as many columns"
    if problem.m * top_k > _MOST_SLOTS:
        return f"{problem.m} tokens with {top_k} experts each: expected at most {_MOST_SLOTS} together"
    return pointer_space.supports_operands(_products(problem)[0], device)


def supports_tma(problem: Problem, device: Device) -> str | None:
    """Why `experts_tma` cannot serve a problem on a device, or None."""
    if reason := supports_pointer(problem, device):
        return reason
    if problem.a_dtype == "float32":
        return "no float32: experts_pointer has it"
    reasons = (tma_space.supports_tiles(product, device) for product in _products(problem))
    return next((reason for reason in reasons if reason), None)


def _used(problem: Problem) -> int:
    """How many experts have rows if tokens are sent to as many as they can be."""
    return min(experts_of(problem), problem.m * top_k_of(problem))


@functools.lru_cache(maxsize=1024)
def _products(problem: Problem) -> tuple[Problem, Problem]:
    """Gate and up of an expert, and its down; with more rows than most have if tokens choose at random."""
    average = problem.m * top_k_of(problem) / _used(problem)
    rows = math.ceil(average + 2 * math.sqrt(average)) if _used(problem) < problem.m * top_k_of(problem) else 1
    aligned = None if problem.aligned else False
    kind: dict[str, Any] = {"dtype": problem.a_dtype, "precision": problem.precision, "aligned": aligned}
    first, second = (rows, 2 * problem.n, problem.k), (rows, problem.k, problem.n)
    return Problem(*first, layout="nt", **kind), Problem(*second, layout="nt", **kind)


def pointer(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `experts_pointer`: that of `pointer` for gate and up of one expert."""
    single = pointer_space.space(_products(problem)[0], device)
    if device.is_interpreter:
        single = single.narrowed(BLOCK_SIZE_M=(16, 32), BLOCK_SIZE_N=(32,), BLOCK_SIZE_K=(32,))
    return _of_experts(POINTER, single, problem, _POINTER_MEMORY)


def tma(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `experts_tma`: that of `tma` for gate and up of one expert."""
    return _of_experts(TMA, tma_space.space(_products(problem)[0], device), problem, _TMA_MEMORY)


def _of_experts(kernel: str, single: SearchSpace, problem: Problem, shared_memory: Rule) -> SearchSpace:
    """The space of one product, on its share of the device."""
    made = of_many(single, kernel, _used(problem))
    columns = tuple(value for value in made.axes["BLOCK_SIZE_N"] if isinstance(value, int) and value >= _FEWEST_COLUMNS)
    axes = {**made.axes, "BLOCK_SIZE_N": columns}
    own = {each.name: each for each in (tile_rules.parameters(lambda *_: axes), shared_memory)}
    others = (each for each in made.rules if each.name not in (*own, tile_rules.waves.name))
    return dataclasses.replace(made, axes=axes, rules=(*own.values(), *others))


def pointer_shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block of the product of `experts_pointer` that takes more, in bytes: an upper bound.

    Besides `tile_resources.shared_bytes`: on Blackwell each sum of gate and up has barriers of its own; down's rows go
    to where their slots lie in another order of threads, through shared memory; and for tf32x3 on wgmma and tcgen05, A
    has a stage less and B's lower bits a tile of their own. Source: tests/compile/test_batched.py.
    """
    block_m, block_n, block_k = tile_resources.tile(config)
    size, taken = dtype.ITEMSIZE[problem.a_dtype], tile_resources.shared_bytes(config, problem, device)
    if device.features.tcgen05 and tile_resources.asynchronous(config, problem, device):
        taken += 16
    if problem.precision == "tf32x3" and tile_resources.asynchronous(config, problem, device):
        taken += max(0, block_n - block_m) * block_k * size
    return max(taken, block_m * block_n * size, _ROUTE_BYTES)


def tma_shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block of the product of `experts_tma` that takes more, in bytes: an upper bound.

    Gate's weights and up's are awaited one after the other, each with barriers of its own.
    Source: exact for gate and up on sm_90 (tests/compile/test_batched.py).
    """
    block_m, block_n, _ = tile_resources.tile(config)
    buffers, pipeline = (
        tile_resources.buffers(config, problem, device),
        tma_space.pipeline_bytes(config, problem, device),
    )
    if buffers > 1:
        pipeline += tma_space.barrier_bytes(buffers) + (16 if device.features.tcgen05 else 0)
    return max(pipeline, block_m * block_n * dtype.ITEMSIZE[problem.out_dtype], _ROUTE_BYTES)


_POINTER_MEMORY = tile_rules.shared_memory(pointer_shared_bytes, "kernels/experts/space.py")
_TMA_MEMORY = tile_rules.shared_memory(tma_shared_bytes, "kernels/experts/space.py")


def default_pointer(problem: Problem, device: Device) -> Config:
    """The `pointer` kernel's default for gate and up of one expert."""
    single = pointer_default.default_config(_products(problem)[0], share(device, _used(problem)))
    wide = single.replace(BLOCK_SIZE_N=max(_FEWEST_COLUMNS, single.integer("BLOCK_SIZE_N")))
    return config_of(wide, pointer(problem, device))


def default_tma(problem: Problem, device: Device) -> Config:
    """The candidate with the least estimated time; ties go to groups of 8 rows."""
    estimated = functools.partial(estimate_us, problem=problem, device=device)
    smallest = Config(TMA, **dict.fromkeys(TILE, 64), GROUP_SIZE_M=1, num_stages=1, num_warps=4)
    found = tma(problem, device).best(estimated, ties=lambda config: abs(config.integer("GROUP_SIZE_M", 1) - 8))
    return found or smallest


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The estimated time in microseconds of both products of all experts."""
    by_tma, used = config.kernel == TMA, _used(problem)
    return sum(cost.tiled(config, each, device, by_tma=by_tma, products=used) for each in _products(problem))
