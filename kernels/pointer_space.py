"""The `pointer` kernel's search space: which configs are worth trying, and why not the rest."""

from __future__ import annotations

from collections.abc import Mapping

from tuner import dtype as dtypes
from tuner.config import Config, Value
from tuner.device import Device
from tuner.kernels import rules
from tuner.kernels.operands import cannot_align
from tuner.problem import Problem
from tuner.space import Rule, SearchSpace

NAME = "pointer"
DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_BLOCKS = (16, 32, 64, 128, 256)
_GROUPS = (1, 4, 8, 16)
_MOST_WAVES = 16
_MOST_OBLONG = 8
_REQUIRED = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_stages", "num_warps")


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    types = (problem.a_dtype, problem.b_dtype, problem.out_dtype)
    if unknown := [name for name in types if name not in DTYPES]:
        return f"no {unknown[0]}: it takes {', '.join(DTYPES)}"
    if problem.a_dtype != problem.b_dtype and not (dtypes.is_fp8(problem.a_dtype) and dtypes.is_fp8(problem.b_dtype)):
        return f"no {problem.a_dtype} * {problem.b_dtype}: both operands must be of one dtype, or 8-bit floats"
    return cannot_align(problem) or _hardware_lacks(problem, device)


def _hardware_lacks(problem: Problem, device: Device) -> str | None:
    types = (problem.a_dtype, problem.b_dtype, problem.out_dtype)
    if device.vendor == "nvidia":
        if device.capability < 80:
            return f"no {device.arch}: it needs sm_80 or newer"
        if "float8_e4m3fn" in types and device.capability < 89:
            return f"no float8_e4m3fn on {device.arch}: it needs sm_89 or newer"
    if device.vendor == "amd":
        if device.arch not in ("gfx942", "gfx950"):
            return f"no {device.arch}: it is compiled and tested for gfx942 and gfx950"
        # CDNA3's matrix cores take the fnuz variants alone; Triton would convert every e4m3fn and e5m2 by software.
        if device.arch == "gfx942" and any(dtypes.is_fp8(name) for name in types):
            return "no float8_e4m3fn or float8_e5m2 on gfx942: its matrix cores take the fnuz variants only"
        if problem.precision == "tf32x3" or (problem.precision == "tf32" and device.arch != "gfx942"):
            return f"no {problem.precision} on {device.arch}"
    return None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space: axes per vendor, one list of rules for all."""
    return SearchSpace(NAME, problem, device, axes(device), RULES, canonical)


def axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values on a device."""
    if device.is_interpreter:
        # It runs one program at a time: stages and warps change nothing, and a demo should end soon.
        blocks: tuple[Value, ...] = (16, 32, 64)
        tiles = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), blocks)
        return {**tiles, "GROUP_SIZE_M": (1,), "num_stages": (1,), "num_warps": (4,)}
    tiles = dict.fromkeys(("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K"), _BLOCKS)
    if device.vendor == "nvidia":
        return {**tiles, "GROUP_SIZE_M": _GROUPS, "num_stages": (1, 2, 3, 4, 5, 6), "num_warps": (1, 2, 4, 8)}
    return {
        **tiles,
        "GROUP_SIZE_M": _GROUPS,
        # Triton's HIP pipeliner keeps the next step in registers and LDS: a third stage pays where LDS is large.
        "num_stages": (1, 2, 3) if device.arch == "gfx950" else (1, 2),
        "num_warps": (1, 2, 4, 8),
        "matrix_instr_nonkdim": (16, 32),
        "waves_per_eu": (0, 2),
        # Triton's backend warns and takes 1 on gfx950.
        "kpack": (1, 2) if device.arch == "gfx942" else (1,),
    }


def canonical(config: Config, problem: Problem, device: Device) -> Config:
    """The representative of the configs that run the same program: GROUP_SIZE_M where it changes no order, num_stages
    where no load is asynchronous.
    """
    group = max(1, config.integer("GROUP_SIZE_M", 1))
    tiles_m, tiles_n, _ = rules.tile_counts(config, problem)
    if tiles_m == 1 or tiles_n == 1:
        group = 1
    elif group >= tiles_m:
        # All of these walk whole columns of tiles: the smallest speaks for them.
        group = min((known for known in _GROUPS if known >= tiles_m), default=group)
    stages = config.integer("num_stages")
    if stages > 2 and not rules.stages_differ(problem, device):
        stages = 2
    if (config.get("GROUP_SIZE_M"), config.get("num_stages")) == (group, stages):
        return config
    return config.replace(GROUP_SIZE_M=group, num_stages=stages)


def _malformed(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    known = axes(device)
    for name in _REQUIRED:
        if name not in config:
            return f"{name} is missing"
    for name, value in config.items():
        if name not in known:
            return f"{name} is no parameter on {device.arch}"
        lowest = 0 if name in ("GROUP_SIZE_M", "waves_per_eu") else 1
        if isinstance(value, (str, bool)) or value < lowest:
            return f"{name} is {value!r}"
        if (name.startswith("BLOCK") or name == "num_warps") and value & (value - 1):
            return f"{name} is {value}, no power of two"
    return None


def _dot_too_small(config: Config, problem: Problem, device: Device) -> str | None:
    shortest = 1 if device.is_interpreter else rules.shortest_k(problem)
    block_k = config.integer("BLOCK_SIZE_K")
    return f"BLOCK_SIZE_K is {block_k}, {problem.a_dtype} needs {shortest}" if block_k < shortest else None


def _shared_memory(config: Config, problem: Problem, device: Device) -> str | None:
    needed = rules.shared_bytes(config, problem, device)
    return f"{needed} B, a block has {device.shared_bytes}" if needed > device.shared_bytes else None


def _registers(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter:
        return None
    held, limit = rules.accumulator_registers(config, device), 128
    if device.vendor == "amd":
        limit = (
            256  # a lane of CDNA has 512 registers, half of them for sums alone; a thread of NVIDIA's has 255 in all
        )
    elif rules.uses_mma_sync(config, problem, device):
        limit = 64  # the operands of mma.sync lie in registers too
    return f"a thread would hold {held:g} sums, {limit} fit" if held > limit else None


def _loads(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter:
        return None
    loads, limit = rules.loads_per_thread(config, problem, device), rules.most_loads(device)
    return f"a thread would issue {loads:g} loads a step, the addresses of {limit} fit" if loads > limit else None


def _too_many_warps(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    block_m, block_n, _ = rules.tile(config)
    warps = config.integer("num_warps")
    if device.is_interpreter:
        return None
    if block_m * block_n < 256 * warps:
        return f"{warps} warps for {block_m}x{block_n} sums: fewer than two instructions' worth each"
    if warps > 4 and block_m * block_n < 64 * 4 * device.warp_size:
        return f"{warps} warps for {block_m}x{block_n} sums: 4 hold them without spilling"
    return None


def _tensor_core_shape(config: Config, problem: Problem, device: Device) -> str | None:
    block_m, _, _ = rules.tile(config)
    asynchronous = device.capability in (90, 100, 103) and rules.uses_tensor_cores(problem)
    if asynchronous and block_m >= 64 and config.integer("num_warps") < 4:
        return f"{block_m} rows with {config.integer('num_warps')} warps: wgmma and tcgen05 need 4"
    return None


def _matrix_instruction(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    nonkdim = config.integer("matrix_instr_nonkdim", 0)
    block_m, block_n, _ = rules.tile(config)
    if nonkdim > min(block_m, block_n):
        return f"matrix_instr_nonkdim {nonkdim} with {block_m}x{block_n}"
    # Two warps, at least, of the larger instruction along either side; else its longer latency shows.
    if nonkdim == 32 and min(block_m, block_n) < 64:
        return f"matrix_instr_nonkdim 32 with {block_m}x{block_n}: one instruction across"
    return None


def _kpack(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    packed, block_k = config.integer("kpack", 1), config.integer("BLOCK_SIZE_K")
    if problem.precision == "tf32" and packed == 2 and block_k < 32 and config.integer("matrix_instr_nonkdim") == 16:
        return f"kpack 2 with BLOCK_SIZE_K {block_k}: the compiler fails"
    return None


def _padding(config: Config, problem: Problem, device: Device) -> str | None:
    block_m, block_n, _ = rules.tile(config)
    rows = rules.next_power_of_two(max(16, problem.m))
    if dtypes.is_fp8(problem.a_dtype) and device.capability == 90:
        rows = max(64, rows)  # below 64 rows Hopper's fp8 is upcast to fp16 and multiplied by mma.sync
    columns = rules.next_power_of_two(max(16, problem.n))
    if block_m > rows:
        return f"BLOCK_SIZE_M is {block_m}, {rows} covers M"
    return f"BLOCK_SIZE_N is {block_n}, {columns} covers N" if block_n > columns else None


def _beyond_k(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    covering = rules.next_power_of_two(max(rules.shortest_k(problem), problem.k))
    block_k = config.integer("BLOCK_SIZE_K")
    return f"BLOCK_SIZE_K is {block_k}, {covering} covers K" if block_k > covering else None


def _short_rows(config: Config, problem: Problem, device: Device) -> str | None:
    block_k, size = config.integer("BLOCK_SIZE_K"), dtypes.ITEMSIZE[problem.a_dtype]
    asynchronous = rules.uses_wgmma(config, problem, device) or rules.uses_tcgen05(config, problem, device)
    # What passes through registers is held there: a shorter row leaves room for a larger tile.
    shortest = 128 if asynchronous and rules.asynchronous_copies(problem) == 2 else 64
    if device.is_interpreter or block_k * size >= min(shortest, problem.k * size):
        return None
    return f"BLOCK_SIZE_K of {block_k} loads {block_k * size} B of a row"


def _stages(config: Config, problem: Problem, device: Device) -> str | None:
    stages, steps = config.integer("num_stages"), rules.tile_counts(config, problem)[2]
    if stages > steps:
        return f"{stages} stages for {steps} steps along K"
    if stages == 1 and steps >= 4 and not device.is_interpreter:
        return f"1 stage for {steps} steps along K: no load overlaps the sums"
    return None


def _waves(config: Config, problem: Problem, device: Device) -> str | None:
    tiles_m, tiles_n, _ = rules.tile_counts(config, problem)
    waves = tiles_m * tiles_n / device.sm_count
    block_m, block_n, _ = rules.tile(config)
    if device.is_interpreter or waves <= _MOST_WAVES or block_m * block_n >= _largest(problem):
        return None
    return f"{waves:.0f} waves of {block_m}x{block_n} tiles: a larger tile loads each operand less often"


def _largest(problem: Problem) -> int:
    """Sums of a 128x128 tile, fewer where the shape itself is narrower or elements are loaded one by one."""
    narrow = rules.next_power_of_two(max(16, min(problem.m, problem.n)))
    return (128 if rules.asynchronous_copies(problem) == 2 else 64) * min(128, narrow)


def _oblong(config: Config, problem: Problem, device: Device) -> str | None:
    block_m, block_n, _ = rules.tile(config)
    shorter, extent = (block_m, problem.m) if block_m <= block_n else (block_n, problem.n)
    if device.is_interpreter or max(block_m, block_n) <= _MOST_OBLONG * shorter or extent <= shorter:
        return None
    return f"{block_m}x{block_n} loads more than a squarer tile of the same area"


def _group_of_few(config: Config, problem: Problem, device: Device) -> str | None:
    group = config.integer("GROUP_SIZE_M", 1)
    tiles_m, tiles_n, _ = rules.tile_counts(config, problem)
    if group > 1 and tiles_m * tiles_n <= device.sm_count:
        return f"GROUP_SIZE_M of {group} for {tiles_m * tiles_n} tiles, which all run at once"
    return None


RULES = (
    Rule("parameters", "the kernel's own: tl.arange takes powers of two", _malformed, fatal=True),
    Rule("dot size", "Triton's min_dot_size, NVIDIA backend", _dot_too_small, fatal=True),
    Rule("shared memory", "kernels/rules.py, shared_bytes; tests/compile", _shared_memory, fatal=True),
    Rule(
        "registers",
        "compiled for sm_90: 256 sums a thread always spilled, 128 sometimes; mma.sync: measured, see loads",
        _registers,
    ),
    Rule("loads", "measured: benchmarks/default_regret.py, benchmarks/results/default-regret-h200.json", _loads),
    Rule("idle warps", "PTX ISA, mma.m16n8k16: 128 sums an instruction, one warp", _too_many_warps),
    Rule("tensor core shape", "PTX ISA, wgmma.mma_async: a warpgroup and 64 rows", _tensor_core_shape),
    Rule("matrix instruction", "AMD CDNA3 ISA guide, MFMA 16x16 and 32x32", _matrix_instruction),
    Rule("kpack", "compiled for gfx942: 16x16 xf32 packed twice takes 32 values of K", _kpack, fatal=True),
    Rule("padding", "the shape itself: the rest of such a tile is masked", _padding),
    Rule("beyond K", "the shape itself", _beyond_k),
    Rule("short rows", "CUDA C++ Best Practices Guide, 32-byte sectors; PTX ISA, 128-byte swizzle", _short_rows),
    Rule("stages", "Triton's pipeliner: num_stages loads are in flight, 1 turns it off", _stages),
    Rule("waves", "NVIDIA, Matrix Multiplication Background: reuse grows with the tile, tail effects vanish", _waves),
    Rule("oblong", "bytes loaded a sum: (BM + BN) / (BM * BN)", _oblong),
    Rule("group", "one wave of tiles shares the L2 in any order", _group_of_few),
)
