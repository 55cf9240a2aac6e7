"""Which problems the pointer kernels of `gated_linear` serve, and their search spaces, made from one product's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gated.operands import product
from tuner.kernels.gemm import splitting
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.small_m import gemv as product_gemv
from tuner.kernels.space import linear_layers, tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype
from tuner.problem.gemm_fields import MAX_SIZE

POINTER, GEMV = "gated_pointer", "gated_gemv"
MOST_SWAPPED_ROWS = 256
MOST_ROWS = 2
"""The most rows of `gated_gemv`: of more `gated_pointer` was faster."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why no kernel of the op can serve a problem on a device, or None."""
    if reason := linear_layers.obstacle(problem):
        return reason
    if problem.has_bias:
        return f"no epilogue {problem.epilogue}: gated layers have no bias"
    if 2 * problem.n > MAX_SIZE:
        return f"N is {problem.n}: expected at most {MAX_SIZE // 2}, as gate and up have twice as many columns"
    return pointer_space.supports_operands(product(problem), device)


def as_computed(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """A config and both products as the device computes them, which with SWAP_AB is the transposed output."""
    both = product(problem)
    if not config.get("SWAP_AB", False):
        return config, both
    swapped = config.replace(BLOCK_SIZE_M=config["BLOCK_SIZE_N"], BLOCK_SIZE_N=config["BLOCK_SIZE_M"])
    return swapped, exchanged(both)


def pointer(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `gated_pointer`."""
    axes = pointer_axes(problem, device)
    return SearchSpace(POINTER, problem, device, axes, POINTER_RULES, _canonical, _expand)


def pointer_axes(problem: Problem, device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values on a device, except that `_expand` finds tile orders and pipelines for each tile."""
    both = product(problem)
    axes = dict(pointer_space.axes(device))
    if device.is_interpreter:
        axes |= {"BLOCK_SIZE_M": (16, 32), "BLOCK_SIZE_N": (32, 64), "BLOCK_SIZE_K": (32,)}
    else:
        axes["BLOCK_SIZE_N"] = tuple(block for block in axes["BLOCK_SIZE_N"] if block != 16)
    # The weights' rows fill an instruction of 64 rows; smaller ones are as good the other way round.
    is_tall = tile_resources.reads_shared(64, 64, 4, both, device)
    may_swap = device.is_interpreter or (is_tall and problem.m <= MOST_SWAPPED_ROWS)
    return {"SWAP_AB": (False, True) if may_swap else (False,), **axes}


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    inner, computed = as_computed(config, problem)
    for one in pointer_space.expand(inner, computed, device):
        if inner is config:
            yield one
        elif one["GROUP_SIZE_M"] == 1:
            yield config.replace(num_stages=one["num_stages"])


def _canonical(config: Config, problem: Problem, device: Device) -> Config:
    one = pointer_space.canonical(*as_computed(config, problem), device)
    return config.replace(GROUP_SIZE_M=one["GROUP_SIZE_M"], num_stages=one["num_stages"])


def pointer_shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """Shared memory of one block of `gated_pointer` in bytes: an upper bound.

    Besides `tile_resources.shared_bytes`: the output is turned through shared memory into rows, and on Blackwell each
    sum has barriers of its own. Source: tests/compile/test_gated.py.
    """
    inner, both = as_computed(config, problem)
    block_m, block_n, _ = tile_resources.tile(inner)
    taken = tile_resources.shared_bytes(inner, both, device)
    if device.features.tcgen05 and tile_resources.asynchronous(inner, both, device):
        taken += 16
    return max(taken, block_m * block_n // 2 * dtype.ITEMSIZE[problem.out_dtype])


@rule(
    "halves",
    "Triton's min_dot_size; PTX ISA, wgmma.mma_async: 64 rows",
    fatal=True,
    reads=("BLOCK_SIZE_N", "SWAP_AB"),
)
def _halves(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    half = config.integer("BLOCK_SIZE_N") // 2
    return f"{half} columns of gate and of up: tl.dot takes 16 or more" if half < 16 else None


@rule("swapped", "PTX ISA, wgmma.mma_async: 64 rows", reads=("BLOCK_SIZE_N", "SWAP_AB"))
def _swapped(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter or not config.get("SWAP_AB", False):
        return None
    if problem.m > MOST_SWAPPED_ROWS:
        return f"SWAP_AB for {problem.m} rows of x"
    half = config.integer("BLOCK_SIZE_N") // 2
    return f"SWAP_AB and {half} rows of gate and of up: an instruction takes 64" if half < 64 else None


_MEMORY = tile_rules.shared_memory(pointer_shared_bytes, "kernels/gated/space.py")
_OF_PRODUCT = tuple(
    each for each in pointer_space.RULES if each.name not in ("parameters", "shared memory", tile_rules.waves.name)
)
POINTER_RULES = (
    tile_rules.parameters(pointer_axes, optional=("SWAP_AB",)),
    _halves,
    _swapped,
    _MEMORY,
    *(splitting.on_view(as_computed, each, ("SWAP_AB",)) for each in _OF_PRODUCT),
)


def supports_gemv(problem: Problem, device: Device) -> str | None:
    """Why `gated_gemv` cannot serve a problem on a device, or None."""
    if reason := supports(problem, device):
        return reason
    return None if problem.m <= MOST_ROWS else f"M is {problem.m}: it takes {MOST_ROWS} rows at most"


def gemv(problem: Problem, device: Device) -> SearchSpace:
    """The search space of `gated_gemv`: that of `gemv` without splits, for the columns of both weights."""
    return SearchSpace(GEMV, problem, device, _gemv_axes(device), GEMV_RULES)


def _gemv_axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    single = {name: values for name, values in product_gemv.axes(device).items() if name != "SPLIT_K"}
    return {**single, "BLOCK_SIZE_N": tuple(value for value in single["BLOCK_SIZE_N"] if value != 1)}


def _both(config: Config, problem: Problem) -> tuple[Config, Problem]:
    return config, product(problem)


GEMV_RULES = (
    tile_rules.parameters(lambda _, device: _gemv_axes(device), optional=("num_stages",)),
    *(splitting.on_view(_both, each) for each in product_gemv.OF_TILE),
)
