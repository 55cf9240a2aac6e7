"""What the launches of GEMM kernels have in common on the host: constexprs, grids and memory for split sums."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tuner.kernel.config import Config
from tuner.kernels.base import numerics
from tuner.kernels.base.operands import INT32_SPAN, SCALE_GROUP, Placement, placement
from tuner.kernels.base.workspace import splits_together, workspace
from tuner.kernels.space import refinements
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import TILE, compiler_options
from tuner.problem import Problem


class View(NamedTuple):
    """What a launch needs to know of its operands, as the device sees them, before it takes their addresses.

    Attributes:
        problem: what is computed.
        shape: M, N and K.
        products: the leading dimension of B, 1 if it has none.
        strides: the row and the column stride of A, then of B and of C.
        transposed: whether columns of A, B and C are contiguous.
        vectors: elements that divide the leading strides and contiguous extents of A, B and C.
        exchanged: whether the operands are those of the transposed output, whose bias runs along the rows.
    """

    problem: Problem
    shape: tuple[int, int, int]
    products: int
    strides: tuple[int, ...]
    transposed: tuple[bool, bool, bool]
    vectors: tuple[int, int, int]
    exchanged: bool


Parts = tuple[tuple[int, ...], int, dict[str, Any], dict[str, Any]]
"""A launch except its tensors: its grid, GROUP_SIZE_M, its constexprs and the compiler's options."""


def view_of(operands: Any, at: Callable[[torch.Tensor], Placement] = placement, *, exchanged: bool = False) -> View:
    """View the operands `a`, `b` and `out`, each a matrix or a batch of them, which lie as `at` says."""
    a, b, out = operands.a, operands.b, operands.out
    in_a, in_b, in_out = at(a), at(b), at(out)
    return View(
        operands.problem,
        (a.shape[-2], b.shape[-1], a.shape[-1]),
        b.shape[0] if b.dim() == 3 else 1,
        (*a.stride()[-2:], *b.stride()[-2:], *out.stride()[-2:]),
        (in_a.transposed, in_b.transposed, in_out.transposed),
        (in_a.vector, in_b.vector, in_out.vector),
        exchanged,
    )


def parts_of(
    function: Any, own: Callable[[View, Config], dict[str, Any]] = lambda _view, _config: {}
) -> Callable[[View, Config], Parts]:
    """Make the cached function from a view and a config to the parts of a launch, which nobody may change.

    Args:
        function: the jit function, which is passed those constexprs that it names.
        own: the constexprs that only this kernel has, or means differently.
    """

    @functools.lru_cache(maxsize=4096)
    def parts(view: View, config: Config) -> Parts:
        constants = of_view(view, config)
        tile = tuple(constants[name] for name in TILE)
        taken = named(function, {**constants, **own(view, config)})
        return *grid_of(config, tile, view.shape[0], view.shape[1]), taken, compiler_options(config)

    return parts


def named(function: Any, constants: dict[str, Any]) -> dict[str, Any]:
    """Those of the constexprs that are a jit function's."""
    return {name: value for name, value in constants.items() if name in function.arg_names}


def of_view(view: View, config: Config) -> dict[str, Any]:
    """The constexprs of `of_config`, and those that the operands decide."""
    m, _, k = view.shape
    # A tile without BLOCK_SIZE_M has all rows of A.
    block_m = config.integer("BLOCK_SIZE_M", next_power_of_two(m))
    tile = (block_m, config.integer("BLOCK_SIZE_N"), config.integer("BLOCK_SIZE_K"))
    return {
        **of_config(view.problem, config),
        "BLOCK_SIZE_M": block_m,
        **{f"{name}_TRANSPOSED": transposed for name, transposed in zip("ABC", view.transposed, strict=True)},
        **{f"{name}_VECTOR": vector for name, vector in zip("ABC", view.vectors, strict=True)},
        "A_GROUP": SCALE_GROUP if view.exchanged else 1,
        "B_GROUP": 1 if view.exchanged else SCALE_GROUP,
        "BIAS_ALONG_M": view.exchanged,
        "EVEN_K": k > 0 and k % tile[2] == 0,
        "WIDE": span(tile, view.strides) >= INT32_SPAN,
        "TOGETHER": splits_together(tile[0] * tile[1], config.integer("num_warps"), config.integer("SPLIT_K", 1)),
        "BLOCK_GROUPS": next_power_of_two(view.products),
    }


def of_config(problem: Problem, config: Config) -> dict[str, Any]:
    """The constexprs that a config and its problem decide, whatever the operands are."""
    return {
        **{name: config.integer(name) for name in TILE},
        "STAGES": config.integer("num_stages"),
        "SCALING": problem.scaling,
        "ACTIVATION": problem.activation,
        "PRECISION": "ieee" if problem.precision == "default" else problem.precision,
        "MAX_IMPRECISE": numerics.max_imprecise(problem, config.integer("BLOCK_SIZE_K")),
        "PDL": bool(config.get("launch_pdl", False)),
        "TRIGGER": config.integer(refinements.PDL_TRIGGER, 0),
        "PREFETCH": config.integer(refinements.PREFETCH_KIB, 0) * 1024,
    }


def span(tile: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The largest offset within a tile of A, B or C, in elements."""
    block_m, block_n, block_k = tile
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn = strides
    return max(
        (block_m - 1) * stride_am + (block_k - 1) * stride_ak,
        (block_k - 1) * stride_bk + (block_n - 1) * stride_bn,
        (block_m - 1) * stride_cm + (block_n - 1) * stride_cn,
    )


def grid_of(config: Config, tile: tuple[int, ...], m: int, n: int) -> tuple[tuple[int, ...], int]:
    """The grid, which has an axis for tiles and one for splits if there are any, and GROUP_SIZE_M."""
    tiles_m, tiles_n = -(-m // tile[0]), -(-n // tile[1])
    # Limit a group to all rows of tiles, because the kernel multiplies it by tiles_n in 32 bits.
    group = min(max(1, config.integer("GROUP_SIZE_M", 1)), tiles_m)
    splits = config.integer("SPLIT_K", 1)
    return (tiles_m * tiles_n,) if splits == 1 else (tiles_m * tiles_n, splits), group


def split_memory(
    grid: tuple[int, ...], constants: dict[str, Any], a: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """The partial sums and the counters of a launch, if its grid has an axis for splits."""
    if len(grid) == 1:
        return None, None
    elements = grid[0] * grid[1] * constants["BLOCK_SIZE_M"] * constants["BLOCK_SIZE_N"]
    return workspace(elements, torch.int32 if a.dtype == torch.int8 else torch.float32, a.device)
