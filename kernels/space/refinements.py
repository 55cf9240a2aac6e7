"""Options from which few configs gain, and which a search therefore tries only on its best configs.

`num_ctas`: blocks of a cluster, which share one tile or the loads of one operand (of B with `SHARE_B`).
`maxnreg`: an upper limit on a thread's registers, so that more programs are resident; on AMD it is `waves_per_eu`.
`warp_specialize`: separate warps load, and on Blackwell issue the products, while others store.
`PDL_TRIGGER`: how many eighths of its steps along K a program completes before the next kernel may start.
`PREFETCH_KIB`: how much of its share of B a program prefetches into the L2 while it waits for the previous kernel.
A config without an option leaves the choice to Triton or to the kernel.
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
"""The PDL_TRIGGER of programs that let the next kernel start once they have read everything."""
SHARE_B = "SHARE_B"
"""Whether the blocks of a cluster lie along M and share B's loads, instead of along N to share A's."""
SOURCE = "PTX ISA, .maxnreg and .reqnctapercluster; compiled by Triton 3.6, 3.7 and 3.9 for sm_90 and sm_100"
_LARGEST_CLUSTER = 8
_MOST_WAVES = 8
_OTHER_REGISTERS = 32
"""Registers besides those for a thread's sums: wgmma with 128 sums per thread needs at least 154 (ptxas)."""
_MORE_PROGRAMS = (2, 3, 4)
_MOST_LIMITS = 2
_SHARED_TILE = 128 * 128
_PREFETCHED_KIB = 32
_EARLIEST, _EARLIER, _LATER = 2, 3, 6
"""Values of PDL_TRIGGER to try with a prefetch. With 128 KiB instead of 32, configs were at best 0.7% faster and up to
an eighth slower (measured on an H200 in November 2026)."""
_SHORT_BYTES = 256 * 1024
"""A program whose share of B is at most this ends so soon that the next one should start earlier and prefetch more."""
_ROW_KIB, _MIDWAY = 2, 4
"""KiB to prefetch of each row of B in a program without `tl.dot`, and the PDL_TRIGGER to try with it. With 8 KiB,
configs were slower than without a prefetch (measured on an H200 in November 2026)."""

OptionError = Callable[[Value, Config, Problem, Device], str | None]
"""What is wrong with an option's value, or None."""
_NONE: Mapping[str, OptionError] = {}


def option_error(
    name: str, config: Config, problem: Problem, device: Device, own: Mapping[str, OptionError] = _NONE
) -> str | None:
    """Why a config's value for an option is invalid, or None.

    Args:
        name: the option.
        config, problem, device: the config, and the problem and device that it is for.
        own: checks of the options that only this kernel has.
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
        # Larger tiles are halved between two consumers, but the host's descriptors are for whole tiles.
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
    """Make the `SearchSpace.refine` of a `tl.dot` kernel, which tries one option at a time; rules reject invalid ones.

    Args:
        options: the kernel's options.
        shared_bytes: a function for the shared memory of one block in bytes.
    """

    def refine(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
        block_m, block_n, _ = tile_resources.tile(config)
        # A cluster divides a tile's columns. Most Triton releases divide neither halves nor tiles taller than wide.
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
    """`SearchSpace.refine` of a kernel that reads rows of B by plain loads: it tries prefetches of each row's start."""
    if _no_prefetch(_ROW_KIB, config, problem, device) is None:
        ahead = config.replace(**{PREFETCH_KIB: _ROW_KIB * config.integer("BLOCK_SIZE_N")})
        yield from (ahead, ahead.replace(**{PDL_TRIGGER: _MIDWAY}))


def _share_of_b(config: Config, problem: Problem) -> float:
    """Bytes of B that a program reads."""
    row = problem.k * dtype.ITEMSIZE[problem.b_dtype]
    return config.integer("BLOCK_SIZE_N") * row / config.integer("SPLIT_K", 1)


def held_sums(config: Config, device: Device) -> float:
    """32-bit sums that a thread holds, including those of a tile's second width."""
    columns = config.integer("BLOCK_SIZE_N") + config.integer("BLOCK_SIZE_N_REST")
    return config.integer("BLOCK_SIZE_M") * columns / (device.warp_size * config.integer("num_warps"))


def fewer_registers(config: Config, device: Device, held: float, shared_bytes: int) -> Iterator[Config]:
    """Yield a config with each maxnreg that lets two, three or four programs be resident on a multiprocessor.

    Args:
        config, device: the config and its device.
        held: 32-bit values that a thread holds at a time.
        shared_bytes: shared memory of a program in bytes.
    """
    threads = config.integer("num_warps") * device.warp_size
    reserved = device.features.reserved_bytes
    room = (device.shared_bytes + reserved) // (shared_bytes + reserved)
    per_thread = device.features.registers // threads
    limits = [per_thread // programs // 8 * 8 for programs in _MORE_PROGRAMS if programs <= room]
    fitting = [limit for limit in limits if held + _OTHER_REGISTERS <= limit <= 248]
    yield from (config.replace(maxnreg=limit) for limit in fitting[:_MOST_LIMITS])


def specialized_bytes(config: Config, device: Device) -> int:
    """An upper bound on the extra shared memory of a warp-specialized loop, in bytes.

    It holds barriers and, on Hopper, the sums that are passed to the warps that store. Source: compiled by Triton 3.6,
    3.7 and 3.9 for sm_90 and sm_100 (tests/compile).
    """
    if WARP_SPECIALIZE not in config:
        return 0
    sums = 4 * config.integer("BLOCK_SIZE_M") * config.integer("BLOCK_SIZE_N") if device.features.wgmma else 0
    return sums + 512
