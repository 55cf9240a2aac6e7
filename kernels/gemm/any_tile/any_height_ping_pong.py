"""The `any_height_ping_pong` kernel: warpgroups take tiles of any height in turn. For Hopper, in Gluon.

`any_width`'s kernel with exchanged operands, as `any_height`, and its two warpgroups take tiles in turn, as those of
`ping_pong`.
"""

from __future__ import annotations

from tuner.kernel.config import Config
from tuner.kernels.base.operands import Operands
from tuner.kernels.gemm.any_tile import any_width
from tuner.kernels.gemm.any_tile.any_height_ping_pong_space import NAME, estimate_us, space, supports
from tuner.kernels.gemm.any_tile.any_height_tile import as_computed, computed_by, order, shared_bytes
from tuner.kernels.gemm.hopper import tile
from tuner.kernels.gemm.spec import MATMUL, gemm_spec
from tuner.launch.launch import Launch

VERSION = 1


def program(operands: Operands, config: Config) -> tuple[Launch]:
    """The launch of a config."""
    teams: int = tile.TEAMS.value
    return any_width.launched(operands.exchanged(), as_computed(config), exchanged=True, teams=teams)


def ties(config: Config) -> tuple[int, ...]:
    """Of equal estimates the tallest tiles come first, which load least, and narrow groups."""
    return -config.integer("BLOCK_SIZE_M"), config.integer("GROUP_SIZE_M")


SPEC = any_width.ring_checked(
    gemm_spec(
        MATMUL,
        NAME,
        VERSION,
        program,
        supports=supports,
        space=space,
        shared_bytes=shared_bytes,
        estimate_us=estimate_us,
        ties=ties,
        sources=(*any_width.SOURCES, program, as_computed),
        order=order,
        exchanges=True,
    ),
    computed_by,
)
