"""What the kernels of `fused_experts` share: the op, the launches around their products, and those products' sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tuner.kernel.config import Config
from tuner.kernels.base.program import Operation
from tuner.kernels.base.workspace import scratch
from tuner.kernels.experts import jit as experts_kernel
from tuner.kernels.experts import operands as experts_operands
from tuner.kernels.experts.operands import ExpertsOperands
from tuner.kernels.space.tile_resources import next_power_of_two
from tuner.launch.launch import TILE, Launch, compiler_options

FUSED_EXPERTS = Operation(
    "fused_experts",
    experts_operands.make_operands,
    experts_operands.vendor,
    experts_operands.reference,
    experts_operands.launch_interpreted,
    experts_operands.tolerance,
    bytes_moved=experts_operands.bytes_moved,
)
_COMBINED = 1024
"""Columns of a program of the last launch."""
_SMALL = {"num_warps": 4, "num_stages": 1}
"""Options of the first and the last launch, which multiply nothing."""


@dataclass(frozen=True, slots=True)
class Between:
    """What lies between the launches, in memory that they share.

    Attributes:
        order: int32 [M * top_k], the slot of each row, sorted by expert.
        ends: int32 [E], one past each expert's last row.
        hidden: [M * top_k, N], the product of gate and up of each row.
        slots: [M * top_k, K], what each slot adds to its token.
    """

    order: torch.Tensor
    ends: torch.Tensor
    hidden: torch.Tensor
    slots: torch.Tensor


Product = Callable[[ExpertsOperands, Between, dict[str, Any], Config], Launch]
"""Makes the launch of a product from the operands, what lies between, both products' constants and the config."""


def program(
    operands: ExpertsOperands, config: Config, products: tuple[Product, Product], routed: int, vector: int
) -> tuple[Launch, ...]:
    """The launches of a config: tokens by expert, gate and up, down, and the sums.

    Args:
        operands: what is computed.
        config: a config of the kernel.
        products: what makes the launches of gate and up, and of down.
        routed: slots that a program of the first launch reads at a time.
        vector: a power of two that divides K and the output's row stride.
    """
    (m, k), (experts, _, n), top_k = operands.a.shape, operands.down.shape, operands.experts.shape[1]
    slots, kinds = m * top_k, (torch.int32, torch.int32, operands.a.dtype, operands.out.dtype)
    shapes = (slots,), (experts,), (slots, n), (slots, k)
    between = Between(*(_memory(shape, kind, operands.a.device) for shape, kind in zip(shapes, kinds, strict=True)))
    shared = constants_of(config, experts, top_k)
    small = {**compiler_options(config), **_SMALL}
    pdl, out = shared["PDL"], operands.out
    return (
        Launch(
            experts_kernel.route_kernel,
            (experts,),
            (operands.experts, between.order, between.ends, m),
            {"TOP_K": top_k, "BLOCK_SIZE": routed, "PDL": pdl},
            small,
        ),
        *(product(operands, between, shared, config) for product in products),
        Launch(
            experts_kernel.combine_kernel,
            (m, -(-k // _COMBINED)),
            (between.slots, operands.experts, out, k, experts, out.stride(0)),
            {"TOP_K": top_k, "BLOCK_SIZE": _COMBINED, "VECTOR_N": vector, "PDL": pdl},
            small,
        ),
    )


def _memory(shape: tuple[int, ...], kind: torch.dtype, device: torch.device) -> torch.Tensor:
    return scratch(math.prod(shape) * kind.itemsize, device).view(kind).view(shape)


@functools.lru_cache(maxsize=4096)
def constants_of(config: Config, experts: int, top_k: int) -> dict[str, Any]:
    """The constexprs that both products have."""
    return {
        "TOP_K": top_k,
        **{name: config.integer(name) for name in TILE},
        "BLOCK_GROUPS": next_power_of_two(experts),
        "PDL": bool(config.get("launch_pdl", False)),
    }


def group_of(config: Config) -> int:
    """GROUP_SIZE_M of a launch."""
    return max(1, config.integer("GROUP_SIZE_M", 1))


def tiles_of(operands: ExpertsOperands, config: Config, columns: int, block_n: int) -> int:
    """The most tiles that the rows can have: in the worst case, each expert's end in a tile of one row."""
    slots: int = operands.experts.numel()
    block_m = config.integer("BLOCK_SIZE_M")
    return (slots + min(len(operands.b), slots) * (block_m - 1)) // block_m * -(-columns // block_n)
