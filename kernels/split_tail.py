"""The `split_tail` kernel: tiles of the last wave, which would leave most of the device idle, are split along K.

A hybrid of data-parallel tiles and stream-K (Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense
Matrix-Matrix Multiplication on the GPU", 2023): whole waves need no reduction, the rest is evened out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tuner.config import Config, Value
from tuner.device import Device
from tuner.kernels import rules, split_tail_kernel, tile_rules, tma_space
from tuner.kernels.gemm import epilogue_constants, gemm_spec, sources_of
from tuner.kernels.launching import TILE, Launch, compiler_options
from tuner.kernels.operands import Operands, placement
from tuner.kernels.persistent_tma import multiprocessors
from tuner.kernels.tma import descriptor, destination, destination_strides
from tuner.kernels.workspace import MOST_BYTES, splits_together, workspace
from tuner.problem import Problem
from tuner.space import Rule, SearchSpace

NAME = "split_tail"
VERSION = 1
_SPLITS = (2, 3, 4, 5, 6, 8, 11, 16)
_GROUPS = (1, 8)
_FEWEST_STEPS = 2
_FULL = 0.8


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    a, b, out = operands.a, operands.b, operands.out
    shape = (a.shape[0], b.shape[1], a.shape[1])
    transposed = (placement(a).transposed, placement(b).transposed, placement(out).transposed)
    slots = multiprocessors(a.device.index) if a.device.type == "cuda" else _HOST_SLOTS
    whole, parts, group, constants, options = _static(operands.problem, shape, config, transposed, slots)
    block_m, block_n, block_k = (constants[name] for name in TILE)
    memory = workspace(max(1, parts * block_m * block_n), _sum_dtype(a), a.device)
    arguments = (
        descriptor(a, block_m, block_k),
        descriptor(b, block_k, block_n),
        destination(out, block_m, block_n),
        operands.bias,
        operands.scale_a,
        operands.scale_b,
        memory.partials,
        memory.counters,
        *shape,
        *destination_strides(out),
        group,
        whole,
        config.integer("SPLIT_K"),
    )
    return (Launch(split_tail_kernel.split_tail_kernel, (whole + parts,), arguments, constants, options),)


_HOST_SLOTS = 2
"""Multiprocessors that the interpreter and a compile reckon with: a small output has a tail too."""


def _sum_dtype(a: torch.Tensor) -> torch.dtype:
    return torch.int32 if a.dtype == torch.int8 else torch.float32


@functools.lru_cache(maxsize=4096)
def _static(
    problem: Problem,
    shape: tuple[int, int, int],
    config: Config,
    transposed: tuple[bool, bool, bool],
    slots: int,
) -> tuple[int, int, int, dict[str, Any], dict[str, Any]]:
    """Whole tiles, parts of split ones, GROUP_SIZE_M, constexprs and compiler options."""
    m, n, _ = shape
    block_m, block_n, block_k = (config.integer(name) for name in TILE)
    splits, warps = config.integer("SPLIT_K"), config.integer("num_warps")
    tiles_m, tiles_n = -(-m // block_m), -(-n // block_n)
    constants = {
        "PDL": bool(config.get("launch_pdl", False)),
        "TOGETHER": splits_together(block_m * block_n, warps, splits),
        **dict(zip(TILE, (block_m, block_n, block_k), strict=True)),
        **dict(zip(("A_TRANSPOSED", "B_TRANSPOSED", "C_TRANSPOSED"), transposed, strict=True)),
        **epilogue_constants(problem, block_k),
    }
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m)
    left = tiles_m * tiles_n % slots
    return tiles_m * tiles_n - left, left * splits, group, constants, compiler_options(config)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := tma_space.supports_tiles(problem, device):
        return reason
    if device.is_interpreter:
        return None
    smallest = -(-problem.m // 128) * -(-problem.n // 64)
    if smallest <= device.sm_count:
        return f"{smallest} tiles of 128x64 for {device.sm_count} multiprocessors: no wave is whole"
    shortest = 2 * _FEWEST_STEPS * 64
    return None if problem.k >= shortest else f"K is {problem.k}: it splits sums of {shortest} and more"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(device), RULES, expand=_expand)


def _axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    if device.is_interpreter:
        tile: Mapping[str, tuple[Value, ...]] = dict.fromkeys(TILE, (32,))
        return {**tile, "GROUP_SIZE_M": (1,), "SPLIT_K": (2, 3), "num_stages": (1,), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (64, 128, 256),
        "BLOCK_SIZE_N": (64, 128, 256),
        "BLOCK_SIZE_K": (32, 64, 128, 256),
        "GROUP_SIZE_M": _GROUPS,
        "SPLIT_K": _SPLITS,
        "num_stages": (1,),
        "num_warps": (4, 8),
        **tile_rules.overlap(device),
    }


def default_config(problem: Problem, device: Device) -> Config:
    """The candidate whose waves, the split one counted by its part, times its tile are the least work."""

    def rank(config: Config) -> tuple[float, ...]:
        block_m, block_n, block_k = rules.tile(config)
        whole, parts = _waves(config, problem, device)
        waves = whole + -(-parts // device.sm_count) / config.integer("SPLIT_K")
        depth = config.integer("num_stages") * block_k
        return waves * (block_m * block_n + 64 * (block_m + block_n)), config.integer("SPLIT_K"), -depth

    tried = space(problem, device)
    return tried.best(rank) or tried.smallest()


def _waves(config: Config, problem: Problem, device: Device) -> tuple[int, int]:
    """Whole waves, and the programs of the split one."""
    tiles_m, tiles_n, _ = rules.tile_counts(config, problem)
    whole, left = divmod(tiles_m * tiles_n, device.sm_count)
    return whole, left * config.integer("SPLIT_K")


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    return tma_space.expand(config, problem, device)


def _tail(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter:
        return None
    whole, parts = _waves(config, problem, device)
    if not whole or not parts:
        return f"{whole} whole waves and {parts} parts: that is what `split_k` or `tma` does"
    rounds = -(-parts // device.sm_count)
    splits = config.integer("SPLIT_K")
    if rounds > 2 or parts < _FULL * rounds * device.sm_count:
        return f"{parts} parts on {device.sm_count} multiprocessors leave too many idle"
    steps = rules.tile_counts(config, problem)[2]
    return f"{splits} splits of {steps} steps: too short to pay" if steps < _FEWEST_STEPS * splits else None


def _workspace(config: Config, problem: Problem, device: Device) -> str | None:
    block_m, block_n, _ = rules.tile(config)
    _, parts = _waves(config, problem, device)
    needed = parts * block_m * block_n * 4
    return f"{needed} B of partial sums, at most {MOST_BYTES} are kept" if needed > MOST_BYTES else None


RULES = (
    tile_rules.parameters(_axes, tile_rules.OPTIONAL),
    tile_rules.shared_memory(tma_space.shared_bytes, "kernels/tma_space.py"),
    Rule("workspace", "kernels/workspace.py", _workspace, fatal=True),
    Rule("tail", "the shape itself: the last wave is to be full, and its reduction short", _tail),
    tma_space.TENSOR_CORES,
    *tma_space.TILE_RULES,
)

SPEC = gemm_spec(
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=tma_space.shared_bytes,
    sources=sources_of(split_tail_kernel, program, _static, descriptor, destination, placement, workspace),
    runtime_parameters=("GROUP_SIZE_M", "SPLIT_K"),
    precedence=lambda _problem, _device: -1,
)
