"""The `split_sum` kernel: programs share a tile's sum as in `split_k`, and a second launch adds the parts.

Where the last program of a tile adds them, it reads all parts one after the other, while others idle: with many parts
of large tiles that takes longer than the products. A second launch waits for the first, but reads on all
multiprocessors. Results are deterministic: parts are added in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import VECTOR_BYTES, Operands, placement
from tuner.kernels.base.workspace import MOST_BYTES
from tuner.kernels.cost import model as cost
from tuner.kernels.cost.tile import Loop
from tuner.kernels.gemm.small_m import split_sum_jit
from tuner.kernels.gemm.spec import MATMUL, gemm_spec
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.gemm.tma import spec as tma
from tuner.kernels.gemm.tma.spec import tma_launch, written_by_tma
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.launch.launch import TILE, Launch
from tuner.problem import Problem

NAME = "split_sum"
VERSION = 2
_SHORTEST_K, _NARROWEST = 2048, 64
_SUMS = 256
"""Sums of a program of the second launch. They depend on nothing but the config, as all that decides a binary."""
_TOGETHER = 8
"""Parts that it loads at a time."""
_SUM_US, _ROUND_US = 0.3, 0.35
"""A second launch that adds nothing, beyond what it overlaps with the first one's end, and each round of its loads."""
_SUM_BYTES_PER_US = 8.0e6
"""Parts that the first launch writes and the second one reads in the L2. All three were chosen by products on an H200
(docs/decisions.md, 177 and 178)."""


def program(operands: Operands, config: Config) -> tuple[Launch, Launch]:
    """The launch that multiplies, and the one that adds."""
    split = tma_launch(operands, config, apart=True)
    partials = split.arguments[split.function.arg_names.index("partials_ptr")]
    a, b, out = (placement(matrix) for matrix in (operands.a, operands.b, operands.out))
    block_m, block_n, _ = tile_resources.tile(config)
    tiles, splits = split.grid
    rows = max(1, min(block_m, _SUMS // block_n))
    unit = VECTOR_BYTES // operands.a.element_size()
    constants = {
        "BLOCK_SIZE_M": block_m,
        "BLOCK_SIZE_N": block_n,
        "ROWS": rows,
        "A_UNIT": unit if a.transposed else 1,
        "B_UNIT": (1 if b.transposed else unit) if written_by_tma(operands.out) else 0,
        "C_TRANSPOSED": out.transposed,
        "C_VECTOR": out.vector,
        **{name: split.constants[name] for name in ("SCALING", "ACTIVATION", "PDL")},
        "TOGETHER": _TOGETHER,
    }
    vectors = (operands.bias, operands.scale_a, operands.scale_b)
    sizes = (splits, *operands.out.shape, *operands.out.stride())
    options = {**split.options, "num_warps": 4, "num_stages": 1}
    grid = (tiles * (block_m // rows),)
    return split, Launch(split_sum_jit.sum_kernel, grid, (partials, operands.out, *vectors, *sizes), constants, options)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := tma_space.supports_tiles(problem, device):
        return reason
    tiles = -(-problem.m // 128) * -(-problem.n // 128)
    if 2 * tiles > device.sm_count and not device.is_interpreter:
        return f"{tiles} tiles of 128x128 fill more than half of {device.sm_count} multiprocessors unsplit"
    if 8 * problem.m * problem.n > MOST_BYTES:
        return f"{problem.m}x{problem.n} sums twice are more than {MOST_BYTES} B, which are kept"
    if problem.n <= _NARROWEST // 2 and not device.is_interpreter:
        return f"N is {problem.n}: a tile has {_NARROWEST} columns, more than half would be padding"
    if problem.k < _SHORTEST_K and not device.is_interpreter:
        return f"K is {problem.k}: a second launch pays from {_SHORTEST_K} on"
    return None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem, device), RULES, expand=expand)


def _axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:  # noqa: ARG001
    """Every parameter's values, except that `expand` finds SPLIT_K and num_stages for each tile."""
    if device.is_interpreter:
        return {**dict.fromkeys(TILE, (32,)), "SPLIT_K": (2, 3), "num_stages": (1,), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (64, 128),
        "BLOCK_SIZE_N": (64, 128, 256),
        "BLOCK_SIZE_K": (32, 64, 128),
        "SPLIT_K": (2,),
        "num_stages": (1,),
        "num_warps": (4, 8),
        **tile_rules.overlap(device),
    }


def expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with the splits that fill the device once or twice, and every pipeline worth trying."""
    if device.is_interpreter:
        yield config
        return
    stage = tma_space.pipeline_bytes(config.replace(num_stages=1), problem, device)
    for splits in splits_of(config, problem, device):
        each = -(-problem.k // (config.integer("BLOCK_SIZE_K") * splits))
        for stages in sorted(tma_space.depths(stage + 16, 1024, each, device)):
            yield config.replace(SPLIT_K=splits, num_stages=stages)


def splits_of(config: Config, problem: Problem, device: Device) -> list[int]:
    """Every SPLIT_K worth trying for a tile: programs fill the device once, or nearly, or twice where two reside."""
    tiles_m, tiles_n, steps = tile_resources.tile_counts(config, problem)
    filled = device.sm_count // (tiles_m * tiles_n)
    most = {filled - 1, filled, 2 * device.sm_count // (tiles_m * tiles_n)}
    # As many as have the same number of steps, two at least, the last one perhaps fewer.
    each = {max(2, -(-steps // splits)) for splits in most if splits > 1}
    return sorted({-(-steps // length) for length in each} - {1})


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of the launch that multiplies, an upper bound: its pipeline, then sums on their way out."""
    block_m, block_n, _ = tile_resources.tile(config)
    return max(tma_space.shared_bytes(config, problem, device), 4 * block_m * block_n)


@rule("few parts", "a part of no steps would be summed, too", fatal=True)
def _few_parts(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    splits, steps = config.integer("SPLIT_K", 1), tile_resources.tile_counts(config, problem)[2]
    return f"SPLIT_K is {splits} of {steps} steps: expected 2 to {steps}" if not 2 <= splits <= steps else None


@rule("workspace", "kernels/base/workspace.py", fatal=True)
def _workspace(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    needed = _parts_bytes(config, problem)
    return f"{needed} B of parts, at most {MOST_BYTES} are kept" if needed > MOST_BYTES else None


RULES = (
    tile_rules.parameters(_axes),
    _few_parts,
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/small_m/split_sum.py"),
    _workspace,
    *tile_rules.OF_DOTS,
)


def _estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """The cost model's estimate, where a second launch adds the parts."""
    found = cost.terms(config, problem, device, Loop(by_tma=True))
    rounds = -(-config.integer("SPLIT_K", 1) // _TOGETHER)
    added = rounds * _ROUND_US + 2 * _parts_bytes(config, problem) / _SUM_BYTES_PER_US
    return found.us - found.splits + _SUM_US + added


def _parts_bytes(config: Config, problem: Problem) -> int:
    tiles_m, tiles_n, _ = tile_resources.tile_counts(config, problem)
    block_m, block_n, _ = tile_resources.tile(config)
    return 4 * tiles_m * tiles_n * block_m * block_n * config.integer("SPLIT_K", 1)


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    shared_bytes=shared_bytes,
    estimate_us=_estimate_us,
    sources=(*tma.SOURCES, split_sum_jit, program),
    runtime_parameters=("SPLIT_K",),
)
