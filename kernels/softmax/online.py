"""The `softmax_online` kernel: reads rows of any length twice, for the maximum and the sum, and for the result."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.elementwise import rules
from tuner.kernels.elementwise.spec import Tensors
from tuner.kernels.softmax import online_jit as softmax_online_kernel
from tuner.kernels.softmax import space as softmax_space
from tuner.kernels.space import tile_rules
from tuner.kernels.space.rule import rule
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

NAME = "softmax_online"
VERSION = 1
FEWEST_COLUMNS = 2048
"""Rows below this length fit into the registers of a few warps."""
_SMALLEST = {"n": 512, "t": 32}
"""The smallest number of columns of a block, by the layout of x."""


def program(inputs: Tensors, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    rows, columns = inputs.a.shape
    strides, blocks, constants, options = softmax_space.static_of(inputs, config)
    constants = {**constants, "STAGES": config.integer("num_stages")}
    arguments = (inputs.a, inputs.out, rows, columns, *strides)
    return (Launch(softmax_online_kernel.online_kernel, (blocks,), arguments, constants, options),)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := softmax_space.supports(problem, device):
        return reason
    if problem.n < FEWEST_COLUMNS and problem.layout[0] == "n" and not device.is_interpreter:
        return f"N is {problem.n}: rows below {FEWEST_COLUMNS} need no second reading; softmax_whole serves them"
    if problem.n <= (softmax_space.INTERPRETED_COLUMNS if device.is_interpreter else _SMALLEST["t"]):
        return f"N is {problem.n}: a row is one block; softmax_whole serves it"
    return None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(device), RULES)


def _axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    if device.is_interpreter:
        blocks: tuple[Value, ...] = (softmax_space.INTERPRETED_COLUMNS, 512)
        return {"BLOCK_SIZE_M": (4, 16), "BLOCK_SIZE_N": blocks, "num_stages": (2,), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_M": (1, 2, 4, 8, 16, 32, 64, 128),
        "BLOCK_SIZE_N": (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
        "num_stages": rules.stages(device, (1, 2, 3, 4)),
        "num_warps": rules.warps(device),
        **tile_rules.overlap(device),
    }


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """See `elementwise.rules.estimate_us`."""
    size, programs = dtype.ITEMSIZE[problem.a_dtype], -(-problem.m // config.integer("BLOCK_SIZE_M"))
    loaded = softmax_space.elements(config, problem) * size * max(1, config.integer("num_stages") - 1)
    # The second read comes from the L2 if the rows that are being worked on fit into it.
    at_work = min(programs, rules.resident(config, device) * device.sm_count) * config.integer("BLOCK_SIZE_M")
    again = 0.3 if at_work * problem.n * size <= device.l2_bytes else 1.0
    moved = int((2 + again) * problem.m * problem.n * size)
    return rules.estimate_us(moved, loaded, programs, config, device)


def default_config(problem: Problem, device: Device) -> Config:
    """A block that keeps `rules.BYTES_IN_FLIGHT` on a full multiprocessor, with two 16-byte loads per thread.

    With layout n, a program has one row and blocks of 4,096 columns. With layout t, where neighbouring rows are
    contiguous, it has at least 64 bytes of each column.
    """
    size = dtype.ITEMSIZE[problem.a_dtype]
    along_rows = problem.layout[0] == "t"

    def rank(config: Config) -> tuple[float, ...]:
        held, block_m = softmax_space.elements(config, problem), config.integer("BLOCK_SIZE_M")
        each = held * size / rules.threads(config, device)
        idle = max(0, device.sm_count - -(-problem.m // block_m))
        short = max(0, rules.BYTES_IN_FLIGHT - softmax_space.in_flight(held, config, problem, device))
        wide = max(0, 64 - block_m * size) if along_rows else block_m
        away = abs(math.log2(held / 4096)) + abs(math.log2(each / (2 * rules.VECTOR_BYTES)))
        return wide, idle, short, away, abs(config.integer("num_stages") - 2)

    tried = space(problem, device)
    return tried.best(rank) or tried.smallest()


def simplicity(config: Config) -> tuple[Any, ...]:
    """The sort key of configs by simplicity: least memory in flight, fewest rows and threads."""
    held = config.integer("BLOCK_SIZE_M") * config.integer("BLOCK_SIZE_N") * config.integer("num_stages")
    return (held, config.integer("BLOCK_SIZE_M"), config.integer("num_warps"), config)


@rule("one block", "the shape itself: softmax_whole reads it once", early=True)
def _one_block(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    block_n = config.integer("BLOCK_SIZE_N")
    return f"BLOCK_SIZE_N is {block_n}, N {problem.n}: the row would be one block" if block_n >= problem.n else None


@rule("short blocks", "Triton's reductions: warps meet in shared memory for each", early=True)
def _short(config: Config, problem: Problem, device: Device) -> str | None:
    block_n, smallest = config.integer("BLOCK_SIZE_N"), _SMALLEST[problem.layout[0]]
    if device.is_interpreter or block_n >= smallest:
        return None
    return f"BLOCK_SIZE_N is {block_n}: a barrier for each block; {smallest} columns are worth one"


@rule("rows", "the shape itself", early=True)
def _rows(config: Config, problem: Problem, device: Device) -> str | None:
    block_m, rows = config.integer("BLOCK_SIZE_M"), next_power_of_two(problem.m)
    if block_m > max(16 if device.is_interpreter else 1, rows):
        return f"BLOCK_SIZE_M is {block_m}, {rows} covers M"
    if problem.layout[0] == "n" and block_m > 4 and not device.is_interpreter:
        return f"{block_m} rows at a time: their columns are contiguous, one row fills a block"
    return None


RULES = (
    tile_rules.parameters(lambda _, device: _axes(device)),
    rules.too_large(softmax_space.elements),
    tile_rules.shared_memory(softmax_space.shared_bytes, "kernels/softmax/space.py"),
    softmax_space.sectors,
    _rows,
    _one_block,
    _short,
    *rules.of_tile(softmax_space.elements, softmax_space.covering),
)

SPEC = softmax_space.softmax_spec(
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    sources=(softmax_online_kernel, program),
    estimate_us=estimate_us,
    simplicity=simplicity,
)
