"""The search space of the packages' kernels, and the cost model's view of a layer."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import Rule, SearchSpace
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.tile import Loop, Sides, tile_of
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.moe.inputs import BLOCKS_M, EXCHANGED_M, blocks_m
from tuner.moe.layer import Layer, layer_of
from tuner.moe.package import load
from tuner.problem import Problem

PARAMETERS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
DOWN = "DOWN_"
"""The prefix of BLOCK_SIZE_N and BLOCK_SIZE_K of the down GEMM, where vLLM chooses other ones than for gate-up."""
_SIZES = ("BLOCK_SIZE_N", "BLOCK_SIZE_K")
_WARPS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps")
_WGMMA_ROWS, _EXCHANGING = 64, "sm_90"
_STEP_CYCLES = 1200.0
"""Cycles that gathered rows, their addresses and masks add to a step along K; see benchmarks/fit/experts.py."""
_TRITON_DEFAULTS = {"num_warps": 4, "num_stages": 3}
"""What Triton uses where a config of the packages has no value: CUDAOptions of Triton 3.6 to 3.9."""


def config_of(package: str, parameters: Mapping[str, Value]) -> Config:
    """Return a config of a package's kernel from the parameters of its files and functions.

    SPLIT_K is 1 whatever a file says, as it is in vLLM's launch, and other parameters (USE_TMA, AMD's) are left out.
    """
    return Config(
        package, **{name: value for name, value in (_TRITON_DEFAULTS | dict(parameters)).items() if name in PARAMETERS}
    )


def of_down(config: Config) -> Config:
    """Return the config that a launch of the down GEMM takes."""
    return config.replace(**{name: config[DOWN + name] for name in _SIZES}) if DOWN + _SIZES[0] in config else config


def space(problem: Problem, device: Device) -> SearchSpace:
    """Return every config for a problem on a device."""
    name, its_axes = str(problem["package"]), axes(problem, device)
    return SearchSpace(name, problem, device, its_axes, RULES, canonical, refine=_one_step)


def axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Return every parameter's values."""
    block_m = dict(problem.extras).get("block_m")
    rows: tuple[Value, ...] = BLOCKS_M if block_m is None else (int(block_m),)
    if block_m is None and EXCHANGED_M in blocks_m(problem) and device.arch == _EXCHANGING:
        rows = EXCHANGED_M, *rows
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


def _one_step(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield configs with the next larger or smaller value of one axis other than GROUP_SIZE_M, num_stages first."""
    its_axes = axes(problem, device)
    for name in ("num_stages", "num_warps", "BLOCK_SIZE_N", "BLOCK_SIZE_M", "BLOCK_SIZE_K"):
        values = sorted(its_axes[name])
        if config.get(name) in values:
            at = values.index(config[name])
            next_ones = values[at + 1 : at + 2] + values[max(0, at - 1) : at]
            yield from (config.replace(**{name: value}) for value in next_ones)


def canonical(config: Config, problem: Problem, device: Device) -> Config:  # noqa: ARG001
    """Return the config that vLLM launches: BLOCK_SIZE_K is at most a block with one scale, and no size is missing."""
    layer = layer_of(problem)
    blocks = layer.block_shape
    if problem["package"] == "vllm" and layer.group_size is not None:
        return config if all(name in config for name in _SIZES) else _completed(config, problem)
    if blocks is None or problem["package"] != "vllm" or config.integer("BLOCK_SIZE_K") <= min(blocks):
        return config
    return config.replace(BLOCK_SIZE_K=min(blocks))


def _completed(config: Config, problem: Problem) -> Config:
    """Return a config with the sizes that vLLM adds to a row or a default without them, where weights have groups."""
    first, down = load("vllm").block_sizes(layer_of(problem), problem.m, config)
    others = {} if down == first else {DOWN + name: value for name, value in down.items()}
    return config.replace(**first, **others)


@functools.lru_cache(maxsize=1024)
def average(problem: Problem) -> tuple[Problem, int]:
    """Return the product of an expert with an average number of tokens, and how many experts have any."""
    layer = layer_of(problem)
    used = layer.experts * (1 - (1 - layer.top_k / layer.experts) ** problem.m)
    active = max(1, round(used))
    rows = max(1, math.ceil(problem.m * layer.top_k / active))
    return Problem(rows, problem.n, problem.k, dtype=problem.a_dtype, out_dtype=problem.out_dtype, layout="nt"), active


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """Return the estimated microseconds of all that one launch runs, if all experts have equally many tokens."""
    one, active = average(problem)
    parts = [one]
    if problem["gemm"] == "both":
        parts.append(one.with_shape(one.m, problem.k, problem.n // 2))
    is_exchanged, us = exchanges(config, layer_of(problem), device.arch), 0.0
    loop = Loop(by_tma=False, exchanged=is_exchanged, products=active)
    for each in parts:
        its, product = as_computed(config, each, problem, device)
        us += cost.of_tile(tile_of(Sides.of(its), loop, product, device), its, _STEP_CYCLES).us
    return us * int(problem["draws"])


def exchanges(config: Config, layer: Layer, arch: str) -> bool:
    """Return whether the kernel multiplies weights by tokens instead: both packages' `enable_swap_ab`."""
    block_m, block_n, _ = tile_resources.tile(config)
    return block_m < _WGMMA_ROWS <= block_n and arch == _EXCHANGING and layer.dtype == "fp8_w8a8"


def as_computed(config: Config, one: Problem, problem: Problem, device: Device) -> tuple[Config, Problem]:
    """Return a config and the product of one expert as `tl.dot` has them: with rows and columns exchanged, or not."""
    if not exchanges(config, layer_of(problem), device.arch):
        return config, one
    block_m, block_n, _ = tile_resources.tile(config)
    return config.replace(BLOCK_SIZE_M=block_n, BLOCK_SIZE_N=block_m), one.with_shape(one.n, one.m, one.k)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Return the shared memory of one block.

    Weights with groups are widened in registers and multiplied from shared memory. As compiled for sm_90, int8 waits
    there for that in one buffer less than there are stages, and int4 does not.
    """
    one, layer = average(problem)[0], layer_of(problem)
    if layer.group_size is None:
        return tile_resources.shared_bytes(*as_computed(config, one, problem, device), device)
    block_m, block_n, block_k = tile_resources.tile(config)
    waiting = 0 if layer.weight_bits == 4 else max(1, config.integer("num_stages") - 1)
    return 2 * block_m * block_k * tile_resources.buffers(config, one, device) + (waiting + 2) * block_n * block_k


def _of_average(its: Rule) -> Rule:
    def rejects(config: Config, problem: Problem, device: Device) -> str | None:
        return its.rejects(*as_computed(config, average(problem)[0], problem, device), device)

    return Rule(its.name, its.source, rejects, its.fatal, its.early, its.reads)


_idle = _of_average(tile_rules.idle_warps)


@rule("block scales", "the kernels load one scale a step along K", fatal=True)
def _block_scales(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    blocks, block_k = layer_of(problem).block_shape, config.integer("BLOCK_SIZE_K")
    # vLLM's launch lowers a larger one, see `canonical`.
    if blocks is None or blocks[1] % block_k == 0 or (problem["package"] == "vllm" and block_k > min(blocks)):
        return None
    return f"BLOCK_SIZE_K is {block_k}, one scale is of {blocks[1]}"


@rule("whole steps", "the kernel of groups does not mask weights beyond K", fatal=True, reads=("BLOCK_SIZE_K",))
def _whole_steps(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if layer_of(problem).group_size is None:
        return None
    k, block_k = problem.k, config.integer("BLOCK_SIZE_K")
    if problem["gemm"] == "both":
        k = math.gcd(k, problem.n // 2)
    return f"BLOCK_SIZE_K is {block_k}, K is {k}" if k % block_k else None


@rule("weights", "compiled for sm_90: 256 int4 weights a thread spilled, 128 hardly", reads=(*_SIZES, "num_warps"))
def _weights(config: Config, problem: Problem, device: Device) -> str | None:
    if layer_of(problem).group_size is None or device.is_interpreter:
        return None
    block_n, block_k = (config.integer(name) for name in _SIZES)
    weights = block_n * block_k // (device.warp_size * config.integer("num_warps"))
    return f"a thread would widen {weights} weights, 128 fit" if weights > 128 else None


@rule("exchanged rows", "vLLM ships blocks of 8 tokens where it multiplies weights by them", reads=(*_WARPS[:2],))
def _exchanged_rows(config: Config, problem: Problem, device: Device) -> str | None:
    layer, block_m = layer_of(problem), config.integer("BLOCK_SIZE_M")
    if block_m != EXCHANGED_M or layer.group_size is not None or exchanges(config, layer, device.arch):
        return None
    return f"BLOCK_SIZE_M is {block_m}, the kernel multiplies 16 rows"


@rule("idle warps", tile_rules.idle_warps.source, reads=_WARPS)
def _idle_warps(config: Config, problem: Problem, device: Device) -> str | None:
    return None if config.integer("BLOCK_SIZE_M") == EXCHANGED_M else _idle.rejects(config, problem, device)


@rule("scaled sums", "compiled for sm_90: a step's products lie beside the sums until they are scaled", reads=_WARPS)
def _scaled_sums(config: Config, problem: Problem, device: Device) -> str | None:
    if layer_of(problem).block_shape is None or device.is_interpreter:
        return None
    registers = 2 * tile_resources.accumulator_registers(config, device)
    return f"a thread would hold {registers:g} sums and products, 128 fit" if registers > 128 else None


@rule("sorted tokens", "tokens are sorted for these sizes alone", fatal=True, reads=("BLOCK_SIZE_M",))
def _sorted_tokens(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    block_m, only = config.integer("BLOCK_SIZE_M"), dict(problem.extras).get("block_m")
    allowed = blocks_m(problem) if only is None else (only,)
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
    tile_rules.parameters(axes, own={DOWN + name: lambda *_: None for name in _SIZES}),
    _block_scales,
    _whole_steps,
    _sorted_tokens,
    _of_average(tile_rules.dot_size),
    _of_average(tile_rules.registers),
    _idle_warps,
    _of_average(tile_rules.tensor_core_shape),
    _exchanged_rows,
    _scaled_sums,
    _weights,
    _rows,
    _group,
    tile_rules.shared_memory(shared_bytes, "tuner/moe/space.py"),
)
