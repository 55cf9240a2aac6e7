"""The search space of `warp_specialized`: tiles, the ring's depth, and what of the output is stored at a time.

A config speaks of the problem. With SWAP_AB the device computes the transposed output, for few rows of A: B's columns
then fill the tensor cores' 64 rows.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping

from tuner import dtype as dtypes
from tuner.config import Config, Value
from tuner.device import Device
from tuner.kernels import cluster_sizes, odd_rows, refinements, rules, splitting, tile_rules, tma_space
from tuner.kernels.operands import SCALE_GROUP, exchanged
from tuner.problem import Problem
from tuner.space import Rule, SearchSpace

NAME = "warp_specialized"
WIDTHS = ((128, 64), (256, 64), (256, 128))
"""Of tiles of two widths; one width is (BLOCK_SIZE_N, 0)."""
MOST_SWAPPED_ROWS = 256
_MOST_SUMS = 192
"""Of a multiplying thread's 216 or 232 registers."""
_FEWEST_STAGES = 3
_SHORTEST_ROW = 64
_ROWS_BYTES = (_SHORTEST_ROW, 128, 256)
"""Of a stage: what one row of it takes."""
_OTHER_BYTES = 256
"""Barriers aside, what Triton hands from warp to warp in shared memory."""
_OPTIONS = (refinements.NUM_CTAS, refinements.SHARE_B)


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    plain = problem.unscaled() if problem.scaling == "block" else problem  # of blocks the loads' own rules know nothing
    if reason := _elsewhere(device) or tma_space.supports(plain, device):
        return reason
    if problem.precision not in ("default", "tf32"):
        return f"no {problem.precision}: its products are single wgmma instructions"
    if dtypes.ITEMSIZE[problem.a_dtype] != 2 and problem.layout != "nt":
        return f"{problem.a_dtype} in layout {problem.layout}: wgmma reads such operands along K alone"
    shortest = SCALE_GROUP // 2 + 1 if problem.scaling == "block" else _SHORTEST_ROW // dtypes.ITEMSIZE[problem.a_dtype]
    if problem.k < shortest:
        return f"K is {problem.k}: a stage along K would be more than half empty, it takes {shortest} or more"
    return None if problem.n >= 64 else f"N is {problem.n}: a tile has 64 columns"


def _elsewhere(device: Device) -> str | None:
    if device.is_interpreter:
        return "Gluon has no interpreter"
    return None if device.arch == "sm_90" else f"no {device.arch}: it is written for Hopper's wgmma"


@functools.lru_cache(maxsize=1024)
def by_steps(problem: Problem) -> bool:
    """Whether every step's products are added in registers: to scale them, or as fp8 without fast accumulation asks."""
    return problem.scaling == "block" or (dtypes.is_fp8(problem.a_dtype) and not problem.fast_accum)


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem), RULES, expand=expand, options=_OPTIONS, refine=_in_pairs)


def _in_pairs(config: Config, problem: Problem, device: Device) -> tuple[Config, ...]:  # noqa: ARG001
    single = {name: value for name, value in config.pairs if name not in _OPTIONS}
    pair = Config(config.kernel, **single, num_ctas=2)
    return tuple(one for one in (pair, pair.replace(SHARE_B=True)) if one != config)


def _axes(problem: Problem) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values; those with one value here follow from a tile, see `expand`."""
    size, few = dtypes.ITEMSIZE[problem.a_dtype], problem.m <= MOST_SWAPPED_ROWS
    return {
        "BLOCK_SIZE_M": (16, 32, 64, 128, 256) if few else (64, 128, 256),
        "BLOCK_SIZE_N": (32, 64, 128, 256),
        "BLOCK_SIZE_N_REST": (0, 64, 128),
        "BLOCK_SIZE_K": (64 // size, 128 // size, 256 // size),
        "GROUP_SIZE_M": (1,),
        "EPILOGUE_PARTS": (1,),
        "SWAP_AB": (False, True) if few else (False,),
        "num_stages": (1,),
        "num_warps": (4, 8),
        "launch_pdl": (True,),
    }


def _every_axis(device: Device) -> Mapping[str, tuple[Value, ...]]:
    axes = _axes(Problem(64, 64, 64, dtype="bfloat16"))
    return axes if device.capability == 90 else {}


def seen(config: Config, problem: Problem) -> tuple[Config, Problem]:
    """A config and its problem as the device sees them: of the transposed output with SWAP_AB."""
    if not config.get("SWAP_AB", False):
        return config, problem
    swapped = config.replace(BLOCK_SIZE_M=config["BLOCK_SIZE_N"], BLOCK_SIZE_N=config["BLOCK_SIZE_M"])
    return swapped, exchanged(problem)


def width(config: Config) -> int:
    """Columns of a tile, as the device sees it."""
    return config.integer("BLOCK_SIZE_N") + config.integer("BLOCK_SIZE_N_REST")


def warpgroups(config: Config) -> int:
    """Warpgroups that multiply."""
    return max(1, config.integer("num_warps") // 4)


def tiles(config: Config, problem: Problem) -> int:
    """Tiles of the output; of a config and problem as the device sees them."""
    return -(-problem.m // config.integer("BLOCK_SIZE_M")) * -(-problem.n // width(config))


def held_sums(config: Config, problem: Problem) -> float:
    """Registers of a multiplying thread for sums, and for products that are added to them by steps."""
    sums = config.integer("BLOCK_SIZE_M") * width(config) / (128 * warpgroups(config))
    return 2 * sums if by_steps(problem) else sums


def resident(config: Config, problem: Problem, device: Device) -> int:
    """Programs on a multiprocessor at once: two of one multiplying warpgroup where both rings fit."""
    twice = 2 * (shared_bytes(config, problem, device) + 1024) <= device.shared_bytes + 1024
    return 2 if twice and warpgroups(config) == 1 else 1


def shared_bytes(config: Config, problem: Problem, device: Device) -> int:  # noqa: ARG001
    """Shared memory of one block, an upper bound: the ring, its barriers, each warpgroup's part of C on its way out."""
    config, problem = seen(config, problem)
    stages, parts = config.integer("num_stages"), config.integer("EPILOGUE_PARTS", 1)
    buffers = 1 if parts == 1 else 2
    stored = buffers * config.integer("BLOCK_SIZE_N") // parts + config.integer("BLOCK_SIZE_N_REST")
    out_bytes = config.integer("BLOCK_SIZE_M") * stored * dtypes.ITEMSIZE[problem.out_dtype]
    cluster_bytes = cluster_sizes.RESERVED_BYTES if refinements.NUM_CTAS in config else 0
    return stages * (_stage_bytes(config, problem) + 16) + out_bytes + _OTHER_BYTES + cluster_bytes


def _stage_bytes(config: Config, problem: Problem) -> int:
    rows = config.integer("BLOCK_SIZE_M") + width(config)
    return rows * config.integer("BLOCK_SIZE_K") * dtypes.ITEMSIZE[problem.a_dtype]


def expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """A tile with every order of tiles, part of the output and depth of the ring worth trying; clusters for few rows.

    Orders differ in one wave too: neighbours that read the same columns share them in the nearer half of the L2.
    """
    inner, shown = seen(config, problem)
    rows = -(-shown.m // inner.integer("BLOCK_SIZE_M"))
    groups = dict.fromkeys(min(group, rows) for group in (1, 4, 16))
    clustered = _clustered(config, problem, device) if inner is config else ()
    for one, parts in itertools.product((config, *clustered), _parts(inner.integer("BLOCK_SIZE_N"))):
        for stages in sorted(_depths(one.replace(EPILOGUE_PARTS=parts), problem, device)):
            for group in groups:
                yield one.replace(EPILOGUE_PARTS=parts, num_stages=stages, GROUP_SIZE_M=group)


def _clustered(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """A tile in clusters, where they pay: few rows of A, or rows that TMA reads slowly; these share the larger side."""
    for ctas in cluster_sizes.worth_trying(problem.m, tiles(config, problem), device):
        yield config.replace(num_ctas=ctas)
    if any(odd_rows.odd(problem)):
        pair = config.replace(num_ctas=2)
        yield pair.replace(SHARE_B=True) if width(config) > config.integer("BLOCK_SIZE_M") else pair


def _parts(columns: int) -> tuple[int, ...]:
    return {256: (2, 4), 128: (1, 2)}.get(columns, (1,))


def _depths(config: Config, problem: Problem, device: Device) -> set[int]:
    """The deepest ring that fits a multiprocessor, and for one multiplying warpgroup the deepest that fits it twice."""
    inner, shown = seen(config, problem)
    stage = _stage_bytes(inner, shown) + 16
    other = shared_bytes(config.replace(num_stages=0), problem, device)
    steps = -(-problem.k // config.integer("BLOCK_SIZE_K"))
    deepest = (device.shared_bytes - other) // stage
    depths = {min(tma_space.DEEPEST, deepest)}
    if warpgroups(config) == 1 and tiles(inner, shown) > device.sm_count:
        depths.add(((device.shared_bytes - 1024) // 2 - other) // stage)
    return {depth for depth in depths if depth >= min(_FEWEST_STAGES, steps)}


def _swapped(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    if config.get("SWAP_AB", False):
        return f"SWAP_AB for {problem.m} rows of A" if problem.m > MOST_SWAPPED_ROWS else None
    rows = config.integer("BLOCK_SIZE_M")
    return f"BLOCK_SIZE_M is {rows}, {problem.m} rows of A: SWAP_AB" if problem.m <= 32 else None


def _rows(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    each = config.integer("BLOCK_SIZE_M") / warpgroups(config)
    return f"{each:g} rows a warpgroup: wgmma takes 64 or 128" if each not in (64, 128) else None


def _shape(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    """What the kernel itself cannot be."""
    columns, parts = config.integer("BLOCK_SIZE_N"), config.integer("EPILOGUE_PARTS", 1)
    if config.integer("num_warps") not in (4, 8):
        return f"{config['num_warps']} warps: one or two warpgroups multiply"
    if not 16 <= columns <= 256:
        return f"{columns} columns: 16 to 256 are one wgmma"
    if config.integer("BLOCK_SIZE_N_REST") not in (0, *(rest for _, rest in WIDTHS)):
        return f"BLOCK_SIZE_N_REST is {config['BLOCK_SIZE_N_REST']}: 0, 64 or 128"
    if config.integer("BLOCK_SIZE_K") * dtypes.ITEMSIZE[problem.a_dtype] not in _ROWS_BYTES:
        return f"BLOCK_SIZE_K is {config['BLOCK_SIZE_K']}: rows of 64, 128 or 256 bytes"
    if parts not in (1, 2, 4) or columns // parts < 16:
        return f"{parts} parts of {columns} columns: 1, 2 or 4, of 16 or more"
    return "2 stages at least, to load while it multiplies" if config.integer("num_stages") < 2 else None


def _two_widths(config: Config, problem: Problem, device: Device) -> str | None:
    """Two widths are for what one fills badly; shorter rows of K leave such wide tiles their stages."""
    rest = config.integer("BLOCK_SIZE_N_REST")
    short = config.integer("BLOCK_SIZE_K") * dtypes.ITEMSIZE[problem.a_dtype] < 128
    if short and problem.k > 64 and (not rest or warpgroups(config) == 1):
        return "rows of 64 bytes are for wide tiles of two warpgroups"
    if not rest:
        return None
    if (config.integer("BLOCK_SIZE_N"), rest) not in WIDTHS:
        return f"{config['BLOCK_SIZE_N']} + {rest} columns"
    if config.integer("BLOCK_SIZE_K") * dtypes.ITEMSIZE[problem.a_dtype] > 128:
        return "rows of 256 bytes leave too few stages"
    waves = tiles(config, problem) / device.sm_count
    return f"{waves:.0f} waves: the last one hardly counts" if waves > 6 and not by_steps(problem) else None


def _sums(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    held = held_sums(config, problem)
    return f"a thread would hold {held:g} sums, {_MOST_SUMS} fit" if held > _MOST_SUMS else None


def _one_step(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    """What a step that is added by itself may be, so that one scale is for all of a part's columns."""
    length = config.integer("BLOCK_SIZE_K")
    if problem.scaling == "block" and length != SCALE_GROUP:
        return f"BLOCK_SIZE_K is {length}, a scale is for {SCALE_GROUP}"
    if problem.scaling == "block" and config.integer("BLOCK_SIZE_N_REST"):
        return "two widths: columns of one part would belong to two scales"
    if by_steps(problem) and length > SCALE_GROUP:
        return f"BLOCK_SIZE_K is {length}: more than {SCALE_GROUP} products lose what they are added for"
    return None


def _beyond(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    rows, columns = rules.next_power_of_two(max(64, problem.m)), rules.next_power_of_two(max(16, problem.n))
    if config.integer("BLOCK_SIZE_M") > rows:
        return f"{config['BLOCK_SIZE_M']} rows, {rows} cover the problem"
    if config.integer("BLOCK_SIZE_N") > columns or width(config) >= 2 * problem.n > 64:
        return f"{width(config)} columns, {columns} cover the problem"
    return None


def _thin(config: Config, problem: Problem, device: Device) -> str | None:
    """Small tiles where larger ones still fill the device many times over."""
    area, count = config.integer("BLOCK_SIZE_M") * width(config), tiles(config, problem)
    if count > 8 * device.sm_count and area < 128 * min(128, rules.next_power_of_two(problem.n)):
        return f"{count} tiles of {config['BLOCK_SIZE_M']}x{width(config)}: a larger one loads each operand less often"
    if area >= 128 * 128 and 4 * count < device.sm_count:
        return f"{count} tiles for {device.sm_count} multiprocessors"
    return None


def _clusters(config: Config, problem: Problem, device: Device) -> str | None:  # noqa: ARG001
    return cluster_sizes.untried() if refinements.NUM_CTAS in config else None


def _idle_blocks(config: Config, problem: Problem, device: Device) -> str | None:
    beside, along = -(-problem.n // width(config)), "columns"
    if config.get(refinements.SHARE_B, False):
        beside, along = -(-problem.m // config.integer("BLOCK_SIZE_M")), "rows"
    if beside < config.integer("num_ctas", 1):
        return f"{beside} {along} of tiles for {config['num_ctas']} blocks"
    return cluster_sizes.waiting(config.integer("num_ctas", 1), tiles(config, problem), device)


_INNER = (
    Rule("shape", "kernels/warp_specialized_kernel.py", _shape, fatal=True),
    Rule("rows", "PTX ISA, wgmma.mma_async: 64 rows a warpgroup", _rows, fatal=True, early=True),
    Rule("clusters", "kernels/warp_specialized_cluster.py; benchmarks/numerics.py", _clusters, fatal=True),
    Rule("idle blocks", "benchmarks/axes.py --study clusters", _idle_blocks),
    Rule("registers", "compiled for sm_90: 192 sums a thread fit, without a spill", _sums, fatal=True, early=True),
    Rule("one step", "docs/numerics.md, fp8", _one_step, fatal=True, early=True),
    Rule("two widths", "the shape itself", _two_widths, early=True),
    Rule("padding", "the shape itself: the rest of such a tile is masked", _beyond, early=True),
    Rule("thin", "NVIDIA, Matrix Multiplication Background: reuse grows with the tile", _thin, early=True),
)

RULES = (
    tile_rules.parameters(_every_axis, (*tile_rules.OPTIONAL, "SWAP_AB", "BLOCK_SIZE_N_REST"), _OPTIONS),
    tile_rules.shared_memory(shared_bytes, "kernels/warp_specialized_space.py"),
    Rule("swapped", "the shape itself: a tile has 64 rows of what the tensor cores see", _swapped, early=True),
    *(splitting.in_terms_of(seen, rule) for rule in _INNER),
    tile_rules.BEYOND_K,
)
