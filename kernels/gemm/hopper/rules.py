"""Rules for configs of `warp_specialized`: which are impossible, and which are not worth trying."""

from __future__ import annotations

from tuner.hardware.device import Device
from tuner.kernel.config import Config
from tuner.kernels.base.operands import SCALE_GROUP
from tuner.kernels.gemm import splitting
from tuner.kernels.gemm.hopper import cluster_sizes
from tuner.kernels.gemm.hopper.resources import (
    as_computed,
    by_steps,
    held_operand,
    held_sums,
    sum_parts,
    tiles,
    warpgroups,
    width,
)
from tuner.kernels.space import refinements, tile_resources
from tuner.kernels.space.rule import rule
from tuner.problem import Problem, dtype

WIDTHS = ((128, 64), (256, 32), (256, 64), (256, 128))
"""The widths of tiles that have two. A tile with one width is (BLOCK_SIZE_N, 0)."""
THREE, THREE_WARPS = 192, 12
"""Rows of a tile with three warpgroups, 64 for each, and their number of warps."""
MOST_SWAPPED_ROWS = 320
"""Rows of A up to which exchanged operands are tried. They are covered by tiles of 256 + 64 columns, as computed."""
FEW_ROWS = 256
"""Rows of A up to which one width of a tile covers them."""
SHORTEST_ROW = 64
_SIDES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_N_REST")
_ROWS_BYTES = (SHORTEST_ROW, 128, 256)
"""Bytes of one row of a stage along K."""
_MOST_SUMS = {1: 192, 2: 192, 3: 96}
"""The most sums of a multiplying thread, by the number of warpgroups: its registers are 216 to 248, 232 or 160."""
_MOST_WITH_A = {1: 176, 2: 200, 3: 112}
"""The same of sums and of A's elements where A comes from registers; with more, ptxas lets products wait for each
other, the earlier the more an epilogue needs."""


@rule("swapped", "the shape itself: a tile has 64 rows of what the tensor cores see", reads=("BLOCK_SIZE_M", "SWAP_AB"))
def _swapped(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if tile_resources.through_registers(problem):
        return None  # its layout decides
    if config.get("SWAP_AB", False):
        return f"SWAP_AB for {problem.m} rows of A" if problem.m > MOST_SWAPPED_ROWS else None
    rows = config.integer("BLOCK_SIZE_M")
    return f"BLOCK_SIZE_M is {rows}, {problem.m} rows of A: SWAP_AB" if problem.m <= 32 else None


@rule("rows", "PTX ISA, wgmma.mma_async: 64 rows a warpgroup", fatal=True, reads=("BLOCK_SIZE_M", "num_warps"))
def _rows(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    each = config.integer("BLOCK_SIZE_M") / warpgroups(config)
    return f"{each:g} rows a warpgroup: wgmma takes 64 or 128" if each not in (64, 128) else None


@rule("shape", "kernels/gemm/hopper/warp_specialized_jit.py", fatal=True)
def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    """Why the kernel does not support a config's shape, or None."""
    columns, parts = config.integer("BLOCK_SIZE_N"), config.integer("EPILOGUE_PARTS", 1)
    if config.integer("num_warps") not in (4, 8, THREE_WARPS):
        return f"{config['num_warps']} warps: one to three warpgroups multiply"
    if not 16 <= columns <= 256 or columns & (columns - 1):
        return f"{columns} columns: 16 to 256, a power of two, are one wgmma"
    if config.integer("BLOCK_SIZE_N_REST") not in (0, *(rest for _, rest in WIDTHS)):
        return f"BLOCK_SIZE_N_REST is {config['BLOCK_SIZE_N_REST']}: 0, 32, 64 or 128"
    if config.integer("BLOCK_SIZE_K") * dtype.ITEMSIZE[problem.a_dtype] not in _ROWS_BYTES:
        return f"BLOCK_SIZE_K is {config['BLOCK_SIZE_K']}: rows of 64, 128 or 256 bytes"
    if parts not in (1, 2, 4) or columns // parts < 16:
        return f"{parts} parts of {columns} columns: 1, 2 or 4, of 16 or more"
    return "2 stages at least, to load while it multiplies" if config.integer("num_stages") < 2 else None


@rule("from registers", "PTX ISA, wgmma.mma_async: only A may come from registers", fatal=True)
def _from_registers(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    """Why `register_operand.sum_products` cannot sum a config's tile, or None."""
    if not tile_resources.through_registers(problem):
        return None
    if problem.layout[0] == "n":
        return "registers feed A, it is B that does not run along K: SWAP_AB"
    return "clusters: Triton loads no slices into registers there" if refinements.NUM_CTAS in config else None


@rule("pair of widths", "the kernel's own", reads=_SIDES)
def _pair(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    columns, rest = config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_N_REST")
    return f"{columns} + {rest} columns" if rest and (columns, rest) not in WIDTHS else None


@rule("two widths", "the shape itself", reads=(*_SIDES, "BLOCK_SIZE_K", "num_warps"))
def _two_widths(config: Config, problem: Problem, device: Device) -> str | None:
    """Keep two widths to problems whose waves one width fills badly, and short rows to tiles that need the stages."""
    rest = config.integer("BLOCK_SIZE_N_REST")
    short = config.integer("BLOCK_SIZE_K") * dtype.ITEMSIZE[problem.a_dtype] < 128
    if short and problem.k > 64 and (not rest or warpgroups(config) == 1):
        return "rows of 64 bytes are for wide tiles of two warpgroups"
    if not rest:
        return None
    if config.integer("BLOCK_SIZE_K") * dtype.ITEMSIZE[problem.a_dtype] > 128:
        return "rows of 256 bytes leave too few stages"
    if rest == 32 and problem.layout[1] == "n" and warpgroups(config) == 1:
        return "32 columns of a B along N, which took one warpgroup 1.4 times as long as others"
    waves = tiles(config, problem) / device.sm_count
    return f"{waves:.0f} waves: the last one hardly counts" if waves > 6 and not by_steps(problem) else None


@rule("three warpgroups", "measured on an H200: docs/lessons.md, Three warpgroups", reads=(*_SIDES, "BLOCK_SIZE_K"))
def _three(config: Config, problem: Problem, device: Device) -> str | None:
    """Keep three warpgroups, which load less, to problems where no multiprocessor computes more than with two."""
    if config["BLOCK_SIZE_M"] != THREE:
        return None
    if width(config) != THREE or config.integer("BLOCK_SIZE_K") * dtype.ITEMSIZE[problem.a_dtype] != 128:
        return f"{THREE} rows are tried with as many columns, and with rows of 128 bytes"
    sums = [
        rows * columns * -(-(-(-problem.m // rows) * -(-problem.n // columns)) // device.sm_count)
        for rows, columns in ((THREE, THREE), (128, THREE), (128, 256))
    ]
    return f"{sums[0]} sums of a multiprocessor, tiles of 128 rows are {min(sums)}" if sums[0] > min(sums) else None


@rule(
    "registers",
    "compiled for sm_90: 192 sums a thread fit, 96 of three warpgroups",
    fatal=True,
    reads=(*_SIDES, "BLOCK_SIZE_K", "num_warps"),
)
def _sums(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    held, most = held_sums(config, problem), _MOST_SUMS[min(3, warpgroups(config))]
    if held > most:
        return f"a thread would hold {held:g} sums, {most} fit"
    with_a, fit = held + held_operand(config, problem), _MOST_WITH_A[min(3, warpgroups(config))]
    beyond = tile_resources.through_registers(problem) and with_a > fit
    return f"a thread would hold {with_a:g} sums and elements of A, {fit} fit" if beyond else None


@rule("one step", "docs/numerics.md, fp8", fatal=True, reads=("BLOCK_SIZE_K", "BLOCK_SIZE_N_REST"))
def _one_step(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    """Why a step's products cannot be added in registers: a step must be short, and a part have one column scale."""
    length = config.integer("BLOCK_SIZE_K")
    if problem.scaling == "block" and length != SCALE_GROUP:
        return f"BLOCK_SIZE_K is {length}, a scale is for {SCALE_GROUP}"
    if problem.scaling == "block" and config.integer("BLOCK_SIZE_N_REST"):
        return "two widths: columns of one part would belong to two scales"
    if by_steps(problem) and length > SCALE_GROUP:
        return f"BLOCK_SIZE_K is {length}: more than {SCALE_GROUP} products lose what they are added for"
    return None


@rule("parts", "kernels/gemm/hopper/warp_specialized_jit.py", fatal=True, reads=("BLOCK_SIZE_N_REST",))
def _parts(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    two = config.integer("BLOCK_SIZE_N_REST") and sum_parts(config, problem) > 1
    return "two widths: parts of a sum are added for one" if two else None


@rule("padding", "the shape itself: the rest of such a tile is masked", reads=_SIDES)
def _beyond(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns = (
        tile_resources.next_power_of_two(max(64, problem.m)),
        tile_resources.next_power_of_two(max(16, problem.n)),
    )
    if config.integer("BLOCK_SIZE_M") > rows:
        return f"{config['BLOCK_SIZE_M']} rows, {rows} cover the problem"
    if config.integer("BLOCK_SIZE_N") > columns or width(config) >= 2 * problem.n > 64:
        return f"{width(config)} columns, {columns} cover the problem"
    return None


@rule("thin", "NVIDIA, Matrix Multiplication Background: reuse grows with the tile", reads=_SIDES)
def _thin(config: Config, problem: Problem, device: Device) -> str | None:
    """Reject small tiles if larger ones still fill the device many times over, and large tiles that leave it empty."""
    area, count = config.integer("BLOCK_SIZE_M") * width(config), tiles(config, problem)
    if count > 8 * device.sm_count and area < 128 * min(128, tile_resources.next_power_of_two(problem.n)):
        return f"{count} tiles of {config['BLOCK_SIZE_M']}x{width(config)}: a larger one loads each operand less often"
    if area >= 128 * 128 and 4 * count < device.sm_count:
        return f"{count} tiles for {device.sm_count} multiprocessors"
    return None


@rule("clusters", "kernels/gemm/hopper/cluster.py; benchmarks/checks/numerics.py", fatal=True)
def _clusters(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    return cluster_sizes.untried() if refinements.NUM_CTAS in config else None


@rule("idle blocks", "measured on an H200: docs/lessons.md, Clusters")
def _idle_blocks(config: Config, problem: Problem, device: Device) -> str | None:
    count, along = -(-problem.n // width(config)), "columns"
    if config.get(refinements.SHARE_B, False):
        count, along = -(-problem.m // config.integer("BLOCK_SIZE_M")), "rows"
    if count < config.integer("num_ctas", 1):
        return f"{count} {along} of tiles for {config['num_ctas']} blocks"
    return cluster_sizes.waiting(config.integer("num_ctas", 1), tiles(config, problem), device)


_AS_COMPUTED = (
    _shape,
    _rows,
    _from_registers,
    _clusters,
    _idle_blocks,
    _sums,
    _one_step,
    _parts,
    _pair,
    _two_widths,
    _three,
    _beyond,
    _thin,
)

IMPOSSIBLE = (_shape, _rows, _sums)
"""What no kernel of this kind can run, with one width and operands as they are given."""

OF_TILES = (
    _swapped,
    *(splitting.on_view(as_computed, rule, ("SWAP_AB",)) for rule in _AS_COMPUTED),
)
