"""Rules and formulas of kernels that only move memory: what their threads hold, and what keeps the memory busy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import Rule
from tuner.kernels.space import refinements
from tuner.kernels.space.tile_resources import MOST_THREADS
from tuner.problem import Problem, dtype

MOST_ELEMENTS = 1 << 20
"""Of a tile: Triton's TRITON_MAX_TENSOR_NUMEL."""
BYTES_IN_FLIGHT = 36 << 10
"""That a multiprocessor has to wait for at any time to keep the memory busy.

Little's law: 4.8 TB/s over 132 multiprocessors at 1.98 GHz (H200 data sheet) are 18 bytes a cycle; in a busy device a
load takes 2,000 cycles (measured), idle 479 (arXiv 2402.13499).
"""
VECTOR_BYTES = 16
_REACHED = 0.85
"""The share of the peak bandwidth that a kernel reaches: measured on an H200. It ranks, and does no more."""
_LINE_BYTES = 128


def threads(config: Config, device: Device) -> int:
    """Threads of a program."""
    return config.integer("num_warps") * device.warp_size


def resident(config: Config, device: Device) -> int:
    """Programs that a multiprocessor has threads for at once."""
    return max(1, min(device.features.blocks, device.features.threads // threads(config, device)))


def estimate_us(moved: int, loaded: int, blocks: int, config: Config, device: Device) -> float:
    """How long a launch takes, to rank configs by: bytes over the bandwidth that the bytes in flight can keep up.

    Args:
        moved: bytes that are read and written in all.
        loaded: bytes that a program waits for at once.
        blocks: of work, in all: a program each, unless programs take turns.
        config, device: what runs where.
    """
    each = config.integer("PROGRAMS_PER_SM") or min(resident(config, device), -(-blocks // device.sm_count))
    rounds = blocks / (each * device.sm_count)
    # The last round takes as long as a full one, unless programs take blocks as they come.
    whole = 1.0 if rounds > 8 else -(-blocks // (each * device.sm_count)) / rounds
    share = min(1.0, each * loaded / BYTES_IN_FLIGHT)
    return moved * whole / (_REACHED * device.peak_bytes_per_us * share)


def loads_ahead(config: Config) -> int:
    """Blocks that a program waits for at once: one, or all stages but one of a loop over blocks."""
    return max(1, config.integer("num_stages") - 1) if config.integer("PROGRAMS_PER_SM") else 1


def registers(config: Config, device: Device) -> int:
    """Registers of a thread when one program has a multiprocessor to itself."""
    return min(device.features.thread_registers, device.features.registers // threads(config, device))


def warps(device: Device) -> tuple[Value, ...]:
    """num_warps from 1 to 32, as far as a block may have so many threads."""
    return tuple(count for count in (1, 2, 4, 8, 16, 32) if count * device.warp_size <= MOST_THREADS)


def parameters(
    axes: Callable[[Device], Mapping[str, tuple[Value, ...]]],
    options: tuple[str, ...] = (),
    own: Mapping[str, refinements.OptionError] | None = None,
) -> Rule:
    """The rule that a config has a kernel's parameters, each of a size the compiler and the device take.

    Args:
        axes: the kernel's, of a device.
        options: that a config may have besides, see `refinements`.
        own: options that no other kernel has.
    """

    def malformed(config: Config, problem: Problem, device: Device) -> str | None:
        known = axes(device)
        if missing := [name for name in known if name not in config]:
            return f"{missing[0]} is missing"
        for name, value in config.pairs:
            if name in options or name in (own or ()):
                reason = refinements.option_error(name, config, problem, device, own or {})
            elif name in known:
                reason = _misfit(name, value)
            else:
                return f"{name} is no parameter on {device.arch}"
            if reason:
                return f"{name} is {reason}"
        if threads(config, device) > MOST_THREADS:
            return f"{config.integer('num_warps')} warps are {threads(config, device)} threads, a block has 1024"
        return None

    return Rule("parameters", "tl.arange takes powers of two; CUDA C++ Programming Guide", malformed, fatal=True)


def _misfit(name: str, value: Value) -> str | None:
    if name == "launch_pdl":
        return None if isinstance(value, bool) else f"{value!r}, no truth value"
    lowest = 0 if name == "PROGRAMS_PER_SM" else 1
    if isinstance(value, (str, bool)) or value < lowest:
        return repr(value)
    power_of_two = name.startswith(("BLOCK", "SPLIT")) or name == "num_warps"
    if power_of_two and value & (value - 1):
        return f"{value}, no power of two"
    return f"{value}, Triton takes {MOST_ELEMENTS}" if value > MOST_ELEMENTS else None


def idle_threads(elements: Callable[[Config, Problem], int], needed: Callable[[Problem], int]) -> Rule:
    """The rule that every thread has an element of its own, where there are as many.

    Args:
        elements: of a config's tile.
        needed: elements of the smallest tile that covers the problem.
    """

    def idle(config: Config, problem: Problem, device: Device) -> str | None:
        held, count = elements(config, problem), threads(config, device)
        if device.is_interpreter or held >= count or (held >= needed(problem) and config.integer("num_warps") == 1):
            return None
        return f"{held} elements for {count} threads: the rest repeat them"

    return Rule("idle threads", "Triton's blocked layout repeats a tile that is smaller than the program", idle)


def narrow_loads(elements: Callable[[Config, Problem], int], needed: Callable[[Problem], int]) -> Rule:
    """The rule that a warp asks for whole lines of 128 bytes, where there are as many.

    Args:
        elements: of a config's tile.
        needed: elements of the smallest tile that covers the problem.
    """

    def narrow(config: Config, problem: Problem, device: Device) -> str | None:
        held = elements(config, problem) * dtype.ITEMSIZE[problem.a_dtype]
        least = min(_LINE_BYTES * config.integer("num_warps"), needed(problem) * dtype.ITEMSIZE[problem.a_dtype])
        if device.is_interpreter or held >= least:
            return None
        return f"{held} bytes for {config.integer('num_warps')} warps: a warp's line has {_LINE_BYTES}"

    return Rule("narrow loads", "CUDA C++ Best Practices Guide, coalesced access to global memory", narrow)


def crowded(values: Callable[[Config, Problem, Device], float], share: float) -> Rule:
    """The rule that a thread's values leave registers for the rest.

    Args:
        values: 32-bit values that a thread holds at a time.
        share: of its registers that they may take.
    """

    def spills(config: Config, problem: Problem, device: Device) -> str | None:
        held, room = values(config, problem, device), share * registers(config, device)
        if device.is_interpreter or held <= room:
            return None
        return f"a thread would hold {held:g} values, {room:g} fit beside the rest"

    return Rule("registers", "registers of a thread and of a multiprocessor (CUDA C++ Programming Guide)", spills)


def of_tile(
    elements: Callable[[Config, Problem], int],
    needed: Callable[[Problem], int],
    values: Callable[[Config, Problem, Device], float],
) -> tuple[Rule, ...]:
    """The rules that a tile has neither too little nor too much for its threads; the arguments are those of each."""
    return idle_threads(elements, needed), narrow_loads(elements, needed), crowded(values, 0.5)


def too_large(elements: Callable[[Config, Problem], int]) -> Rule:
    """The rule that Triton takes a tile of so many elements."""

    def beyond(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
        held = elements(config, problem)
        return f"{held} elements, Triton takes {MOST_ELEMENTS}" if held > MOST_ELEMENTS else None

    return Rule("tile", "Triton's TRITON_MAX_TENSOR_NUMEL", beyond, fatal=True, early=True)


def takes_turns(blocks: Callable[[Config, Problem], int], shared: Callable[[Config, Problem, Device], int]) -> Rule:
    """The rule that programs which take block after block all run at once, and each takes a second one.

    Args:
        blocks: of a config, in all.
        shared: bytes of shared memory that a program takes.
    """

    def wasted(config: Config, problem: Problem, device: Device) -> str | None:
        each = config.integer("PROGRAMS_PER_SM")
        if not each or device.is_interpreter:
            return None
        if each * device.sm_count >= blocks(config, problem):
            return f"{each} programs on each of {device.sm_count} multiprocessors: none would take a second block"
        if each * threads(config, device) > device.features.threads:
            return f"{each} programs of {threads(config, device)} threads: {device.features.threads} fit"
        taken = each * shared(config, problem, device)
        return f"{each} programs take {taken} B, {device.shared_bytes} fit" if taken > device.shared_bytes else None

    return Rule("residence", "CUDA C++ Programming Guide, threads and shared memory of a multiprocessor", wasted)


def without_loop(config: Config, problem: Problem, device: Device) -> Config:  # noqa: ARG001
    """One speaks for all num_stages where no program has a loop to pipeline."""
    first = stages(device)[0]
    if config.integer("PROGRAMS_PER_SM") or config.integer("num_stages") == first:
        return config
    return config.replace(num_stages=first)


def stages(device: Device, values: tuple[int, ...] = (3, 4, 5)) -> tuple[Value, ...]:
    """Depths of a pipeline; Triton pipelines loads that feed no `tl.dot` on NVIDIA alone (seen in AMD's assembly)."""
    return values if device.vendor == "nvidia" else (2,)
