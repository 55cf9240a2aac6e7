"""The `softmax_split` kernel: few long rows, each shared by several programs, in two launches.

The first launch writes the maximum and the sum of every part. The second adds up a row's parts in a fixed order and
writes the result, which is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.workspace import scratch
from tuner.kernels.elementwise import rules
from tuner.kernels.elementwise.spec import Tensors
from tuner.kernels.softmax import online_jit as softmax_online_kernel
from tuner.kernels.softmax import space as softmax_space
from tuner.kernels.softmax import split_jit as softmax_split_kernel
from tuner.kernels.space import tile_rules
from tuner.kernels.space.rule import rule
from tuner.launch.launch import Launch
from tuner.problem import Problem, dtype

NAME = "softmax_split"
VERSION = 1
FEWEST_COLUMNS = 8192
"""The shortest rows. For shorter ones, a second launch costs more than it saves."""
_MOST_WAVES = 8
_SECOND_LAUNCH_US = 2.0
"""A rough estimate, which only ranks configs."""


def program(inputs: Tensors, config: Config) -> tuple[Launch, Launch]:
    """The launches of a config: partial sums, then the result."""
    rows, columns = inputs.a.shape
    splits = config.integer("SPLIT_N")
    strides, _, constants, options = softmax_space.static_of(inputs, config)
    constants = {**constants, "SPLIT_N": splits, "STAGES": config.integer("num_stages")}
    del constants["BLOCK_SIZE_M"], constants["X_TRANSPOSED"]  # each program works on one row, which is contiguous
    partials = scratch(rows * 2 * splits * 4, inputs.a.device).view(torch.float32)
    summed = {name: value for name, value in constants.items() if name != "OUT_VECTOR"}
    return (
        Launch(
            softmax_split_kernel.split_sums_kernel,
            (rows * splits,),
            (inputs.a, partials, columns, *strides[:2]),
            summed,
            options,
        ),
        Launch(
            softmax_split_kernel.split_write_kernel,
            (rows * splits,),
            (inputs.a, inputs.out, partials, columns, *strides),
            constants,
            options,
        ),
    )


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := softmax_space.supports(problem, device):
        return reason
    if problem.layout[0] == "t":
        return "no layout tn: its programs take one row each, of contiguous columns"
    if device.is_interpreter:
        one = problem.n <= softmax_space.INTERPRETED_COLUMNS
        return f"N is {problem.n}: a row is one block; softmax_whole serves it" if one else None
    if problem.n < FEWEST_COLUMNS:
        return f"N is {problem.n}: rows below {FEWEST_COLUMNS} are one program's work; softmax_whole serves them"
    if problem.m > 2 * device.sm_count:
        return f"M is {problem.m}: whole rows keep {device.sm_count} multiprocessors busy"
    return None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(device), RULES)


def _axes(device: Device) -> Mapping[str, tuple[Value, ...]]:
    if device.is_interpreter:
        blocks: tuple[Value, ...] = (softmax_space.INTERPRETED_COLUMNS, 512)
        return {"BLOCK_SIZE_N": blocks, "SPLIT_N": (2, 4), "num_stages": (2,), "num_warps": (4,)}
    return {
        "BLOCK_SIZE_N": (512, 1024, 2048, 4096, 8192),
        "SPLIT_N": (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        "num_stages": rules.stages(device, (1, 2, 3)),
        "num_warps": rules.warps(device),
        **tile_rules.overlap(device),
    }


def estimate_us(config: Config, problem: Problem, device: Device) -> float:
    """See `elementwise.rules.estimate_us`."""
    size = dtype.ITEMSIZE[problem.a_dtype]
    loaded = softmax_space.elements(config, problem) * size * max(1, config.integer("num_stages") - 1)
    again = 0.3 if problem.m * problem.n * size <= device.l2_bytes else 1.0
    moved = int((2 + again) * problem.m * problem.n * size)
    programs = problem.m * config.integer("SPLIT_N")
    return _SECOND_LAUNCH_US + rules.estimate_us(moved, loaded, programs, config, device)


def default_config(problem: Problem, device: Device) -> Config:
    """Two programs per multiprocessor, with two 16-byte loads per thread at a time."""
    size = dtype.ITEMSIZE[problem.a_dtype]

    def rank(config: Config) -> tuple[float, ...]:
        block, programs = config.integer("BLOCK_SIZE_N"), problem.m * config.integer("SPLIT_N")
        each = block * size / rules.threads(config, device)
        away = abs(math.log2(each / (2 * rules.VECTOR_BYTES))) + abs(config.integer("num_warps") - 4)
        return (
            abs(math.log2(programs / (2 * device.sm_count))),
            away,
            abs(config.integer("num_stages") - 2),
            block,
        )

    tried = space(problem, device)
    return tried.best(rank) or tried.smallest()


def simplicity(config: Config) -> tuple[Any, ...]:
    """The sort key of configs by simplicity: fewest parts, least memory in flight, fewest threads."""
    held = config.integer("BLOCK_SIZE_N") * config.integer("num_stages")
    return (config.integer("SPLIT_N"), held, config.integer("num_warps"), config)


@rule("parts", "the shape itself")
def _parts(config: Config, problem: Problem, device: Device) -> str | None:
    blocks, splits = -(-problem.n // config.integer("BLOCK_SIZE_N")), config.integer("SPLIT_N")
    if splits > 1 and -(-blocks // splits) * (splits - 1) >= blocks:
        return f"{splits} parts of {blocks} blocks: one would have none"
    programs = problem.m * splits
    if not device.is_interpreter and programs > _MOST_WAVES * device.sm_count:
        return f"{programs} programs: fewer parts fill {device.sm_count} multiprocessors"
    return None


RULES = (
    tile_rules.parameters(lambda _, device: _axes(device)),
    tile_rules.shared_memory(softmax_space.shared_bytes, "kernels/softmax/space.py"),
    _parts,
    *rules.of_tile(softmax_space.elements, softmax_space.covering),
)

SPEC = softmax_space.softmax_spec(
    NAME,
    VERSION,
    program,
    supports=supports,
    space=space,
    default_config=default_config,
    sources=(softmax_online_kernel, softmax_split_kernel, program),
    estimate_us=estimate_us,
    simplicity=simplicity,
)
