"""Rules that the search spaces of all `tl.dot` kernels share: which tiles are impossible or not worth trying."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import Rule
from tuner.kernels.space import refinements, tile_resources
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

GROUPS = (1, 4, 8, 16)
OPTIONAL = ("GROUP_SIZE_M", "launch_pdl", "matrix_instr_nonkdim", "waves_per_eu", "kpack")
"""Parameters that a config may leave out."""
_MOST_WAVES = 16
_MOST_OBLONG = 8
SIDES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N")
_WARPS = (*SIDES, "num_warps")
_SMALLEST_INTERPRETED = 32
"""The size along M and N of the only tile that most kernels try on the interpreter."""


def overlap(device: Device) -> dict[str, tuple[Value, ...]]:
    """The axis `launch_pdl`: programmatic dependent launch, wherever the hardware has it.

    It hides the start of a short kernel behind the end of its predecessor. Source: PTX ISA, griddepcontrol, sm_90 and
    newer.
    """
    return {"launch_pdl": (True,)} if device.features.pdl else {}


def parameters(
    axes: Callable[[Problem, Device], Mapping[str, tuple[Value, ...]]],
    options: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    own: Mapping[str, refinements.OptionError] | None = None,
) -> Rule:
    """The rule that a config has a kernel's parameters and no others, with values that the compiler accepts.

    Args:
        axes: the kernel's axes for a problem on a device.
        options: further options that a config may have, see `refinements`.
        optional: parameters that may be missing, in addition to `OPTIONAL`.
        own: options that no other kernel has, with the functions that check their values.
    """

    def malformed(config: Config, problem: Problem, device: Device) -> str | None:
        known = axes(problem, device)
        for name in known:
            if name not in config and name not in (*OPTIONAL, *optional):
                return f"{name} is missing"
        for name, value in config.pairs:
            if own and name in own:
                reason = own[name](value, config, problem, device)
            elif name in options:
                reason = refinements.option_error(name, config, problem, device)
            elif name in known:
                reason = _misfit(name, value, known[name])
            else:
                return f"{name} is no parameter on {device.arch}"
            if reason:
                return f"{name} is {reason}"
        warps = config.integer("num_warps")
        if warps * device.warp_size > tile_resources.MOST_THREADS and not device.is_interpreter:
            return (
                f"num_warps is {warps}: {warps * device.warp_size} threads, a block has {tile_resources.MOST_THREADS}"
            )
        return None

    source = f"the kernel's own: tl.arange takes powers of two; options: {refinements.SOURCE}"
    return Rule("parameters", source, malformed, fatal=True)


def _misfit(name: str, value: Value, values: tuple[Value, ...]) -> str | None:
    """What is wrong with a parameter's value, or None; powers of two may lie outside the axis."""
    if isinstance(values[0], bool):
        return None if isinstance(value, bool) else f"{value!r}: expected true or false"
    if isinstance(values[0], str):
        return None if value in values else f"{value!r}: expected {' or '.join(map(str, values))}"
    lowest = 0 if 0 in values or name in ("BLOCK_SIZE_N_REST", "GROUP_SIZE_M", "waves_per_eu") else 1
    if isinstance(value, (str, bool)) or value < lowest:
        return f"{value!r}: expected an integer, {lowest} or more"
    known = value in values or not (name.startswith(("BLOCK", "SPLIT_N")) or name == "num_warps")
    if not known and value & (value - 1):
        return f"{value}, no power of two"
    return f"{value}, Triton takes {tile_resources.MOST_ELEMENTS}" if value > tile_resources.MOST_ELEMENTS else None


def shared_memory(needed: Callable[[Config, Problem, Device], int], source: str) -> Rule:
    """The rule that a block does not take more shared memory than the device has.

    Args:
        needed: a function for the bytes that a config takes.
        source: the module of that function, for messages.
    """

    def too_much(config: Config, problem: Problem, device: Device) -> str | None:
        taken = needed(config, problem, device)
        return f"{taken} B, a block has {device.shared_bytes}" if taken > device.shared_bytes else None

    return Rule("shared memory", f"{source}, shared_bytes; tests/compile", too_much, fatal=True)


@rule("dot size", "Triton's min_dot_size, NVIDIA backend", fatal=True, reads=("BLOCK_SIZE_K",))
def dot_size(config: Config, problem: Problem, device: Device) -> str | None:
    shortest = 1 if device.is_interpreter else tile_resources.shortest_k(problem)
    block_k = config.integer("BLOCK_SIZE_K")
    return f"BLOCK_SIZE_K is {block_k}, {problem.a_dtype} needs {shortest}" if block_k < shortest else None


@rule(
    "registers",
    "compiled for sm_90: 256 sums a thread always spilled, 128 sometimes; mma.sync: measured, see loads",
    reads=_WARPS,
)
def registers(config: Config, problem: Problem, device: Device) -> str | None:
    if device.is_interpreter:
        return None
    held, limit = tile_resources.accumulator_registers(config, device), 128
    if device.vendor == "amd":
        limit = 256  # a lane of CDNA has 512 registers, half of them only for sums; an NVIDIA thread has 255 in all
    elif tile_resources.uses_mma_sync(config, problem, device):
        limit = 64  # registers hold the operands of mma.sync too
    return f"a thread would hold {held:g} sums, {limit} fit" if held > limit else None


@rule("idle warps", "PTX ISA, mma.m16n8k16: 128 sums an instruction, one warp", reads=_WARPS)
def idle_warps(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    block_m, block_n, _ = tile_resources.tile(config)
    warps = config.integer("num_warps")
    if device.is_interpreter:
        return None
    if block_m * block_n < 256 * warps:
        return f"{warps} warps for {block_m}x{block_n} sums: fewer than two instructions' worth each"
    if warps > 4 and block_m * block_n < 64 * 4 * device.warp_size:
        return f"{warps} warps for {block_m}x{block_n} sums: 4 hold them without spilling"
    return None


@rule("tensor core shape", "PTX ISA, wgmma.mma_async: a warpgroup and 64 rows", reads=_WARPS)
def tensor_core_shape(config: Config, problem: Problem, device: Device) -> str | None:
    block_m, _, _ = tile_resources.tile(config)
    asynchronous = device.features.reads_shared and tile_resources.uses_tensor_cores(problem)
    if asynchronous and block_m >= 64 and config.integer("num_warps") < 4:
        return f"{block_m} rows with {config.integer('num_warps')} warps: wgmma and tcgen05 need 4"
    return None


@rule("matrix instruction", "AMD CDNA3 ISA guide, MFMA 16x16 and 32x32", reads=(*SIDES, "matrix_instr_nonkdim"))
def matrix_instruction(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    nonkdim = config.integer("matrix_instr_nonkdim", 0)
    block_m, block_n, _ = tile_resources.tile(config)
    if nonkdim > min(block_m, block_n):
        return f"matrix_instr_nonkdim {nonkdim} with {block_m}x{block_n}"
    # The larger instruction's longer latency shows unless it is issued at least twice along either side.
    if nonkdim == 32 and min(block_m, block_n) < 64:
        return f"matrix_instr_nonkdim 32 with {block_m}x{block_n}: one instruction across"
    return None


@rule(
    "kpack",
    "compiled for gfx942: 16x16 xf32 packed twice takes 32 values of K",
    fatal=True,
    reads=("BLOCK_SIZE_K", "kpack", "matrix_instr_nonkdim"),
)
def kpack(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    packed, block_k = config.integer("kpack", 1), config.integer("BLOCK_SIZE_K")
    if problem.precision == "tf32" and packed == 2 and block_k < 32 and config.integer("matrix_instr_nonkdim") == 16:
        return f"kpack 2 with BLOCK_SIZE_K {block_k}: the compiler fails"
    return None


@rule("padding", "the shape itself: the rest of such a tile is masked", reads=SIDES)
def padding(config: Config, problem: Problem, device: Device) -> str | None:
    block_m, block_n, _ = tile_resources.tile(config)
    smallest = _SMALLEST_INTERPRETED if device.is_interpreter else 16
    rows = tile_resources.next_power_of_two(max(smallest, problem.m))
    if dtype.is_fp8(problem.a_dtype) and device.features.wgmma:
        rows = max(64, rows)  # below 64 rows Hopper's fp8 is upcast to fp16 and multiplied by mma.sync
    columns = tile_resources.next_power_of_two(max(smallest, problem.n))
    if block_m > rows:
        return f"BLOCK_SIZE_M is {block_m}, {rows} covers M"
    return f"BLOCK_SIZE_N is {block_n}, {columns} covers N" if block_n > columns else None


def beyond_k_from(shortest: Callable[[Problem], int]) -> Rule:
    """The rule that no step along K is longer than what covers K; `shortest`: the kernel's least, always allowed."""

    @rule("beyond K", "the shape itself", reads=("BLOCK_SIZE_K",))
    def longer(config: Config, problem: Problem, device: Device) -> str | None:
        least = _SMALLEST_INTERPRETED if device.is_interpreter else shortest(problem)
        covering = tile_resources.next_power_of_two(max(least, problem.k))
        block_k = config.integer("BLOCK_SIZE_K")
        return f"BLOCK_SIZE_K is {block_k}, {covering} covers K" if block_k > covering else None

    return longer


beyond_k = beyond_k_from(tile_resources.shortest_k)


@rule(
    "short rows",
    "CUDA C++ Best Practices Guide, 32-byte sectors; PTX ISA, 128-byte swizzle",
    reads=(*_WARPS, "BLOCK_SIZE_K"),
)
def short_rows(config: Config, problem: Problem, device: Device) -> str | None:
    block_k, size = config.integer("BLOCK_SIZE_K"), dtype.ITEMSIZE[problem.a_dtype]
    asynchronous = tile_resources.asynchronous(config, problem, device)
    # Loads that pass through registers occupy them, so shorter rows leave room for a larger tile.
    shortest = 128 if asynchronous and tile_resources.asynchronous_copies(problem) == 2 else 64
    if device.is_interpreter or block_k * size >= min(shortest, problem.k * size):
        return None
    return f"BLOCK_SIZE_K of {block_k} loads {block_k * size} B of a row"


@rule("waves", "NVIDIA, Matrix Multiplication Background: reuse grows with the tile, tail effects vanish", reads=SIDES)
def waves(config: Config, problem: Problem, device: Device) -> str | None:
    block_m, block_n, _ = tile_resources.tile(config)
    waves = -(-problem.m // block_m) * -(-problem.n // block_n) / device.sm_count
    if device.is_interpreter or waves <= _MOST_WAVES or block_m * block_n >= _largest(problem):
        return None
    return f"{waves:.0f} waves of {block_m}x{block_n} tiles: a larger tile loads each operand less often"


def _largest(problem: Problem) -> int:
    """The sums of a 128x128 tile, or fewer if the output is narrower or elements are loaded one by one."""
    narrow = tile_resources.next_power_of_two(max(16, min(problem.m, problem.n)))
    return (128 if tile_resources.asynchronous_copies(problem) == 2 else 64) * min(128, narrow)


@rule("oblong", "bytes loaded a sum: (BM + BN) / (BM * BN)", reads=SIDES)
def oblong(config: Config, problem: Problem, device: Device) -> str | None:
    block_m, block_n, _ = tile_resources.tile(config)
    shorter, extent = (block_m, problem.m) if block_m <= block_n else (block_n, problem.n)
    if device.is_interpreter or max(block_m, block_n) <= _MOST_OBLONG * shorter or extent <= shorter:
        return None
    return f"{block_m}x{block_n} loads more than a squarer tile of the same area"


@rule("group", "one wave of tiles shares the L2 in any order")
def group(config: Config, problem: Problem, device: Device) -> str | None:
    group = config.integer("GROUP_SIZE_M", 1)
    tiles_m, tiles_n, _ = tile_resources.tile_counts(config, problem)
    if group > 1 and tiles_m * tiles_n <= device.sm_count:
        return f"GROUP_SIZE_M of {group} for {tiles_m * tiles_n} tiles, which all run at once"
    return None


@rule("below wgmma", "PTX ISA: mma.sync has half the rate of wgmma or less", reads=(*_WARPS, "SPLIT_K"))
def below_wgmma(config: Config, problem: Problem, device: Device) -> str | None:
    """Reject tiles without the asynchronous matrix instruction if tiles with it would fill the device."""
    block_m, block_n, _ = tile_resources.tile(config)
    warps = config.integer("num_warps")
    possible = tile_resources.reads_shared(64, block_n, 4, problem, device)
    if not possible or tile_resources.asynchronous(config, problem, device):
        return None
    filling = -(-problem.m // 64) * -(-problem.n // 64) >= device.sm_count
    if problem.m >= 64 and (filling or "SPLIT_K" in config):
        return f"{block_m}x{block_n} with {warps} warps is multiplied by mma.sync"
    return None


INSTRUCTIONS = (idle_warps, tensor_core_shape, below_wgmma)
EXTENTS = (padding, beyond_k, short_rows)
OF_DOTS = (dot_size, registers, *INSTRUCTIONS, *EXTENTS)
"""The rules of a kernel that loads by pointers or descriptors and may split sums, in the order in which they speak."""
