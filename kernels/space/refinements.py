"""Options that few configs gain by, as no axis: which there are, where they can be, and what a search tries of leaders.

`num_ctas`: so many blocks, a cluster, share one tile, or loads (`SHARE_B`: of B). `maxnreg`: registers of a thread at
most, so that more programs reside; `waves_per_eu` is AMD's word for it. `warp_specialize`: warps of their own load, and
on Blackwell issue the products, while others store. `PDL_TRIGGER`: of its steps along K, how many eighths a program
does before the next kernel may start beside it. `PREFETCH_KIB`: of its share of B, how much a program moves to the L2
while it waits for the kernel before. A config without one does as Triton, or the kernel, does without being told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernels.space import tile_resources
from tuner.problem import Problem, dtype

NUM_CTAS, MAXNREG, WARP_SPECIALIZE = "num_ctas", "maxnreg", "warp_specialize"
WAVES_PER_EU = "waves_per_eu"
PDL_TRIGGER, PREFETCH_KIB = "PDL_TRIGGER", "PREFETCH_KIB"
AFTER_LAST_STEP = 8
"""The PDL_TRIGGER of programs that have read all there is to read."""
SHARE_B = "SHARE_B"
"""A kernel's own: the blocks of a cluster lie along M and share B's loads, not along N to share A's."""
SOURCE = "PTX ISA, .maxnreg and .reqnctapercluster; compiled by Triton 3.6, 3.7 and 3.9 for sm_90 and sm_100"
_LARGEST_CLUSTER = 8
_MOST_WAVES = 8
_OTHER_REGISTERS = 32
"""Registers for all but the values that a thread holds: wgmma of 128 sums a thread asks for 154 at least (ptxas)."""
_MORE_PROGRAMS = (2, 3, 4)
_MOST_LIMITS = 2
_SHARED_TILE = 128 * 128
_PREFETCHED_KIB = 32
_EARLIEST, _EARLIER, _LATER = 2, 3, 6
"""Eighths tried with a prefetch. Of 128 KiB configs were 0.7% faster at best than of 32, and up to an eighth slower
(measured on an H200 in November 2026)."""
_SHORT_BYTES = 256 * 1024
"""A program's share of B up to which it ends so soon that the next one comes earlier, and with more."""
_ROW_KIB, _MIDWAY = 2, 4
"""Tried of each row of B that a program without `tl.dot` reads, and the trigger with it. Of 8 KiB configs were slower
than of none (measured on an H200 in November 2026)."""

OptionError = Callable[[Value, Config, Problem, Device], str | None]
"""What is wrong with an option's value, or None."""
_NONE: Mapping[str, OptionError] = {}


def option_error(
    name: str, config: Config, problem: Problem, device: Device, own: Mapping[str, OptionError] = _NONE
) -> str | None:
    """Why the value that a config gives an option cannot be, or None.

    Args:
        name: the option.
        config, problem, device: what runs where.
        own: the kernel's own options, which no other has.
    """
    return (own.get(name) or _reasons[name])(config[name], config, problem, device)


def _no_cluster(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if not device.features.clusters:
        return f"{value}: no clusters of blocks on {device.arch}"
    if isinstance(value, (bool, str)) or value & (value - 1) or not 2 <= value <= _LARGEST_CLUSTER:
        return f"{value!r}: expected 2, 4 or {_LARGEST_CLUSTER}, or none for single blocks"
    return None


def _nothing_shared(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if NUM_CTAS not in config:
        return f"{value!r}: without num_ctas there is no cluster to share"
    return None if value is True else f"{value!r}: expected true, or none"


def _no_limit(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if device.vendor != "nvidia":
        return f"{value}: an option of NVIDIA's assembler, not for {device.arch}"
    if isinstance(value, (bool, str)) or value % 8 or not 24 <= value <= 248:
        return f"{value!r}: expected a multiple of 8 from 24 to 248"
    threads = config.integer("num_warps") * device.warp_size
    if value * threads > device.features.registers:
        return f"{value}: {threads} threads of so many, a multiprocessor has {device.features.registers}"
    return None


def _no_waves(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if device.vendor != "amd":
        return f"{value}: an option for AMD, not for {device.arch}"
    wrong = isinstance(value, (bool, str)) or not 1 <= value <= _MOST_WAVES
    return f"{value!r}: a SIMD has 1 to {_MOST_WAVES} waves" if wrong else None


def _no_partitions(value: Value, config: Config, problem: Problem, device: Device) -> str | None:
    if value is not True:
        return f"{value!r}: expected true, or none"
    if tile_resources.uses_tcgen05(config, problem, device):
        return None
    if not tile_resources.uses_wgmma(config, problem, device) or config.kernel != "tma":
        return f"{value}: it takes tcgen05, or wgmma by the kernel tma"
    block_m, block_n, _ = tile_resources.tile(config)
    if (block_m, config.integer("num_warps")) != (64, 4) or block_n > 128:
        # Two consumers each have half of a larger tile, but descriptors that the host made are of whole ones.
        return f"{value}: 64 rows, 128 columns and 4 warps are what Hopper's takes, this is {config.label}"
    return None


def _no_trigger(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if not config.get("launch_pdl", False):
        return f"{value}: without launch_pdl the next kernel starts after this one"
    wrong = isinstance(value, (bool, str)) or not 1 <= value <= AFTER_LAST_STEP
    return f"{value!r}: expected 1 to {AFTER_LAST_STEP} eighths of the steps along K, or none" if wrong else None


def _no_prefetch(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if not config.get("launch_pdl", False):
        return f"{value}: without launch_pdl there is no kernel before to wait for"
    if isinstance(value, (bool, str)) or value & (value - 1) or not 1 <= value <= 256:
        return f"{value!r}: expected a power of two from 1 to 256, or none"
    if problem.layout[1] != "t" or not problem.aligned:
        return f"{value}: it takes rows of B along K that begin at multiples of 16 bytes"
    return None


_reasons = {
    NUM_CTAS: _no_cluster,
    SHARE_B: _nothing_shared,
    MAXNREG: _no_limit,
    WAVES_PER_EU: _no_waves,
    WARP_SPECIALIZE: _no_partitions,
    PDL_TRIGGER: _no_trigger,
    PREFETCH_KIB: _no_prefetch,
}


def of_tiles(
    options: tuple[str, ...], shared_bytes: Callable[[Config, Problem, Device], int]
) -> Callable[[Config, Problem, Device], Iterable[Config]]:
    """`SearchSpace.refine` of a kernel of `tl.dot`: its options, one at a time; rules reject those that cannot be.

    Args:
        options: of the kernel.
        shared_bytes: of a block.
    """

    def refine(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
        block_m, block_n, _ = tile_resources.tile(config)
        # Columns are shared out; halves of them are not, nor is a tile of more rows than columns, by most releases.
        shares = block_n >= block_m and config.integer("EPILOGUE_PARTS", 1) == 1
        if PREFETCH_KIB in options and _no_prefetch(_PREFETCHED_KIB, config, problem, device) is None:
            ahead = config.replace(**{PREFETCH_KIB: _PREFETCHED_KIB})
            yield from (ahead, ahead.replace(**{PDL_TRIGGER: _EARLIER}))
            if _share_of_b(config, problem) > _SHORT_BYTES:
                yield ahead.replace(**{PDL_TRIGGER: _LATER})
            else:
                yield config.replace(**{PDL_TRIGGER: _EARLIEST, PREFETCH_KIB: 2 * _PREFETCHED_KIB})
        if NUM_CTAS in options and shares and block_m * block_n >= _SHARED_TILE:
            yield config.replace(num_ctas=2)
        if MAXNREG in options:
            yield from fewer_registers(config, device, held_sums(config, device), shared_bytes(config, problem, device))
        if WARP_SPECIALIZE in options:
            yield config.replace(warp_specialize=True)
        if WAVES_PER_EU in options:
            yield config.replace(waves_per_eu=2)

    return refine


def of_rows(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """`SearchSpace.refine` of a kernel whose programs read rows of B by plain loads: the next kernel's first bytes."""
    if _no_prefetch(_ROW_KIB, config, problem, device) is None:
        ahead = config.replace(**{PREFETCH_KIB: _ROW_KIB * config.integer("BLOCK_SIZE_N")})
        yield from (ahead, ahead.replace(**{PDL_TRIGGER: _MIDWAY}))


def _share_of_b(config: Config, problem: Problem) -> float:
    """Bytes of B that a program reads."""
    row = problem.k * dtype.ITEMSIZE[problem.b_dtype]
    return config.integer("BLOCK_SIZE_N") * row / config.integer("SPLIT_K", 1)


def held_sums(config: Config, device: Device) -> float:
    """32-bit sums that a thread holds, of both widths where a tile has two."""
    columns = config.integer("BLOCK_SIZE_N") + config.integer("BLOCK_SIZE_N_REST")
    return config.integer("BLOCK_SIZE_M") * columns / (device.warp_size * config.integer("num_warps"))


def fewer_registers(config: Config, device: Device, held: float, shared_bytes: int) -> Iterator[Config]:
    """A config with the values of maxnreg that let two, three or four programs reside, by registers and shared memory.

    Args:
        config, device: what runs where.
        held: 32-bit values that a thread holds at a time.
        shared_bytes: of a program.
    """
    threads = config.integer("num_warps") * device.warp_size
    reserved = device.features.reserved_bytes
    room = (device.shared_bytes + reserved) // (shared_bytes + reserved)
    per_thread = device.features.registers // threads
    limits = [per_thread // programs // 8 * 8 for programs in _MORE_PROGRAMS if programs <= room]
    fitting = [limit for limit in limits if held + _OTHER_REGISTERS <= limit <= 248]
    yield from (config.replace(maxnreg=limit) for limit in fitting[:_MOST_LIMITS])


def specialized_bytes(config: Config, device: Device) -> int:
    """Shared memory that a specialized loop takes besides: barriers; on Hopper the sums, handed to those who store.

    Source: an upper bound; compiled by Triton 3.6, 3.7 and 3.9 for sm_90 and sm_100 (tests/compile).
    """
    if WARP_SPECIALIZE not in config:
        return 0
    sums = 4 * config.integer("BLOCK_SIZE_M") * config.integer("BLOCK_SIZE_N") if device.features.wgmma else 0
    return sums + 512
