"""The `softmax_whole` kernel: reads rows that fit into a program's registers once, and writes them once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.elementwise import rules
from tuner.kernels.elementwise.spec import MOST_COLUMNS, Tensors
from tuner.kernels.softmax import space as softmax_space
from tuner.kernels.softmax import whole_jit as softmax_kernel
from tuner.kernels.softmax.operands import SOFTMAX
from tuner.kernels.space import refinements, tile_rules
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

NAME = "softmax_whole"
VERSION = 1
_RECOMPUTED = "RECOMPUTED"
"""The option to keep 16-bit operands packed in registers, and to compute their exponentials twice."""
_MAXNREG = "maxnreg"
"""The option to limit a thread's registers, so that two programs are resident."""
_ALONE = 8192
"""With more columns than this, a program's float32 values leave no registers for a second program."""
_PACKED = 16_384
"""Columns beyond which the default keeps aligned rows packed (RECOMPUTED).

With 32,768 columns of bfloat16 this took 0.82 of the time of float32 rows (measured on an H200 in November 2026).

Other rows are loaded element by element, and spill with 64 registers (compiled for sm_80, sm_90 and sm_100).
"""
_MOST_APART = 1024
"""The most columns in layout tn, where a sector of memory holds at least 8 rows of a column."""


def program(inputs: Tensors, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    rows, columns = inputs.a.shape
    strides, blocks, constants, options = softmax_space.static_of(inputs, config)
    constants = {**constants, "RECOMPUTED": _RECOMPUTED in config}
    arguments = (inputs.a, inputs.out, rows, columns, *strides)
    return (Launch(softmax_kernel.whole_kernel, (blocks,), arguments, constants, options),)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := softmax_space.supports(problem, device):
        return reason
    if problem.n > MOST_COLUMNS:
        return f"N is {problem.n}: a program's registers hold {MOST_COLUMNS}; softmax_online reads longer rows twice"
    if problem.layout[0] == "t" and problem.n > _MOST_APART:
        return (
            f"N is {problem.n}, of columns that lie apart: too few rows fit beside each other; softmax_online has more"
        )
    return None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    options = (_RECOMPUTED, _MAXNREG)
    return SearchSpace(NAME, problem, device, _axes(device), RULES, expand=_expand, options=options)


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a config and, for long 16-bit rows, the config that keeps x packed, so that two programs are resident."""
    yield config
    threads = rules.threads(config, device)
    limit = min(248, device.features.registers // (2 * threads))
    fits = softmax_space.elements(config, problem) <= limit * threads
    if problem.n > _ALONE and fits and device.vendor == "nvidia":
        yield config.replace(RECOMPUTED=True, maxnreg=limit)


def _axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    if device.is_interpreter:
        return {"BLOCK_SIZE_M": (4, 16), **rules.unlooped(device), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (1, 2, 4, 8, 16, 32, 64, 128),
        **rules.unlooped(device),
        "num_warps": rules.warps(device),
        **tile_rules.overlap(device),
    }


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """See `elementwise.rules.estimate_us`."""
    loaded = softmax_space.elements(config, problem) * dtype.ITEMSIZE[problem.a_dtype]
    return rules.estimate_us(
        SOFTMAX.bytes_moved(problem), loaded, softmax_space.programs(config, problem), config, device
    )


def default_config(problem: Problem, device: Device) -> Config:
    """A tile that keeps `rules.BYTES_IN_FLIGHT` on a full multiprocessor, with two 16-byte loads per thread.

    Programs have fewer rows if blocks would not reach all multiprocessors, and at least four warps for a row that they
    share. Threads have eight loads for long 16-bit rows, the longest of which stay packed, so that fewer warps need to
    synchronize.
    """
    size = dtype.ITEMSIZE[problem.a_dtype]
    loads = 8 if size == 2 and problem.n > _ALONE else 2
    packed = problem.n > _PACKED and problem.aligned

    def rank(config: Config) -> tuple[float, ...]:
        held = softmax_space.elements(config, problem)
        each = held * size / rules.threads(config, device)
        idle = max(0, device.sm_count - softmax_space.programs(config, problem))
        short = max(0, rules.BYTES_IN_FLIGHT - softmax_space.in_flight(held, config, problem, device))
        away = abs(math.log2(each / (loads * rules.VECTOR_BYTES)))
        odd = ("RECOMPUTED" in config) != packed
        return odd, idle, short, away, abs(config.integer("num_warps") - 4)

    tried = space(problem, device)
    return tried.best(rank) or tried.smallest()


def simplicity(config: Config) -> tuple[Any, ...]:
    """The sort key of configs by simplicity: fewest rows, threads and options."""
    return config.integer("BLOCK_SIZE_M"), config.integer("num_warps"), len(config), config


def _not_packed(value: Value, config: Config, problem: Problem, device: Device) -> str | None:
    if device.vendor != "nvidia":
        return f"{value}: written in NVIDIA's assembly, not for {device.arch}"
    if dtype.ITEMSIZE[problem.a_dtype] != 2:
        return f"{value}: {problem.a_dtype} has no 16 bits"
    threads = device.warp_size * config.integer("num_warps")
    if config.integer("BLOCK_SIZE_M") * next_power_of_two(problem.n) < 2 * threads:
        return f"{value}: a thread has less than a register of two"
    return None if value is True else f"{value!r}: expected true, or none"


def _no_limit(value: Value, config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if device.vendor != "nvidia":
        return f"{value}: an option of NVIDIA's assembler, not for {device.arch}"
    if isinstance(value, (bool, str)) or value % 8 or not 24 <= value <= 248:
        return f"{value!r}: expected a multiple of 8 from 24 to 248"
    threads = rules.threads(config, device)
    if value * threads > device.features.registers:
        return f"{value}: {threads} threads of so many, a multiprocessor has {device.features.registers}"
    return None


_OWN = {_RECOMPUTED: _not_packed, _MAXNREG: _no_limit, "PROGRAMS_PER_SM": refinements.only(0)}

RULES = (
    tile_rules.parameters(lambda _, device: _axes(device), own=_OWN),
    rules.too_large(softmax_space.elements),
    tile_rules.shared_memory(softmax_space.shared_bytes, "kernels/softmax/space.py"),
    *rules.of_tile(
        softmax_space.elements, softmax_space.covering, lambda config: 0.5 if _RECOMPUTED in config else 1.0
    ),
    softmax_space.beyond,
    softmax_space.sectors,
)

SPEC = softmax_space.softmax_spec(
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    sources=(program,),
    estimate_us=estimate_us,
    simplicity=simplicity,
)
