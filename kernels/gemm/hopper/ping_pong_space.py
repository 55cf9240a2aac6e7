"""The search space of `ping_pong`: three tiles, each with the deepest ring that fits, in two orders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.gemm.hopper import ping_pong_jit, resources, tile
from tuner.kernels.gemm.hopper import space as specialized_space
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

NAME = "ping_pong"
FEWEST_ROWS = 257
"""Rows of A that it serves. Fewer were not played: their tiles mostly run all at once, or they wait for memory."""
TILES = ((128, 128, 0), (128, 128, 64), (64, 256, 0))
"""Rows and both widths of tiles. 64x128 and 128x64 were nowhere the fastest by more than 0.1% (decision 147)."""
_WARPS = 8
_GROUPS = (8, 16)
"""GROUP_SIZE_M. Groups of 4 took 0.3 to 6% longer than of 16, by tile (results/ping-pong-first-h200.json)."""
_FEWEST_STAGES = 2
_OTHER_BYTES = 256
"""Shared memory besides the stages' barriers: the turns', and what Triton passes between warps."""
_SIDES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_N_REST")


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := specialized_space.supports(problem, device):
        return reason
    if tile_resources.through_registers(problem):
        return f"{problem.a_dtype} in layout {problem.layout}: it reads operands along K alone"
    if resources.by_steps(problem):
        return "it sums in the tensor cores alone: registers for each step's products are those of the other tile"
    if problem.m < FEWEST_ROWS:
        return f"M is {problem.m}: it is for {FEWEST_ROWS} rows of A or more"
    columns = min(columns for _, columns, _ in TILES)
    return f"N is {problem.n}: a tile has {columns} columns" if problem.n < columns else None


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem), RULES, expand=_expand)


def _axes(problem: Problem) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values, except that `_expand` finds GROUP_SIZE_M and num_stages."""
    rows, columns, rest = (tuple(dict.fromkeys(side)) for side in zip(*TILES, strict=True))
    return {
        "BLOCK_SIZE_M": rows,
        "BLOCK_SIZE_N": columns,
        "BLOCK_SIZE_N_REST": rest,
        "BLOCK_SIZE_K": (resources.row_length(problem),),
        "num_warps": (_WARPS,),
        "GROUP_SIZE_M": (1,),
        "num_stages": (1,),
        "launch_pdl": (True,),
    }


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    rows = -(-problem.m // config.integer("BLOCK_SIZE_M"))
    stage = resources.stage_bytes(config, problem) + 16
    stages = (device.shared_bytes - shared_bytes(config.replace(num_stages=0), problem, device)) // stage
    for group in dict.fromkeys(min(group, rows) for group in _GROUPS):
        yield config.replace(num_stages=stages, GROUP_SIZE_M=group)


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """An upper bound on a block's shared memory: the ring, its barriers, and a buffer to store C for each warpgroup."""
    stored: int = tile.TEAMS.value * config.integer("BLOCK_SIZE_M") * ping_pong_jit.PART.value
    ring = config.integer("num_stages") * (resources.stage_bytes(config, problem) + 16)
    return ring + stored * dtype.ITEMSIZE[problem.out_dtype] + _OTHER_BYTES


@rule("shape", "kernels/gemm/hopper/ping_pong_jit.py", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if (warps := config.integer("num_warps")) != _WARPS:
        return f"{warps} warps: two warpgroups, {_WARPS} warps, take turns"
    if config["BLOCK_SIZE_K"] != resources.row_length(problem):
        return f"BLOCK_SIZE_K is {config['BLOCK_SIZE_K']}: rows of {resources.ROW_BYTES} bytes"
    few = config.integer("num_stages") < _FEWEST_STAGES
    return f"{_FEWEST_STAGES} stages at least, to load while it multiplies" if few else None


@rule("tile", "measured on an H200: docs/decisions.md, 147", fatal=True, reads=_SIDES)
def _tile(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns, rest = (config.integer(side) for side in _SIDES)
    known = ", ".join(f"{one}x{two}+{three}" for one, two, three in TILES)
    return f"a tile of {rows}x{columns}+{rest}: expected one of {known}" if (rows, columns, rest) not in TILES else None


@rule("padding", "the shape itself: the rest of such a tile is masked", reads=_SIDES)
def _beyond(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    width = resources.width(config)
    return f"{width} columns, {problem.n} are to be covered" if width >= 2 * problem.n else None


RULES = (
    tile_rules.parameters(lambda problem, _: _axes(problem)),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/hopper/ping_pong_space.py"),
    _shape,
    _tile,
    _beyond,
)
