"""The `gemv` kernel for M from 1 to 4, whose time is that of reading B; plain multiply-adds keep up with it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import Operands, placement
from tuner.kernels.cost import calibration
from tuner.kernels.cost import stream as stream_cost
from tuner.kernels.gemm import launches, splitting
from tuner.kernels.gemm.pointer import space as pointer_space
from tuner.kernels.gemm.small_m import gemv_jit
from tuner.kernels.gemm.spec import MATMUL, gemm_spec, sources_of
from tuner.kernels.space import refinements, tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.launch.launch import Launch
from tuner.problem import Problem

NAME = "gemv"
VERSION = 2
_OPTIONS = (refinements.PDL_TRIGGER, refinements.PREFETCH_KIB)
MOST_ROWS = 4
_SPLITS = (1, 2, 4, 8, 16)
_FOLDED = 8
"""The most neighbouring products of a row that a thread adds into one register; the rule "registers" asks for at least
as many in a thread."""


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    view = launches.view_of(operands)
    grid, _, constants, options = _parts(view, config)
    memory = launches.split_memory(grid, constants, operands.a)
    tensors = (operands.a, operands.b, operands.out, operands.bias, operands.scale_a, operands.scale_b, *memory)
    return (Launch(gemv_jit.gemv_kernel, grid, (*tensors, *view.shape, *view.strides), constants, options),)


def _own(view: launches.View, config: Config) -> dict[str, Any]:
    (a_transposed, along_k, _), (a_vector, b_vector, _) = view.transposed, view.vectors
    return {
        "A_VECTOR": 1 if a_transposed else a_vector,
        "FOLD": min(b_vector, config.integer("BLOCK_SIZE_K"), _FOLDED) if along_k else 1,
    }


_parts = launches.parts_of(gemv_jit.gemv_kernel, _own)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := pointer_space.supports(problem, device):
        return reason
    return None if problem.m <= MOST_ROWS else f"M is {problem.m}: it takes {MOST_ROWS} rows at most"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(
        NAME, problem, device, axes(device), RULES, expand=_expand, options=_OPTIONS, refine=refinements.of_rows
    )


def axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values on a device, except that `_expand` finds SPLIT_K."""
    if device.is_interpreter:
        return {"BLOCK_SIZE_N": (32,), "BLOCK_SIZE_K": (64,), "SPLIT_K": (1, 2), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_N": (1, 2, 4, 8, 16, 32, 64, 128, 256),
        "BLOCK_SIZE_K": (8, 16, 32, 64, 128, 256, 512, 1024, 2048),
        "SPLIT_K": (1,),
        "num_warps": (1, 2, 4, 8),
        **tile_rules.overlap(device),
    }


def default_config(problem: Problem, device: Device) -> Config:
    """The config with the least estimated time, or with B stored [K, N], which estimates rank worse, `_by_rule`."""
    tried = space(problem, device)
    if problem.layout[1] != "t":
        return tried.best(functools.partial(_by_rule, problem=problem, device=device)) or tried.smallest()
    estimated = functools.partial(_estimate_us, problem=problem, device=device)
    found = tried.best(estimated, among=_estimates(tried.programs(), problem, device))
    return tried.smallest() if found is None else tried.refined(found, estimated)


def _by_rule(config: Config, problem: Problem, device: Device) -> tuple[float, ...]:
    """The rank of a config: 8 values of B a thread, enough programs, rows of 128 values."""
    each = held(config, problem, device) / tile_resources.next_power_of_two(problem.m)
    few = max(0, 4 * device.sm_count - _programs(config, problem))
    return abs(each - 8), few, abs(config.integer("BLOCK_SIZE_N") - 128), config.integer("SPLIT_K")


def _estimate_us(config: Config, problem: Problem, device: Device) -> float:
    return _estimates((config,), problem, device)[config]


def _estimates(configs: Iterable[Config], problem: Problem, device: Device) -> dict[Config, float]:
    estimated = [(stream_cost.streamed(config, problem, device), config) for config in configs]
    found = calibration.of_streams(estimated, problem, device)
    return {config: us for (_, config), us in zip(estimated, found, strict=True)}


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:  # noqa: ARG001
    if device.is_interpreter:
        yield config
    else:
        yield from (config.replace(SPLIT_K=splits) for splits in _SPLITS)


def held(config: Config, problem: Problem, device: Device) -> float:
    """32-bit sums that a thread holds."""
    rows = tile_resources.next_power_of_two(problem.m)
    tile = rows * config.integer("BLOCK_SIZE_N") * config.integer("BLOCK_SIZE_K")
    return tile / (device.warp_size * config.integer("num_warps"))


def _programs(config: Config, problem: Problem) -> int:
    return -(-problem.n // config.integer("BLOCK_SIZE_N")) * config.integer("SPLIT_K", 1)


@rule(
    "registers",
    "255 a thread (CUDA C++ Programming Guide), for sums, operands and addresses",
    reads=("BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps"),
)
def _registers(config: Config, problem: Problem, device: Device) -> str | None:
    sums = held(config, problem, device)
    a_row = sums / tile_resources.next_power_of_two(problem.m)
    if device.is_interpreter or (a_row >= 8 and sums <= 64):
        return None
    return f"a thread would hold {sums:g} sums: 8 a row are one load of 16 bytes, 64 fit"


@rule("coalesced", "CUDA C++ Best Practices Guide, coalesced access", reads=("BLOCK_SIZE_N", "BLOCK_SIZE_K"))
def _coalesced(config: Config, problem: Problem, device: Device) -> str | None:
    along_k = problem.layout[1] == "t"
    extent = config.integer("BLOCK_SIZE_K" if along_k else "BLOCK_SIZE_N")
    whole = problem.k if along_k else problem.n
    shortest = min(128, tile_resources.next_power_of_two(whole))
    if device.is_interpreter or extent >= shortest:
        return None
    return f"{extent} elements of a row of B at a time: a warp loads 128"


@rule("splits", "the shape itself")
def _splits(config: Config, problem: Problem, device: Device) -> str | None:
    splits, programs = config.integer("SPLIT_K", 1), _programs(config, problem)
    steps = -(-problem.k // config.integer("BLOCK_SIZE_K"))
    if splits > 1 and -(-steps // splits) * (splits - 1) >= steps:
        return f"{splits} splits of {steps} steps: one would have none"
    if splits > 1 and not device.is_interpreter and programs > 16 * device.sm_count:
        return f"{programs} programs: fewer splits fill {device.sm_count} multiprocessors"
    if splits < _SPLITS[-1] and 2 * programs < device.sm_count and steps >= 4 * splits:
        return f"{programs} programs: more splits fill {device.sm_count} multiprocessors"
    return None


@rule("beyond", "the shape itself", reads=("BLOCK_SIZE_N", "BLOCK_SIZE_K"))
def _beyond(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter:
        return None
    for name, extent in (("BLOCK_SIZE_N", problem.n), ("BLOCK_SIZE_K", problem.k)):
        if config.integer(name) > max(8, tile_resources.next_power_of_two(extent)):
            return f"{name} is {config[name]}, the matrix has {extent}"
    return None


@rule("workspace", "kernels/base/workspace.py", fatal=True)
def _workspace(config: Config, problem: Problem, device: Device) -> str | None:
    view = config.replace(BLOCK_SIZE_M=tile_resources.next_power_of_two(problem.m))
    return splitting.workspace.rejects(view, problem, device)


OF_TILE = (_registers, _coalesced, _splits, _beyond)
"""The rules of a tile and of the programs that it makes."""
RULES = (tile_rules.parameters(lambda _, device: axes(device), _OPTIONS, ("num_stages",)), _workspace, *OF_TILE)


SPEC = gemm_spec(
    MATMUL,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    estimate_us=_estimate_us,
    sources=sources_of(gemv_jit, program, _own, placement),
    runtime_parameters=("SPLIT_K",),
)
