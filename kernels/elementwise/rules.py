"""Rules and formulas for kernels that only move memory: what threads hold, and what keeps the memory busy."""

from __future__ import annotations

from collections.abc import Callable

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import Rule
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_resources import MOST_ELEMENTS, MOST_THREADS
from tuner.problem import Problem, dtype

BYTES_IN_FLIGHT = 36 << 10
"""The bytes that a multiprocessor must have in flight to keep the memory busy.

Little's law: 4.8 TB/s over 132 multiprocessors at 1.98 GHz (H200 data sheet) are 18 bytes per cycle. A load takes 2,000
cycles on a busy device (measured), and 479 on an idle one (arXiv 2402.13499).
"""
VECTOR_BYTES = 16
_REACHED = 0.85
"""The fraction of the peak bandwidth that a kernel reaches, measured on an H200. It only serves to rank configs."""
_LINE_BYTES = 128


def threads(config: Config, device: Device) -> int:
    """Number of threads in a program."""
    return config.integer("num_warps") * device.warp_size


def resident(config: Config, device: Device) -> int:
    """Number of programs for which a multiprocessor has threads."""
    return max(1, min(device.features.blocks, device.features.threads // threads(config, device)))


def estimate_us(moved: int, loaded: int, blocks: int, config: Config, device: Device) -> float:
    """Estimate a launch's time, to rank configs: bytes over the bandwidth that the bytes in flight can sustain.

    Args:
        moved: total bytes read and written.
        loaded: bytes that a program waits for at once.
        blocks: total blocks of work, one for each program.
        config, device: the config and its device.
    """
    each = min(resident(config, device), -(-blocks // device.sm_count))
    rounds = blocks / (each * device.sm_count)
    # With few rounds, a partial last one takes as long as a full one.
    whole = 1.0 if rounds > 8 else -(-blocks // (each * device.sm_count)) / rounds
    share = min(1.0, each * loaded / BYTES_IN_FLIGHT)
    return moved * whole / (_REACHED * device.peak_bytes_per_us * share)


def registers(config: Config, device: Device) -> int:
    """Registers of a thread if one program has a multiprocessor to itself."""
    return min(device.features.thread_registers, device.features.registers // threads(config, device))


def warps(device: Device) -> tuple[Value, ...]:
    """Values of num_warps from 1 to 32, up to the most threads of a block."""
    return tuple(count for count in (1, 2, 4, 8, 16, 32) if count * device.warp_size <= MOST_THREADS)


def of_tile(
    elements: Callable[[Config, Problem], int],
    needed: Callable[[Problem], int],
    each: Callable[[Config], float] = lambda _: 2.0,
) -> tuple[Rule, ...]:
    """The rules that every thread has an element of its own, that warps load whole lines, and that registers suffice.

    Args:
        elements: the elements of a config's tile.
        needed: the elements of the smallest tile that covers the problem.
        each: 32-bit values that a thread holds for an element: two that it adds, or the element and its sum.
    """

    @rule("idle threads", "Triton's blocked layout repeats a tile that is smaller than the program")
    def idle(config: Config, problem: Problem, device: Device) -> str | None:
        held, count = elements(config, problem), threads(config, device)
        if device.is_interpreter or held >= count or (held >= needed(problem) and config.integer("num_warps") == 1):
            return None
        return f"{held} elements for {count} threads: the rest repeat them"

    @rule("narrow loads", "CUDA C++ Best Practices Guide, coalesced access to global memory")
    def narrow(config: Config, problem: Problem, device: Device) -> str | None:
        size, warps = dtype.ITEMSIZE[problem.a_dtype], config.integer("num_warps")
        held = elements(config, problem) * size
        if device.is_interpreter or held >= min(_LINE_BYTES * warps, needed(problem) * size):
            return None
        return f"{held} bytes for {warps} warps: a warp's line has {_LINE_BYTES}"

    @rule("registers", "registers of a thread and of a multiprocessor (CUDA C++ Programming Guide)")
    def spills(config: Config, problem: Problem, device: Device) -> str | None:
        held = elements(config, problem) * each(config) / threads(config, device)
        room = 0.5 * registers(config, device)
        if device.is_interpreter or held <= room:
            return None
        return f"a thread would hold {held:g} values, {room:g} fit beside the rest"

    return idle, narrow, spills


def too_large(elements: Callable[[Config, Problem], int]) -> Rule:
    """The rule that a tile has no more elements than Triton accepts."""

    @rule("tile", "Triton's TRITON_MAX_TENSOR_NUMEL", fatal=True, early=True)
    def beyond(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
        held = elements(config, problem)
        return f"{held} elements, Triton takes {MOST_ELEMENTS}" if held > MOST_ELEMENTS else None

    return beyond


def stages(device: Device, values: tuple[int, ...]) -> tuple[Value, ...]:
    """Pipeline depths. Loads that feed no `tl.dot` are pipelined only on NVIDIA, as AMD's assembly shows."""
    return values if device.vendor == "nvidia" else (2,)


def unlooped(device: Device) -> dict[str, tuple[Value, ...]]:
    """The axes of a loop over blocks, which won nowhere; the values left are those of configs without it."""
    return {"PROGRAMS_PER_SM": (0,), "num_stages": stages(device, (3,))}
