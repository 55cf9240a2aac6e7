"""A tile of `any_height`: its rows, columns and clusters, what it takes, and what no tile can be."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernels.base.operands import exchanged
from tuner.kernels.gemm import sums
from tuner.kernels.gemm.any_tile import any_width_space
from tuner.kernels.gemm.any_tile.any_height_model import CONSTANTS, modelled_us
from tuner.kernels.gemm.hopper import chunks, cluster_sizes, resources
from tuner.kernels.space import refinements
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_rules import SIDES
from tuner.problem import Problem

NAME = "any_height"
HEIGHTS = (*range(64, 257, 8),)
"""Rows of tiles."""
WARPS = {64: 4, 128: 8, 192: 12, 256: 8}
"""Warps that multiply, by columns of a tile."""
_MOST_SUMS = {1: 128, 2: 208, 3: 104}
"""The most sums of a multiplying thread, by the number of warpgroups: its registers are 216 to 248, 232 (240 for more
than 192 sums) or 160."""
UNIT = 8
"""What rows of tiles are multiples of."""
STEP = 16
"""What rows of tiles are multiples of, where these have all rows of A or half."""
CLUSTER = 4
"""Blocks of a cluster along N, which share A's loads. Pairs of them lost nearly wherever four gained (decision 152)."""
PAIR: Mapping[str, Value] = {refinements.NUM_CTAS: 2, refinements.SHARE_B: True}
"""Blocks along M, which share B's loads."""
_MOST_STAGES = 12
_CAUTION = 1.02
"""What the model's estimates are multiplied by beside those of other kernels: the least of many errs to the low side.

Of 962 problems that no constant was fitted to, 66 have other defaults for it, which take 0.990 of the others' time; the
least is 0.87, the most 1.07 (decision 152)."""
_DTYPES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
OPTIONS = (refinements.NUM_CTAS, refinements.SHARE_B)


def unserved(problem: Problem, device: Device) -> str | None:
    """Why no tile of any height can serve a problem's operands on a device, or None."""
    return any_width_space.unserved(problem, device, _DTYPES)


def unserved_scaled(problem: Problem, device: Device) -> str | None:
    """The same with block scales, where a program adds each step's products."""
    return any_width_space.unsuited(problem.unscaled(), device, _DTYPES)


def tile_config(rows: int, columns: int, problem: Problem, device: Device, **options: Value) -> Config:
    """The config of a tile, with the deepest ring that fits."""
    fixed = {"BLOCK_SIZE_K": resources.row_length(problem), "GROUP_SIZE_M": 1, "launch_pdl": True, "num_stages": 1}
    one = Config(NAME, BLOCK_SIZE_M=rows, BLOCK_SIZE_N=columns, num_warps=WARPS[columns], **fixed, **options)
    return deepest(one, problem, device)


def deepest(config: Config, problem: Problem, device: Device) -> Config:
    """The config with the deepest ring that fits."""
    inner = as_computed(config).replace(num_stages=1)
    return config.replace(num_stages=any_width_space.deepest(inner, exchanged(problem), device, _MOST_STAGES))


def own_estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """How long a config takes by the model of this kernel's own, microseconds; tiles in groups have another."""
    return _CAUTION * modelled_us(as_computed(config), exchanged(problem), device, CONSTANTS)


@functools.lru_cache(maxsize=4096)
def as_computed(config: Config) -> Config:
    """The config of `any_width` that computes the transposed output, whose cluster shares the other operand's loads."""
    computed = {**dict(config.pairs), "BLOCK_SIZE_M": config["BLOCK_SIZE_N"], "BLOCK_SIZE_N": config["BLOCK_SIZE_M"]}
    if refinements.NUM_CTAS in config:
        computed[refinements.SHARE_B] = not config.get(refinements.SHARE_B, False)
    return Config(config.kernel, **computed)


def computed_by(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """A config and a problem as the device computes them: those of the transposed output."""
    return as_computed(config), exchanged(problem)


def order(config: Config, problem: Problem, device: Device) -> sums.Order:  # noqa: ARG001
    """How a config sums: whole, by wgmma with exchanged operands."""
    return sums.by_wgmma(config, problem, exchanged=True)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """An upper bound on a block's shared memory, as of `any_width`, where TMA stores C."""
    return any_width_space.shared_bytes(as_computed(config), exchanged(problem), device)


@rule("shape", "kernels/gemm/any_tile/any_width_jit.py; PTX ISA, wgmma.mma_async", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:
    rows, columns, warps = (config.integer(name) for name in (*SIDES, "num_warps"))
    if WARPS.get(columns) != warps:
        return f"{columns} columns for {warps} warps: 64 for 4, 128 or 256 for 8, 192 for 12"
    if reason := _no_cluster(config, device):
        return reason
    whole = 2 * (UNIT if problem.layout[0] == "n" else chunks.CHUNK)
    if any_width_space.in_halves(as_computed(config)) and rows % whole:
        return f"{rows} rows of 192 columns: two wgmmas share them, a multiple of {whole}"
    return any_width_space.no_step(rows, "rows", config, problem, UNIT)


def _no_cluster(config: Config, device: Device) -> str | None:
    kind = {name: config[name] for name in OPTIONS if name in config}
    if not kind:
        return None
    ctas = config.integer(refinements.NUM_CTAS)
    if kind not in ({refinements.NUM_CTAS: CLUSTER}, PAIR):
        along = "M" if refinements.SHARE_B in kind else "N"
        return f"clusters of {ctas} along {along}: only {CLUSTER} along N, or {PAIR[refinements.NUM_CTAS]} along M, pay"
    if cluster_sizes.room(ctas, device):
        return None
    return f"clusters of {ctas}: {device.sm_count} multiprocessors may have none of so many in one GPC"


@rule("ring", "kernels/gemm/any_tile/any_width_jit.py: Triton places the largest allocation first", fatal=True)
def ring_first(config: Config, problem: Problem, device: Device) -> str | None:
    return any_width_space.ring_not_first(as_computed(config), exchanged(problem), device)


@rule("stored", "kernels/gemm/any_tile/any_width.py: a cluster's first block alone would store", fatal=True)
def stored(config: Config, problem: Problem, device: Device) -> str | None:
    return any_width_space.without_buffers(as_computed(config), exchanged(problem), device)


@rule("wide output", "compiled for sm_90, as for any_width", fatal=True)
def _wide_output(config: Config, problem: Problem, device: Device) -> str | None:
    return any_width_space.too_wide_output(as_computed(config), exchanged(problem), device)


@rule("registers", "compiled for sm_90", fatal=True, reads=(*SIDES, "num_warps"))
def _sums(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    return any_width_space.too_many_sums(config, _MOST_SUMS)


ABLE = (_shape, ring_first, stored, _wide_output, _sums)
"""What a config has to pass to compute what it should."""
