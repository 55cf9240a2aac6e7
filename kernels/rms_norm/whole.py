"""The `rms_norm_whole` kernel: reads rows that fit into a program's registers once, and writes them once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.program import spec_of
from tuner.kernels.elementwise import rules
from tuner.kernels.elementwise.spec import MOST_COLUMNS, Tensors, lacking
from tuner.kernels.rms_norm import whole_jit as rms_norm_kernel
from tuner.kernels.rms_norm.operands import EPS, RMS_NORM, eps_of
from tuner.kernels.softmax import space as softmax_space
from tuner.kernels.space import tile_rules
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

NAME = "rms_norm_whole"
VERSION = 1
_MOST_THREADS = 512
"""The default's threads of a program. More of them wait longer for each other, where fewer hold a row as well."""


def program(inputs: Tensors, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    rows, columns = inputs.a.shape
    strides, programs, constants, options = softmax_space.static_of(inputs, config)
    constants = {**constants, "EPS": eps_of(inputs.problem), "OFFSET": inputs.offset}
    arguments = (inputs.a, inputs.b, inputs.out, rows, columns, *strides)
    return (Launch(rms_norm_kernel.norm_kernel, (programs,), arguments, constants, options),)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if problem.k != 1:
        return f"K is {problem.k}: a matrix's problem is Problem(M, N, 1, op='rms_norm', extras={{'eps': 1e-6}})"
    if problem.n > MOST_COLUMNS:
        return f"N is {problem.n}: a program's registers hold {MOST_COLUMNS}; use torch.nn.functional.rms_norm"
    return lacking(problem, device, ("nn",), (EPS,))


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(device), RULES)


def _axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    if device.is_interpreter:
        return {"BLOCK_SIZE_M": (4, 16), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (1, 2, 4, 8, 16, 32, 64, 128),
        "num_warps": rules.warps(device),
        **tile_rules.overlap(device),
    }


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """An upper bound on the shared memory of a program in bytes.

    Besides softmax's: where a program has several rows, or x is loaded element by element, the weight goes through
    shared memory to the threads that multiply by it. Source: compiled for sm_80, sm_90, sm_100, gfx942 and gfx950
    (tests/compile/test_elementwise.py).
    """
    is_spread = config.integer("BLOCK_SIZE_M") > 1 or not problem.aligned
    spread = 4 * next_power_of_two(problem.n) if is_spread else 0
    return max(softmax_space.shared_bytes(config, problem, device), spread)


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """See `elementwise.rules.estimate_us`."""
    loaded = softmax_space.elements(config, problem) * dtype.ITEMSIZE[problem.a_dtype]
    programs = softmax_space.programs(config, problem)
    return rules.estimate_us(RMS_NORM.bytes_moved(problem), loaded, programs, config, device)


def default_config(problem: Problem, device: Device) -> Config:
    """One row a program with two 16-byte loads per thread, and up to 512 threads; several rows where they are short.

    Short rows share a program if that is needed to keep `rules.BYTES_IN_FLIGHT` on a full multiprocessor, unless
    programs would not reach all multiprocessors.
    """
    size = dtype.ITEMSIZE[problem.a_dtype]

    def rank(config: Config) -> tuple[float, ...]:
        held, threads = softmax_space.elements(config, problem), rules.threads(config, device)
        idle = max(0, device.sm_count - softmax_space.programs(config, problem))
        short = max(0, rules.BYTES_IN_FLIGHT - softmax_space.in_flight(held, config, problem, device))
        away = abs(math.log2(held * size / threads / (2 * rules.VECTOR_BYTES)))
        return idle, max(0, threads - _MOST_THREADS), short, away, config.integer("BLOCK_SIZE_M")

    tried = space(problem, device)
    return tried.best(rank) or tried.smallest()


def simplicity(config: Config) -> tuple[Any, ...]:
    """The sort key of configs by simplicity: fewest rows and threads."""
    return config.integer("BLOCK_SIZE_M"), config.integer("num_warps"), config


RULES = (
    tile_rules.parameters(lambda _, device: _axes(device)),
    rules.too_large(softmax_space.elements),
    tile_rules.shared_memory(shared_bytes, "kernels/rms_norm/whole.py"),
    *rules.of_tile(softmax_space.elements, softmax_space.covering, lambda _: 1.0),
    softmax_space.beyond,
)

SPEC = spec_of(
    RMS_NORM,
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    shared_bytes=shared_bytes,
    estimate_us=estimate_us,
    sources=(rms_norm_kernel, program, *softmax_space.SOURCES),
    simplicity=simplicity,
)
