"""The search space of `gated_warp_specialized`: tiles of both products, each with the deepest ring that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.gated.operands import product
from tuner.kernels.gated.space import MOST_SWAPPED_ROWS, supports
from tuner.kernels.gemm.hopper.resources import OTHER_BYTES, elsewhere, warpgroups
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.space import tile_resources, tile_rules
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

NAME = "gated_warp_specialized"
_DEEPEST = 12
_GROUPS = (4, 8, 11, 16)
"""The most rows of tiles of a group."""
_MOST_SUMS = 128
"""The most sums of a multiplying thread, of gate and up together."""
_SHORTEST_ROW = 64
"""The least BLOCK_SIZE_K: of so few elements along K that half of it covers them no config is left."""


def supports_hopper(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    if reason := supports(problem, device) or elsewhere(device) or tma_space.supports(product(problem), device):
        return reason
    if dtype.ITEMSIZE[problem.a_dtype] != 2:
        return f"{problem.a_dtype}: it is written for operands of 16 bits"
    if problem.n * dtype.ITEMSIZE[problem.a_dtype] % 16:
        return f"N is {problem.n}: TMA stores rows of multiples of 16 bytes"
    if problem.k <= _SHORTEST_ROW // 2:
        return f"K is {problem.k}: a step along K has {_SHORTEST_ROW} elements"
    return None if problem.n >= 64 else f"N is {problem.n}: a tile has 64 columns of gate"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem), RULES, expand=expand)


def _axes(problem: Problem) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values, except that `expand` finds those of the axes with a single value here."""
    few = problem.m <= MOST_SWAPPED_ROWS
    return {
        "SWAP_AB": (False, True) if few else (False,),
        "BLOCK_SIZE_M": (16, 32, 64, 128, 256) if few else (64, 128, 256),
        "BLOCK_SIZE_N": (64, 128, 256, 512) if few else (64, 128, 256),
        "num_warps": (4, 8),
        "BLOCK_SIZE_K": (_SHORTEST_ROW, 128),
        "GROUP_SIZE_M": (1,),
        "EPILOGUE_PARTS": (1,),
        "num_stages": (1,),
        "launch_pdl": (True,),
    }


_EVERY_AXIS = _axes(Problem(1, 64, 64, dtype="bfloat16", op="gated_linear", layout="nt"))
"""What a range's rows may have, whatever the M they serve."""


def sides(config: Config) -> tuple[int, int]:
    """Rows that the multiplying warpgroups divide, and columns of each sum, as the device computes them."""
    rows, half = config.integer("BLOCK_SIZE_M"), config.integer("BLOCK_SIZE_N") // 2
    return (half, rows) if config.get("SWAP_AB", False) else (rows, half)


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of the output."""
    return -(-problem.m // config.integer("BLOCK_SIZE_M")) * -(-2 * problem.n // config.integer("BLOCK_SIZE_N"))


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """An upper bound on a block's shared memory: the ring, its barriers, and the buffers for storing tiles.

    Source: tests/compile/test_gated.py.
    """
    parts = config.integer("EPILOGUE_PARTS", 1)
    rows, columns = sides(config)
    stored = rows * columns // parts * min(2, parts) * dtype.ITEMSIZE[problem.out_dtype]
    return config.integer("num_stages") * (_stage_bytes(config, problem) + 16) + stored + OTHER_BYTES


def _stage_bytes(config: Config, problem: Problem) -> int:
    rows = config.integer("BLOCK_SIZE_M") + config.integer("BLOCK_SIZE_N")
    return rows * config.integer("BLOCK_SIZE_K") * dtype.ITEMSIZE[problem.a_dtype]


def resident(config: Config, problem: Problem, device: Device) -> int:
    """Programs that are resident on a multiprocessor: two with one multiplying warpgroup each if both rings fit."""
    twice = 2 * (shared_bytes(config, problem, device) + 1024) <= device.shared_bytes + 1024
    return 2 if twice and warpgroups(config) == 1 else 1


def expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile in every order, number of parts and depth of the ring that is worth trying."""
    rows = -(-problem.m // config.integer("BLOCK_SIZE_M"))
    parts = (1, 2) if sides(config)[1] >= 128 else (1,)
    for part in parts:
        cut = config.replace(EPILOGUE_PARTS=part)
        for stages in sorted(_depths(cut, problem, device)):
            for group in dict.fromkeys(_group(rows, most) for most in _GROUPS):
                yield cut.replace(num_stages=stages, GROUP_SIZE_M=group)


def _group(rows: int, most: int) -> int:
    """The least rows of tiles of a group with which there are as few groups as with `most`.

    Then the last group, which has what is left and reads both weights again for that alone, is as large as it can be.
    """
    return -(-rows // -(-rows // most))


def _depths(config: Config, problem: Problem, device: Device) -> set[int]:
    """The deepest ring that fits a multiprocessor and, for one multiplying warpgroup, the deepest that fits twice."""
    stage, other = _stage_bytes(config, problem) + 16, shared_bytes(config.replace(num_stages=0), problem, device)
    rooms = [device.shared_bytes]
    if warpgroups(config) == 1 and tiles(config, problem) > device.sm_count:
        rooms.append((device.shared_bytes - 1024) // 2)
    steps = -(-problem.k // config.integer("BLOCK_SIZE_K"))
    return {depth for room in rooms if (depth := min(_DEEPEST, (room - other) // stage)) >= min(3, max(2, steps))}


@rule("shape", "kernels/gated/hopper_jit.py; PTX ISA, wgmma.mma_async", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    (rows, columns), groups = sides(config), warpgroups(config)
    if config.integer("num_warps") not in (4, 8):
        return f"{config['num_warps']} warps: one or two warpgroups multiply"
    if rows / groups not in (64, 128):
        return f"{rows / groups:g} rows a warpgroup: wgmma takes 64 or 128"
    if not 16 <= columns <= 256:
        return f"{columns} columns of a sum: wgmma takes 16 to 256"
    if config.integer("BLOCK_SIZE_K") * dtype.ITEMSIZE[problem.a_dtype] not in (64, 128, 256):
        return f"BLOCK_SIZE_K is {config['BLOCK_SIZE_K']}: rows of 64, 128 or 256 bytes"
    if (parts := config.integer("EPILOGUE_PARTS", 1)) not in (1, 2) or columns // parts < 16:
        return f"{parts} parts of {columns} columns: 1 or 2, of 16 or more"
    return "2 stages at least, to load while it multiplies" if config.integer("num_stages") < 2 else None


@rule("swapped", "the shape itself", reads=("BLOCK_SIZE_M", "SWAP_AB"))
def _swapped(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if config.get("SWAP_AB", False):
        return f"SWAP_AB for {problem.m} rows of x" if problem.m > MOST_SWAPPED_ROWS else None
    return f"{problem.m} rows of x: SWAP_AB" if problem.m <= 32 else None


@rule(
    "registers",
    "compiled for sm_90: more sums of gate and up spill",
    fatal=True,
    reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N", "num_warps", "SWAP_AB"),
)
def _sums(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    held = config.integer("BLOCK_SIZE_M") * config.integer("BLOCK_SIZE_N") / (128 * warpgroups(config))
    return f"a thread would hold {held:g} sums, {_MOST_SUMS} fit" if held > _MOST_SUMS else None


@rule("padding", "the shape itself: the rest of such a tile is masked", reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N"))
def _padding(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows = tile_resources.next_power_of_two(max(16 if config.get("SWAP_AB", False) else 64, problem.m))
    columns = tile_resources.next_power_of_two(max(64, problem.n))
    if config.integer("BLOCK_SIZE_M") > rows:
        return f"BLOCK_SIZE_M is {config['BLOCK_SIZE_M']}, {rows} covers M"
    half = config.integer("BLOCK_SIZE_N") // 2
    return f"{half} columns of gate, {columns} covers N" if half > columns else None


@rule(
    "thin",
    "NVIDIA, Matrix Multiplication Background: reuse grows with the tile",
    reads=("BLOCK_SIZE_M", "BLOCK_SIZE_N"),
)
def _thin(config: Config, problem: Problem, device: Device) -> str | None:
    """Reject small tiles where larger ones still fill the device many times over."""
    area = config.integer("BLOCK_SIZE_M") * config.integer("BLOCK_SIZE_N")
    most = 128 * 128 if problem.m > 64 else 0
    count = tiles(config, problem)
    if count > 8 * device.sm_count and area < most:
        return f"{count} tiles of {area} sums: a larger one loads each operand less often"
    return None


RULES = (
    tile_rules.parameters(lambda *_: _EVERY_AXIS, (), ("SWAP_AB",)),
    tile_rules.shared_memory(shared_bytes, "kernels/gated/warp_specialized_space.py"),
    _shape,
    _swapped,
    _sums,
    _padding,
    _thin,
    tile_rules.beyond_k,
)
