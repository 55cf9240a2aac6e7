"""The search space of `warp_specialized`: tiles, the ring's depth, and the parts in which the output is stored.

A config is in terms of the problem. With SWAP_AB, for few rows of A, the device computes the transposed output, so that
B's columns fill the tensor cores' 64 rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tuner.hardware.device import Device
from tuner.kernel.config import Config, Value
from tuner.kernel.space import SearchSpace
from tuner.kernels.base.operands import SCALE_GROUP
from tuner.kernels.gemm.hopper import cluster_sizes
from tuner.kernels.gemm.hopper.resources import (
    as_computed,
    by_steps,
    elsewhere,
    shared_bytes,
    stage_bytes,
    tiles,
    warpgroups,
    width,
)
from tuner.kernels.gemm.hopper.rules import (
    FEW_ROWS,
    MOST_SWAPPED_ROWS,
    OF_TILES,
    SHORTEST_ROW,
    THREE,
    THREE_WARPS,
    WIDTHS,
)
from tuner.kernels.gemm.tma import space as tma_space
from tuner.kernels.space import odd_rows, refinements, tile_resources, tile_rules
from tuner.problem import Problem, dtype

NAME = "warp_specialized"
_FEWEST_STAGES = {1: 3, 2: 3, 3: 4}
"""The fewest stages by the number of warpgroups. Three warpgroups with 3 stages took 1.05 times as long as two with 4
(3072x3072x3072 tf32 on an H200)."""
_OPTIONS = (refinements.NUM_CTAS, refinements.SHARE_B)
_FEWEST_TRANSPOSED_ROWS = 33
"""Rows of A where registers feed it, so that operands are not exchanged."""


def supports(problem: Problem, device: Device) -> str | None:
    """Why the kernel cannot serve a problem on a device, or None."""
    plain = problem.unscaled() if problem.scaling == "block" else problem  # `tma_space` refuses block scales
    if reason := elsewhere(device) or tma_space.supports(plain, device):
        return reason
    if problem.invariant and by_steps(problem):
        return "it adds each step's products in registers, the kernels that serve every M let Triton do so"
    if problem.precision not in ("default", "tf32"):
        return f"no {problem.precision}: its products are single wgmma instructions"
    if reason := _cannot_read(problem):
        return reason
    shortest = SCALE_GROUP // 2 + 1 if problem.scaling == "block" else SHORTEST_ROW // dtype.ITEMSIZE[problem.a_dtype]
    if problem.k < shortest:
        return f"K is {problem.k}: a stage along K would be more than half empty, it takes {shortest} or more"
    return None if problem.n >= 64 else f"N is {problem.n}: a tile has 64 columns"


def _cannot_read(problem: Problem) -> str | None:
    """Why operands cannot be read as they are stored, or None."""
    if tile_resources.through_registers(problem):
        if problem.invariant:
            return "an operand through registers: that it sums in the order of others has not been looked into"
        few = problem.layout == "tt" and problem.m < _FEWEST_TRANSPOSED_ROWS
        return f"M is {problem.m}: a tile has 64 rows, more than half of them would be padding" if few else None
    if dtype.ITEMSIZE[problem.a_dtype] == 2 or problem.layout == "nt":
        return None
    return f"{problem.a_dtype} in layout {problem.layout}: wgmma reads such operands along K alone"


def space(problem: Problem, device: Device) -> SearchSpace:
    """The search space."""
    return SearchSpace(NAME, problem, device, _axes(problem), RULES, expand=expand, options=_OPTIONS, refine=_in_pairs)


def _in_pairs(config: Config, problem: Problem, device: Device) -> tuple[Config, ...]:  # noqa: ARG001
    single = {name: value for name, value in config.pairs if name not in _OPTIONS}
    pair = Config(config.kernel, **single, num_ctas=2)
    return tuple(one for one in (pair, pair.replace(SHARE_B=True)) if one != config)


def _axes(problem: Problem) -> Mapping[str, tuple[Value, ...]]:
    """Every parameter's values, except that `expand` finds those of the axes with a single value here."""
    size, few = dtype.ITEMSIZE[problem.a_dtype], problem.m <= FEW_ROWS
    exchanged = (False, True) if problem.m <= MOST_SWAPPED_ROWS else (False,)
    return {
        "SWAP_AB": (problem.layout == "nn",) if tile_resources.through_registers(problem) else exchanged,
        "BLOCK_SIZE_M": (16, 32, 64, 128, 256) if few else (64, 128, THREE, 256),
        "BLOCK_SIZE_N": (32, 64, 128, 256),
        "num_warps": (4, 8) if few else (4, 8, THREE_WARPS),
        "BLOCK_SIZE_N_REST": (0, *sorted({rest for _, rest in WIDTHS})),
        "BLOCK_SIZE_K": (64 // size, 128 // size, 256 // size),
        "GROUP_SIZE_M": (1,),
        "EPILOGUE_PARTS": (1,),
        "num_stages": (1,),
        "launch_pdl": (True,),
    }


_EVERY_AXIS = _axes(Problem(4096, 64, 64, dtype="bfloat16"))
"""What a range's rows may have, whatever the M they serve."""


def expand(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile with all its `variants`, and its clusters with theirs."""
    inner, _ = as_computed(config, problem)
    clustered = _clustered(config, problem, device) if inner is config else ()
    for one in (config, *clustered):
        yield from (one.replace(**parameters) for parameters in variants(one, problem, device))


def variants(config: Config, problem: Problem, device: Device) -> Iterator[dict[str, Value]]:
    """Yield a tile's remaining parameters: every order of tiles, number of parts and ring depth worth trying.

    The order matters even within one wave: neighbours that read the same columns share them in the nearer half of the
    L2.
    """
    inner, computed = as_computed(config, problem)
    rows = -(-computed.m // inner.integer("BLOCK_SIZE_M"))
    groups = dict.fromkeys(min(group, rows) for group in (1, 4, 16))
    for parts in _parts(inner):
        for stages in sorted(_depths(config.replace(EPILOGUE_PARTS=parts), problem, device)):
            for group in groups:
                yield {"EPILOGUE_PARTS": parts, "num_stages": stages, "GROUP_SIZE_M": group}


def _clustered(config: Config, problem: Problem, device: Device) -> Iterator[Config]:
    """Yield a tile in clusters if they pay: for few rows of A, or for odd rows, where blocks share the larger side."""
    if tile_resources.through_registers(problem):
        return
    for ctas in cluster_sizes.worth_trying(problem.m, tiles(config, problem), device):
        yield config.replace(num_ctas=ctas)
    if any(odd_rows.odd(problem)):
        pair = config.replace(num_ctas=2)
        yield pair.replace(SHARE_B=True) if width(config) > config.integer("BLOCK_SIZE_M") else pair


def _parts(config: Config) -> tuple[int, ...]:
    if config.integer("BLOCK_SIZE_M") == THREE:
        return (2,)
    return {256: (2, 4), 128: (1, 2)}.get(config.integer("BLOCK_SIZE_N"), (1,))


def _depths(config: Config, problem: Problem, device: Device) -> set[int]:
    """The deepest ring that fits a multiprocessor and, for one multiplying warpgroup, the deepest that fits twice."""
    inner, computed = as_computed(config, problem)
    stage = stage_bytes(inner, computed) + 16
    other = shared_bytes(config.replace(num_stages=0), problem, device)
    steps = -(-problem.k // config.integer("BLOCK_SIZE_K"))
    deepest = (device.shared_bytes - other) // stage
    depths = {min(tma_space.DEEPEST, deepest)}
    if warpgroups(config) == 1 and tiles(inner, computed) > device.sm_count:
        depths.add(((device.shared_bytes - 1024) // 2 - other) // stage)
    fewest = _FEWEST_STAGES[min(3, warpgroups(config))]
    return {depth for depth in depths if depth >= min(fewest, steps)}


RULES = (
    tile_rules.parameters(lambda *_: _EVERY_AXIS, _OPTIONS, ("SWAP_AB", "BLOCK_SIZE_N_REST")),
    tile_rules.shared_memory(shared_bytes, "kernels/gemm/hopper/resources.py"),
    *OF_TILES,
    tile_rules.beyond_k,
)
