"""The search space of `cluster_k`: tiles, blocks of a cluster, the ring's depth, and overlap with other kernels.

A config is in terms of the problem, although the device computes the transposed output, as with `swap_ab`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.gemm.hopper import cluster_parts, cluster_sizes
from tuner.kernels.gemm.hopper.resources import elsewhere
from tuner.kernels.gemm.sums import family_parts
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.space import refinements, tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

NAME = "cluster_k"
BLOCKS = (2, 4, 8, 16)
"""Blocks of a cluster, which are the values of SPLIT_K. Not every GPU supports 16 (CUDA C++ Programming Guide)."""
COLUMNS = 64
"""Columns of B in a tile, which are the rows of wgmma."""
_ROWS = (8, 16, 32, 64, 128)
"""Rows of A in a tile."""
_ROW_BYTES = (128, 256, 512)
"""Bytes of a row of a stage along K."""
_MOST_ROWS = 256
_FEWEST_STAGES = 2
_FEW_BLOCKS = 8
"""If the device has more than this many multiprocessors per block, more blocks outweigh the cost of larger clusters."""
_SHORTEST_K = 512
_WARPS = 4
_OPTIONS = (refinements.PDL_TRIGGER, refinements.PREFETCH_KIB)
_AHEAD = {refinements.PREFETCH_KIB: 32, refinements.PDL_TRIGGER: 6}
"""Options that every config has if it can."""
_OTHERWISE = ((32, 5), (32, 7), (64, 4), (64, 7))
"""Further pairs of PREFETCH_KIB and PDL_TRIGGER that a search tries on its best configs."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := elsewhere(device) or cluster_sizes.untried() or tma_space.supports(problem, device):
        return reason
    if problem.precision not in ("default", "tf32") or problem.a_dtype == "int8":
        return f"{problem.a_dtype} {problem.precision}: products are of floats, by single instructions"
    from_registers = problem.layout == "nn" and tile_resources.through_registers(problem)
    if dtype.ITEMSIZE[problem.a_dtype] != 2 and problem.layout != "nt" and not from_registers:
        return f"{problem.a_dtype} in layout {problem.layout}: wgmma reads such operands along K alone"
    return _too_large(problem, device)


def _too_large(problem: Problem, device: Device) -> str | None:
    if problem.m > _MOST_ROWS:
        return f"M is {problem.m}: it is for up to {_MOST_ROWS} rows of A"
    if problem.k < _SHORTEST_K:
        return f"K is {problem.k}: it splits sums of {_SHORTEST_K} and more"
    fewest = _tiles(problem, max(_ROWS))
    smallest = max(min(BLOCKS), family_parts(problem))
    if fewest * smallest > cluster_sizes.room(smallest, device):
        return f"{fewest} tiles of {max(_ROWS)}x{COLUMNS}: clusters of {smallest} do not find room at once"
    return None


def by_steps(problem: Problem) -> bool:
    """Whether each step's products are added in registers, as fp8 without fast accumulation requires."""
    return dtype.is_fp8(problem.a_dtype) and not problem.fast_accum


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(
        NAME, problem, device, _axes(problem), RULES, options=_OPTIONS, refine=_overlapping, expand=_expand
    )


def _axes(problem: Problem) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values; num_stages follows from a tile, see `_expand`."""
    size = dtype.ITEMSIZE[problem.a_dtype]
    return {
        "BLOCK_SIZE_M": _ROWS,
        "BLOCK_SIZE_N": (COLUMNS,),
        "BLOCK_SIZE_K": tuple(length // size for length in _ROW_BYTES),
        "SPLIT_K": BLOCKS,
        "num_stages": (1,),
        "num_warps": (_WARPS,),
        "launch_pdl": (True,),
    }


def _tiles(problem: Problem, rows: int) -> int:
    return -(-problem.m // rows) * -(-problem.n // COLUMNS)


def programs(config: Config, problem: Problem) -> int:
    """Number of blocks in a launch."""
    return config.integer("SPLIT_K") * _tiles(problem, config.integer("BLOCK_SIZE_M"))


def most_steps(config: Config, problem: Problem) -> int:
    """The most steps along K of any block."""
    return -(-problem.k // (config.integer("BLOCK_SIZE_K") * config.integer("SPLIT_K")))


def reserved_bytes(config: Config) -> int:
    """Shared memory for parts of sums, besides the ring, or 0 if the rule "shape" rejects the config anyway."""
    rows, blocks = config.integer("BLOCK_SIZE_M"), config.integer("SPLIT_K")
    return cluster_parts.room_bytes(config.integer("BLOCK_SIZE_N"), rows, blocks) if rows >= 2 and blocks else 0


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """Shared memory of one block in bytes: the ring, its barriers and the parts of sums."""
    return _ring_bytes(config, problem) + reserved_bytes(config)


def _ring_bytes(config: Config, problem: Problem) -> int:
    return config.integer("num_stages") * (tile_resources.tile_bytes(config, problem) + 8)


def _under_requested(config: Config, problem: Problem) -> bool:
    """Whether Triton's launcher, which considers only the ring, would request less memory than a block takes."""
    ring, usual = _ring_bytes(config, problem), cluster_parts.LARGEST_ROOM
    return ring <= usual < ring + reserved_bytes(config)


def _expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with rings that fill a multiprocessor's shared memory, or half of it."""
    fetches = refinements.option_error(refinements.PREFETCH_KIB, config.replace(**_AHEAD), problem, device) is None
    overlapping = config.replace(**(_AHEAD if fetches else {refinements.PDL_TRIGGER: _AHEAD[refinements.PDL_TRIGGER]}))
    steps, stage = most_steps(config, problem), _ring_bytes(config.replace(num_stages=1), problem)
    rooms = (device.shared_bytes, (device.shared_bytes - 1024) // 2)
    depths = {min(steps, tma_space.DEEPEST, (room - reserved_bytes(config)) // stage) for room in rooms}
    for depth in sorted(depth for depth in depths if depth >= min(_FEWEST_STAGES, steps)):
        made = overlapping.replace(num_stages=depth)
        if _under_requested(made, problem):  # a ring with more stages than steps costs nothing
            made = made.replace(num_stages=cluster_parts.LARGEST_ROOM // stage + 1)
        yield made


def _overlapping(config: Config, problem: Problem, device: Device) -> Iterator[Config]:  # noqa: ARG001
    if refinements.PREFETCH_KIB in config:
        for amount, eighths in _OTHERWISE:
            yield config.replace(**{refinements.PREFETCH_KIB: amount, refinements.PDL_TRIGGER: eighths})


@rule(
    "shape",
    "kernels/gemm/hopper/cluster_k_jit.py",
    fatal=True,
    reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "SPLIT_K", "num_warps"),
)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    """Why the kernel does not support a config's shape, or None."""
    rows, blocks = config.integer("BLOCK_SIZE_M"), config.integer("SPLIT_K")
    length = config.integer("BLOCK_SIZE_K") * dtype.ITEMSIZE[problem.a_dtype]
    if not _fewest_rows(problem) <= rows <= max(_ROWS):
        return f"BLOCK_SIZE_M is {rows}: {_fewest_rows(problem)} to {max(_ROWS)} rows of A are one wgmma"
    if (config.integer("BLOCK_SIZE_N"), config.integer("num_warps")) != (COLUMNS, _WARPS):
        return f"{config['num_warps']} warps for {config['BLOCK_SIZE_N']} columns of B: {_WARPS} for {COLUMNS}"
    if length not in _ROW_BYTES:
        return f"BLOCK_SIZE_K is {config['BLOCK_SIZE_K']}: rows of 128, 256 or 512 bytes"
    if blocks not in BLOCKS:
        return f"SPLIT_K is {blocks}: clusters have 2, 4, 8 or 16 blocks"
    reserved = reserved_bytes(config)
    if reserved > cluster_parts.LARGEST_ROOM:
        return f"{reserved} B of parts, {cluster_parts.LARGEST_ROOM} can be reserved"
    return None


def _fewest_rows(problem: Problem) -> int:
    """The fewest rows of A in a tile: if A is stored [K, M], TMA's swizzle needs 32 bytes."""
    return 16 if problem.layout[0] == "t" else 8


@rule("shared memory asked for", "Triton 3.7, NVIDIA driver; benchmarks/checks/numerics.py", fatal=True)
def _too_little(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    ring, usual = _ring_bytes(config, problem), cluster_parts.LARGEST_ROOM
    if not _under_requested(config, problem):
        return None
    return f"a ring of {ring} B: Triton asks for more than {usual} B in all where the ring alone is more"


@rule("ring", "kernels/gemm/hopper/cluster_k_jit.py", fatal=True)
def _ring(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    """Reject a single stage: it is reloaded during the next step, which would wait for it forever."""
    steps = most_steps(config, problem)
    if config.integer("num_stages") >= min(_FEWEST_STAGES, steps):
        return None
    return f"num_stages is {config['num_stages']}: {_FEWEST_STAGES} at least for {steps} steps along K"


@rule("padding", "the shape itself: the rest of such a tile is masked", reads=("BLOCK_SIZE_M",))
def _padding(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows = max(_fewest_rows(problem), tile_resources.next_power_of_two(problem.m))
    return (
        f"BLOCK_SIZE_M is {config['BLOCK_SIZE_M']}, {rows} covers M" if config.integer("BLOCK_SIZE_M") > rows else None
    )


@rule(
    "room",
    "measured on an H200: docs/lessons.md, Clusters; H100 white paper: eight GPCs",
    reads=("BLOCK_SIZE_M", "SPLIT_K"),
)
def _room(config: Config, problem: Problem, device: Device) -> str | None:
    blocks = config.integer("SPLIT_K")
    count, most = programs(config, problem), cluster_sizes.room(blocks, device)
    return f"{count} blocks in clusters of {blocks}: {most} find room at once" if count > most else None


@rule("idle", "the shape itself", reads=("BLOCK_SIZE_M", "BLOCK_SIZE_K", "SPLIT_K"))
def _idle(config: Config, problem: Problem, device: Device) -> str | None:
    """Reject configs that leave blocks without a step or too many multiprocessors without a block."""
    blocks, steps = config.integer("SPLIT_K"), -(-problem.k // config.integer("BLOCK_SIZE_K"))
    if blocks > steps:
        return f"{blocks} blocks for {steps} steps along K"
    if family_parts(problem) > 1:
        return None  # the family's parts are what they are
    count = programs(config, problem)
    larger = 2 * blocks <= min(steps, max(BLOCKS)) and cluster_sizes.room(2 * blocks, device) > 0
    if larger and _FEW_BLOCKS * count < device.sm_count:
        return f"{count} blocks on {device.sm_count} multiprocessors: larger clusters fill more"
    return None


RULES = (
    tile_rules.parameters(lambda problem, _: _axes(problem), _OPTIONS),
    _shape,
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/hopper/cluster_k_space.py"),
    _too_little,
    _ring,
    _padding,
    _room,
    _idle,
    tile_rules.beyond_k,
)
