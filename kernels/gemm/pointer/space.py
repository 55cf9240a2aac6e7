"""The `pointer` kernel's search space: which configs are worth trying, and why others are not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.dtypes import DTYPES, outputs
from tuner.kernels.base.operands import cannot_align
from tuner.kernels.gemm.sums import family_parts
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

NAME = "pointer"
STAGES = (1, 2, 3, 4, 6, 8, 12)
_BLOCKS = (16, 32, 64, 128, 256)
_MOST_SUMS_OF_PARTS = {True: 64, False: 32}
"""The most sums of a thread that adds parts, by whether there are four warps."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if problem.scaling == "block":
        return "no scaling 'block', whose scales belong to parts of a sum: that is the kernel block_scaled's work"
    return supports_operands(problem, device)


def supports_operands(problem: Problem, device: Device) -> str | None:
    """Why no kernel that multiplies by `tl.dot` can serve a problem on a device, scales aside, or None."""
    if unknown := [name for name in (problem.a_dtype, problem.b_dtype) if name not in DTYPES]:
        return f"no {unknown[0]}: it takes {', '.join(DTYPES)}"
    if problem.a_dtype != problem.b_dtype and not (dtype.is_fp8(problem.a_dtype) and dtype.is_fp8(problem.b_dtype)):
        return f"no {problem.a_dtype} * {problem.b_dtype}: both operands must be of one dtype, or 8-bit floats"
    if problem.out_dtype not in (known := outputs(problem.a_dtype, problem.scaling)):
        scaled = "" if problem.scaling == "none" else "scaled "
        return f"no {problem.out_dtype} output of {scaled}{problem.a_dtype}: it writes {', '.join(known)}"
    if problem.out_dtype == "int32" and problem.epilogue != "none":
        return f"no {problem.epilogue} of int8 without scales: its sums stay integers"
    return cannot_align(problem) or _hardware_lacks(problem, device)


def _hardware_lacks(problem: Problem, device: Device) -> str | None:
    types = (problem.a_dtype, problem.b_dtype, problem.out_dtype)
    if device.is_interpreter:
        return None
    has, nvidia = device.features, device.vendor == "nvidia"
    if not has.supported:
        needed = "needs sm_80 or newer" if nvidia else "is compiled and tested for gfx942 and gfx950"
        return f"no {device.arch}: it {needed}"
    if nvidia and "float8_e4m3fn" in types and not has.fp8:
        return f"no float8_e4m3fn on {device.arch}: it needs sm_89 or newer"
    if not nvidia:
        # CDNA3's matrix cores take only the fnuz variants; Triton would convert every e4m3fn and e5m2 in software.
        if has.fp8 == "fnuz" and any(dtype.is_fp8(name) for name in types):
            return "no float8_e4m3fn or float8_e5m2 on gfx942: its matrix cores take the fnuz variants only"
        if problem.precision == "tf32x3" or (problem.precision == "tf32" and not has.tf32):
            return f"no {problem.precision} on {device.arch}"
    return None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space: its axes depend on the vendor, its rules do not."""
    return SearchSpace(NAME, problem, device, axes(device), RULES, canonical, expand)


def axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values on a device, except that `expand` finds tile orders and pipelines for each tile."""
    launched: dict[str, tuple[Value, ...]] = {"GROUP_SIZE_M": (1,), "num_stages": (1,)}
    if device.is_interpreter:
        # The interpreter runs one program at a time, so stages and warps change nothing, and a demo should end soon.
        blocks: tuple[Value, ...] = (16, 32, 64)
        tiles = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), blocks)
        return {**tiles, **launched, "num_warps": (4,)}
    tiles = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), _BLOCKS)
    if device.vendor == "nvidia":
        return {**tiles, **launched, "num_warps": (1, 2, 4, 8), **tile_rules.overlap(device)}
    return {
        **tiles,
        **launched,
        "num_warps": (1, 2, 4, 8),
        "matrix_instr_nonkdim": (16, 32),
        "waves_per_eu": (0, 2),
        # On gfx950, Triton's backend warns and uses 1.
        "kpack": (1, 2) if device.features.kpack else (1,),
    }


def expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with every tile order and every pipeline that is no longer than the loop."""
    if device.is_interpreter:
        yield config
        return
    deepest = min(tile_resources.tile_counts(config, problem)[2], tile_resources.most_stages(device))
    for group, depth in itertools.product(tile_rules.GROUPS, STAGES):
        if depth <= deepest:
            yield config.replace(GROUP_SIZE_M=group, num_stages=depth)


def canonical(config: Config, problem: Problem, device: Device) -> Config:
    """The representative of the configs that run the same program.

    Such configs differ in GROUP_SIZE_M without a change of order, or in num_stages without asynchronous loads.
    """
    group = max(1, config.integer("GROUP_SIZE_M", 1))
    tiles_m, tiles_n, _ = tile_resources.tile_counts(config, problem)
    if tiles_m == 1 or tiles_n == 1:
        group = 1
    elif group >= tiles_m:
        # All groups this large sweep whole columns of tiles, so the smallest represents them.
        group = min((known for known in tile_rules.GROUPS if known >= tiles_m), default=group)
    stages = config.integer("num_stages")
    if stages > 2 and not tile_resources.stages_differ(problem, device):
        stages = 2
    if (config.get("GROUP_SIZE_M"), config.get("num_stages")) == (group, stages):
        return config
    return config.replace(GROUP_SIZE_M=group, num_stages=stages)


@rule(
    "loads",
    "measured on an H200: the fastest that it leaves out took 1.066 times the winner's time (30 problems)",
    reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps"),
)
def _loads(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter:
        return None
    loads, limit = tile_resources.loads_per_thread(config, problem, device), tile_resources.most_loads(device)
    return f"a thread would issue {loads:g} loads a step, the addresses of {limit} fit" if loads > limit else None


@rule("stages", "Triton's pipeliner: num_stages loads are in flight, 1 turns it off")
def _stages(config: Config, problem: Problem, device: Device) -> str | None:
    stages, steps = config.integer("num_stages"), tile_resources.tile_counts(config, problem)[2]
    if stages > steps:
        return f"{stages} stages for {steps} steps along K"
    if stages == 1 and steps >= 4 and not device.is_interpreter:
        return f"1 stage for {steps} steps along K: no load overlaps the sums"
    return None


@rule(
    "parts",
    "compiled for sm_80, sm_90, sm_120: 128 sums of aligned operands spill 344 B and more, 64 of one warp 200 B",
    reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps"),
)
def _parts(config: Config, problem: Problem, device: Device) -> str | None:
    held = tile_resources.accumulator_registers(config, device)
    most = _MOST_SUMS_OF_PARTS[config.integer("num_warps") >= 4]
    if held <= most or device.is_interpreter or family_parts(problem) == 1:
        return None
    return f"a thread would hold {held:g} sums and as many of a part, {most} fit"


RULES = (
    tile_rules.parameters(lambda _, device: axes(device)),
    tile_rules.dot_size,
    tile_rules.shared_memory(tile_resources.shared_bytes, "kernels/space/tile_resources.py"),
    tile_rules.registers,
    _parts,
    _loads,
    *tile_rules.INSTRUCTIONS,
    tile_rules.matrix_instruction,
    tile_rules.kpack,
    *tile_rules.EXTENTS,
    _stages,
    tile_rules.waves,
    tile_rules.oblong,
    tile_rules.group,
)
