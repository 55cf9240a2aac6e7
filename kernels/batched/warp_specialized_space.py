"""The search space of `bmm_warp_specialized`: few tiles, each with the deepest ring that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.batched.operands import batch_of
from tuner.kernels.batched.space import no_batch
from tuner.kernels.gemm import splitting
from tuner.kernels.gemm.hopper import resources
from tuner.kernels.gemm.hopper.resources import elsewhere, stage_bytes, warpgroups
from tuner.kernels.gemm.hopper.rules import IMPOSSIBLE
from tuner.kernels.gemm.k_major.problem import FROM_REGISTERS, along_k, is_copied
from tuner.kernels.gemm.small_m import swap_ab
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

NAME = "bmm_warp_specialized"
_TILES = ((64, 64, 4), (64, 128, 4), (128, 128, 8), (128, 256, 8), (256, 128, 8))
"""BLOCK_SIZE_M, BLOCK_SIZE_N and num_warps."""
_ROW_BYTES = {2: (128,), 4: (128, 256)}
"""Bytes of one row of a stage along K, by the size of an element."""
_PART_BYTES = 128
"""Bytes of a row of a part of the output: one box of TMA, whose swizzle is 128 bytes."""
_WHOLE = (128, 128)
"""The tile that is also tried without parts."""
_DEEPEST = 8
_GROUPS = (1, 16)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := no_batch(problem) or elsewhere(device) or tma_space.supports_tiles(problem, device):
        return reason
    if dtype.ITEMSIZE[problem.a_dtype] != 2 and problem.precision != "tf32":
        return f"{problem.a_dtype} {problem.precision}: it is written for operands of 16 bits and TF32"
    return None if problem.n > 32 else f"N is {problem.n}: a tile has 64 columns, more than half would be padding"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem), RULES, expand=expand)


def copied(problem: Problem) -> tuple[bool, bool]:
    """Whether A and B are copied first: in TF32, if neither runs along K, the smaller one; of equals B."""
    return is_copied(FROM_REGISTERS, problem) if problem.precision == "tf32" else (False, False)


def computed(problem: Problem) -> Problem:
    """The problem once an operand is copied."""
    return along_k(problem, copied(problem))


def is_exchanged(problem: Problem) -> bool:
    """Whether the transposed outputs of a `computed` problem are: registers can feed wgmma's first operand alone."""
    return tile_resources.through_registers(problem) and problem.layout == "nn"


def as_computed(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """A config and its problem as the device computes them."""
    problem = computed(problem)
    return swap_ab.view(config, problem) if is_exchanged(problem) else (config, problem)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:
    """As `resources.shared_bytes`."""
    return resources.shared_bytes(*as_computed(config, problem), device)


def _axes(problem: Problem) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values, except that `expand` finds those of the axes with a single value here."""
    size = dtype.ITEMSIZE[problem.a_dtype]
    return {
        "BLOCK_SIZE_M": (64, 128, 256),
        "BLOCK_SIZE_N": (64, 128, 256),
        "num_warps": (4, 8),
        "BLOCK_SIZE_K": tuple(length // size for length in _ROW_BYTES[size]),
        "GROUP_SIZE_M": (1,),
        "EPILOGUE_PARTS": (1,),
        "num_stages": (1,),
        "launch_pdl": (True,),
    }


def expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile in every order and number of parts worth trying, each with the deepest ring that fits."""
    inner, view = as_computed(config, problem)
    rows = -(-view.m // inner.integer("BLOCK_SIZE_M"))
    for parts in _parts(inner, view):
        stages = _depth(config.replace(EPILOGUE_PARTS=parts), problem, device)
        for group in dict.fromkeys(min(group, rows) for group in _GROUPS):
            yield config.replace(EPILOGUE_PARTS=parts, num_stages=stages, GROUP_SIZE_M=group)


def _parts(config: Config, problem: Problem) -> tuple[int, ...]:
    row_bytes = config.integer("BLOCK_SIZE_N") * dtype.ITEMSIZE[problem.out_dtype]
    parts = min(4, row_bytes // _PART_BYTES)
    whole = (config["BLOCK_SIZE_M"], config["BLOCK_SIZE_N"]) == _WHOLE
    return (1, parts) if whole else (parts,)


def _depth(config: Config, problem: Problem, device: Device) -> int:
    """The deepest ring that fits a multiprocessor, or fits it twice for one multiplying warpgroup."""
    other = shared_bytes(config.replace(num_stages=0), problem, device)
    room = device.shared_bytes if warpgroups(config) > 1 else (device.shared_bytes - 1024) // 2
    return max(2, min(_DEEPEST, (room - other) // (stage_bytes(*as_computed(config, problem)) + 16)))


@rule(
    "tile",
    "measured on an H200: docs/decisions.md, 104",
    reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps"),
)
def _tile(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    sides = tuple(config[name] for name in ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps"))
    return f"{sides[0]}x{sides[1]} with {sides[2]} warps won nowhere" if sides not in _TILES else None


@rule("padding", "the shape itself: the rest of such a tile is masked", reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
def _padding(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    for side, extent in (("BLOCK_SIZE_M", problem.m), ("BLOCK_SIZE_N", problem.n)):
        covering = tile_resources.next_power_of_two(max(64, extent))
        if config.integer(side) > covering:
            return f"{side} is {config[side]}, {covering} covers the problem"
    return None


RULES = (
    tile_rules.parameters(lambda problem, _: _axes(problem)),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/hopper/resources.py"),
    *(splitting.on_view(as_computed, rule) for rule in (*IMPOSSIBLE, _tile, _padding)),
)


def is_filled(problem: Problem, device: Device) -> bool:
    """Whether tiles of 128x128 or less of all products give programs a second tile."""
    tiles = -(-problem.m // 128) * -(-problem.n // 128) * batch_of(problem)
    return tiles > device.sm_count
